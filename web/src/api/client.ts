/** Requests to the service. Errors carry the server's own sentence and hint. */

import { signal } from "@preact/signals";
import { errorText } from "../lib/errors";
import { param } from "../model/route";
import { PATIENCE_MS, send, unanswered } from "./connection";

const KEY = "footplate.key";

export interface Problem {
  pointer: string;
  code: string;
  detail: string;
  hint?: string | null;
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
    readonly problems: Problem[],
    readonly hint: string | null,
  ) {
    super(errorText(detail, hint, problems));
  }
}

/** True once the service has refused a request for want of a valid key. */
export const needsKey = signal(false);
/** The requests that this page sent last, newest first: shown as curl, Python and command line. */
export const recentRequests = signal<{ method: string; path: string; body?: string; at: number }[]>([]);

export const storedKey = () => sessionStorage.getItem(KEY);

export function storeKey(key: string | null): void {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
  needsKey.value = false;
}

function authorization(): Record<string, string> {
  const key = storedKey();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

export interface Options {
  method?: string;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** Polls are not among the requests that the page shows. */
  quiet?: boolean;
  /** A request that is answered at once where the service lives. Without an answer the page says that it is unreachable. */
  isPulse?: boolean;
}

/** Adds the project that is looked at. Without one the service takes the key's own, or "default". */
export function inProject(path: string): string {
  const project = param("project");
  if (!project || /[?&]project=/.test(path)) return path;
  return `${path}${path.includes("?") ? "&" : "?"}project=${encodeURIComponent(project)}`;
}

export async function request<T>(bare: string, options: Options = {}): Promise<T> {
  const path = inProject(bare);
  const { method = "GET", body, headers = {}, quiet = method === "GET" } = options;
  const isRaw = body instanceof Blob;
  const content = body === undefined ? undefined : isRaw ? body : JSON.stringify(body);
  if (!quiet) {
    const shown = { method, path, body: typeof content === "string" ? content : undefined, at: Date.now() };
    recentRequests.value = [shown, ...recentRequests.value].slice(0, 20);
  }
  const response = await send(path, {
    method,
    body: content ?? null,
    signal: options.isPulse ? AbortSignal.timeout(PATIENCE_MS) : (options.signal ?? null),
    headers: {
      ...authorization(),
      ...(content !== undefined && !isRaw ? { "Content-Type": "application/json" } : {}),
      ...headers,
    },
  });
  if (response.status === 401) needsKey.value = true;
  const text = response.status === 204 ? "" : await response.text().catch(unanswered);
  const isJson = response.headers.get("Content-Type")?.includes("json");
  const parsed: any = text && isJson ? JSON.parse(text) : null;
  if (!response.ok || (text && !isJson)) {
    throw new ApiError(
      response.status,
      parsed?.code ?? "unknown",
      parsed?.detail ?? parsed?.title ?? `the service answered ${response.status}`,
      parsed?.errors ?? [],
      parsed?.hint ?? null,
    );
  }
  return parsed as T;
}

/** Reads a list of a job from its beginning, a thousand rows at a time and at most so many times. */
export async function requestPages<T>(path: string, most: number): Promise<T[]> {
  const rows: T[] = [];
  let after: string | null = "0";
  for (let page = 0; page < most && after !== null; page += 1) {
    const answer: { data: T[]; next_cursor: string | null } = await request(`${path}&limit=1000&after=${after}`);
    rows.push(...answer.data);
    after = answer.next_cursor;
  }
  return rows;
}

/** What the user reads when something failed. */
export function explain(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export const jobPath = (id: string) => `/jobs/${encodeURIComponent(id)}`;

/** Downloads by a link, so that the browser writes a file of any size to the disk. A link cannot send the key, and has a ticket instead. */
export async function download(path: string, name: string): Promise<void> {
  const address = inProject(path);
  const headers = authorization();
  if (!(await send(address, { method: "HEAD", headers })).ok) {
    // Only the answer to a GET says why. If it is the file, the HEAD failed for a moment only.
    const response = await send(address, { headers });
    if (!response.ok) {
      const said = await response.json().catch(() => null);
      throw new ApiError(response.status, "download", `${name} cannot be downloaded: ${said?.detail ?? `the service answered ${response.status}`}`, [], said?.hint ?? null);
    }
    await response.body?.cancel();
  }
  const { ticket } = await request<{ ticket: string }>("/tickets", { method: "POST", quiet: true });
  save(ticket ? `${address}${address.includes("?") ? "&" : "?"}ticket=${ticket}` : address, name);
}

export function saveBlob(blob: Blob, name: string): void {
  const address = URL.createObjectURL(blob);
  save(address, name);
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

function save(address: string, name: string): void {
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
}

/** Sends a request whose answer is a stream of events, and yields the data of each event as it arrives. */
export async function* events(path: string, body: unknown, signal: AbortSignal): AsyncGenerator<string> {
  const headers = { ...authorization(), "Content-Type": "application/json" };
  const response = await send(inProject(path), { method: "POST", headers, body: JSON.stringify(body), signal });
  if (response.status === 401) needsKey.value = true;
  if (!response.ok || !response.body) {
    const said = await response.json().catch(() => null);
    const detail = said?.error?.message ?? said?.detail ?? `the service answered ${response.status}`;
    throw new ApiError(response.status, said?.error?.code ?? "unknown", detail, [], null);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { done, value } = await reader.read();
    const parts = (rest + (value ?? "")).split("\n\n");
    rest = parts.pop()!;
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
    if (done) return;
  }
}
