/** What the page asked of the service, written as somebody would type it. */

export interface Sent {
  method: string;
  path: string;
  body?: string | undefined;
}

const quoted = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;

export function asCurl({ method, path, body }: Sent, origin: string, hasKey: boolean): string {
  const parts = ["curl", "-s", ...(method === "GET" ? [] : ["-X", method]), quoted(origin + path)];
  if (hasKey) parts.push('-H "Authorization: Bearer $FOOTPLATE_API_KEY"');
  if (body) parts.push("-H 'Content-Type: application/json'", "-d", quoted(body));
  return parts.join(" ");
}

export function asPython({ method, path, body }: Sent, origin: string): string {
  const verb = /^\/jobs\/(job_\w+)\/(pause|resume|cancel)$/.exec(path);
  const head = `from footplate import Client\n\nclient = Client(${JSON.stringify(origin)})\n`;
  if (verb) return `${head}client.jobs.get("${verb[1]}").${verb[2]}()`;
  if (method === "POST" && path === "/jobs" && body) return `${head}job = client.jobs.create(${asLiteral(JSON.parse(body))})`;
  const one = /^\/jobs\/(job_\w+)$/.exec(path);
  if (method === "GET" && one) return `${head}print(client.jobs.get("${one[1]}"))`;
  const call = `httpx2.request(${JSON.stringify(method)}, ${JSON.stringify(origin + path)}${body ? `, json=${asLiteral(JSON.parse(body))}` : ""})`;
  return `import httpx2\n\nprint(${call}.json())`;
}

export function asCommand({ method, path, body }: Sent): string | null {
  const verb = /^\/jobs\/(job_\w+)\/(pause|resume|cancel|fork)$/.exec(path);
  if (verb) return `footplate ${verb[2]} ${verb[1]}`;
  if (method === "POST" && path === "/jobs" && body) return `footplate submit ${quoted(body)}`;
  if (method === "POST" && path === "/jobs/validate" && body) return `footplate validate ${quoted(body)}`;
  const shown = /^\/jobs\/(job_\w+)(?:\/(events|metrics|checkpoints|logs))?/.exec(path);
  if (method === "GET" && shown) return `footplate ${shown[2] ?? "show"} ${shown[1]}`;
  return null;
}

/** A JSON value as a Python literal. */
export function asLiteral(value: unknown): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(asLiteral).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value as object).map(([key, item]) => `${JSON.stringify(key)}: ${asLiteral(item)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
