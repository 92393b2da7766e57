/** Whether the service can be reached, and since when not. */

import { signal } from "@preact/signals";

/** When the service was last heard, in milliseconds, and whether it is reachable now. */
export const lastHeard = signal(Date.now());
export const isOnline = signal(true);
/** Moves when the service is reachable again. What could not be read meanwhile is then read. */
export const reconnections = signal(0);

export function heard(): void {
  if (!isOnline.value) reconnections.value += 1;
  lastHeard.value = Date.now();
  isOnline.value = true;
}

/** A request without an answer. Nobody knows whether the service received it. */
export class Unreachable extends Error {
  constructor() {
    super("The service is unreachable. The page tries again by itself.");
  }
}

/** A request that shows whether the service lives is given up after this time. A network that drops everything gives no other sign. */
export const PATIENCE_MS = 10_000;

/** Raises Unreachable for a request that got no answer, or only a part of one. Raises any other error as it is. */
export function unanswered(error: unknown): never {
  const isTimeout = error instanceof DOMException && error.name === "TimeoutError";
  if (!(error instanceof TypeError) && !isTimeout) throw error; // Aborted by this page.
  isOnline.value = false;
  throw new Unreachable();
}

/** Codes of a proxy whose service is down. */
const PROXY_CODES = [502, 503, 504];

/** Sends a request. Raises Unreachable where no answer of the service comes back. */
export async function send(path: string, init: RequestInit): Promise<Response> {
  try {
    const response = await fetch(path, init);
    const isProxy = PROXY_CODES.includes(response.status) && !response.headers.get("Content-Type")?.includes("json");
    if (isProxy) throw new TypeError();
    heard();
    return response;
  } catch (error) {
    return unanswered(error);
  }
}
