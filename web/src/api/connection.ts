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
    if (!(error instanceof TypeError)) throw error; // Aborted by this page.
    isOnline.value = false;
    throw new Unreachable();
  }
}
