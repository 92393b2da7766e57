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

/** The path without its project, and the project or an empty text. */
function apart(sent: string): { path: string; project: string } {
  const project = /[?&]project=([^&]*)/.exec(sent)?.[1] ?? "";
  const path = sent.replace(/([?&])project=[^&]*&?/, "$1").replace(/[?&]$/, "");
  return { path, project: decodeURIComponent(project) };
}

export function asPython({ method, path: sentPath, body }: Sent, origin: string, hasKey: boolean): string {
  const { path, project } = apart(sentPath);
  const inside = project && `, project=${JSON.stringify(project)}`;
  const head = `from footplate import Client\n\nclient = Client(${JSON.stringify(origin)}${inside})\n`;
  if (method === "POST" && path === "/jobs" && body) return `${head}job = client.jobs.create(${asLiteral(JSON.parse(body))})`;
  const [, id, rest = ""] = /^\/jobs\/(job_\w+)(?:\/(.*))?$/.exec(path) ?? [];
  const call = id && callOf(method, rest, body);
  if (call) return `${head}job = client.jobs.get("${id}")\n${call}`;
  const key = hasKey ? `, headers={"Authorization": "Bearer " + os.environ["FOOTPLATE_API_KEY"]}` : "";
  const sent = `httpx2.request(${JSON.stringify(method)}, ${JSON.stringify(origin + sentPath)}${body ? `, json=${asLiteral(JSON.parse(body))}` : ""}${key})`;
  return `${hasKey ? "import os\n\n" : ""}import httpx2\n\nprint(${sent}.text)`;
}

/** What the client has for a request below a job's path, or undefined. */
function callOf(method: string, rest: string, body: string | undefined): string | undefined {
  if (method === "DELETE" && rest === "") return "job.delete()";
  if (method === "GET") return READS[rest];
  if (method !== "POST") return undefined;
  if (/^(pause|resume|cancel)$/.test(rest) && !body) return `job.${rest}()`;
  const asked = body ? JSON.parse(body) : {};
  if (rest === "do" || rest === "resume") return `job.${rest}(${named(asked)})`;
  if (rest === "fork") return `fork = job.fork(${named(asked)})`;
  return undefined;
}

const READS: Record<string, string> = {
  "": "print(job.info)",
  spec: "print(job.spec())",
  "metrics/series?names=loss": 'print(job.metrics.series("loss"))',
  "events?kinds=state,checkpoint": 'print(list(job.events(kinds="state,checkpoint", follow=False)))',
  logs: "for line in job.logs():\n    print(line.text)",
  checkpoints: "print(job.checkpoints.list())",
};

/** Keyword arguments. */
const named = (args: object) => Object.entries(args).map(([name, value]) => `${name}=${asLiteral(value)}`).join(", ");

/** Returns null for what the command cannot do. */
export function asCommand({ method, path: sentPath, body }: Sent): string | null {
  const { path, project } = apart(sentPath);
  const command = commandOf(method, path, body);
  return command && project ? `${command} --project ${quoted(project)}` : command;
}

function commandOf(method: string, path: string, body: string | undefined): string | null {
  if (method === "POST" && path === "/jobs" && body) return `footplate submit ${quoted(body)}`;
  if (method === "POST" && path === "/jobs/validate" && body) return `footplate validate ${quoted(body)}`;
  const [, id, rest = ""] = /^\/jobs\/(job_\w+)(?:\/(.*))?$/.exec(path) ?? [];
  if (!id) return null;
  if (method === "DELETE" && rest === "") return `footplate rm ${id}`;
  if (method === "GET" && rest !== "spec") return `footplate ${/^(events|metrics|checkpoints|logs)/.exec(rest)?.[1] ?? "show"} ${id}`;
  if (method !== "POST") return null;
  if (/^(pause|resume|cancel)$/.test(rest) && !body) return `footplate ${rest} ${id}`;
  const asked = body ? JSON.parse(body) : {};
  if (rest === "do") return ["footplate do", id, asked.save && "--save", asked.evaluate && "--evaluate", ...settings(asked.set)].filter(Boolean).join(" ");
  if (rest === "resume" && Object.keys(asked).join() === "checkpoint") return `footplate resume ${id} --checkpoint ${asked.checkpoint}`;
  if (rest === "fork") return ["footplate fork", id, `--checkpoint ${asked.checkpoint ?? "latest"}`, ...settings(asked.patch)].join(" ");
  return null;
}

/** `--set` for each value of a patch. */
function settings(patch: object = {}, prefix = ""): string[] {
  return Object.entries(patch).flatMap(([name, value]) => {
    const path = `${prefix}${name}`;
    if (value !== null && typeof value === "object" && !Array.isArray(value)) return settings(value, `${path}.`);
    return [`--set ${quoted(`${path}=${JSON.stringify(value)}`)}`];
  });
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
