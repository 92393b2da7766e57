/** The address is the state: view, project, selection, filters and chart settings stand behind the `#`. */

import { computed, signal } from "@preact/signals";
import { throttled } from "../lib/slices";

export interface Route {
  view: "jobs" | "job" | "compare" | "submit" | "try" | "cluster";
  id: string | null;
  params: URLSearchParams;
}

/** Reads an address. One that cannot be read opens the table of jobs. */
export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  const params = new URLSearchParams(query);
  const [view, id] = path.split("/").map(decodeQuietly);
  if (view === "jobs" && id) return { view: "job", id, params };
  if (view === "compare" || view === "submit" || view === "try" || view === "cluster") return { view, id: null, params };
  // The short form `#job_…`, as the command prints it.
  if (view?.startsWith("job_")) return { view: "job", id: view, params };
  return { view: "jobs", id: null, params };
}

function decodeQuietly(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

const current = signal(parseRoute(location.hash));
export const route = computed(() => current.value);

window.addEventListener("hashchange", () => {
  pending = null;
  leaveTable();
  current.value = parseRoute(location.hash);
});

let table: URLSearchParams | null = null;

function leaveTable(): void {
  if (current.value.view === "jobs") table = current.value.params;
}

/** The table of jobs with the filters, the order and the selection that it had last. */
export function tableHref(): string {
  const isSame = (table?.get("project") ?? "") === (current.value.params.get("project") ?? "");
  return isSame && table?.size ? `#/jobs?${table}` : href("jobs");
}

export function href(path: string, params?: Record<string, string | null | undefined>): string {
  const kept = new URLSearchParams();
  const project = current.value.params.get("project");
  for (const [name, value] of Object.entries({ project, ...params })) if (value) kept.set(name, value);
  const query = kept.toString();
  return `#/${path}${query ? `?${query}` : ""}`;
}

export function go(address: string): void {
  write();
  location.hash = address;
}

/** Opens an address in place of the present one, which the back button then skips. */
export function replace(address: string): void {
  pending = null;
  location.replace(address);
}

/**
 * Changes parameters of the present view in place. The back button skips such changes. What changes while a finger moves is
 * written into the address a few times in a second only, because browsers refuse more than some hundred changes in a row.
 */
export function setParams(changes: Record<string, string | null>, isMoving = false): void {
  const { view, id, params } = current.value;
  const next = new URLSearchParams(params);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") next.delete(name);
    else next.set(name, value);
  }
  const path = view === "job" ? `jobs/${encodeURIComponent(id ?? "")}` : view;
  const query = next.toString();
  pending = `#/${path}${query ? `?${query}` : ""}`;
  if (isMoving) writeSoon();
  else write();
  current.value = { view, id, params: next };
}

/** The address that is not yet written. */
let pending: string | null = null;
const write = () => {
  if (pending !== null) history.replaceState(null, "", pending);
  pending = null;
};
const writeSoon = throttled(write, 500);
// A click may follow a link. The entry that the back button returns to must have the parameters as they are now.
window.addEventListener("click", write, { capture: true });

export const param = (name: string, otherwise = "") => route.value.params.get(name) ?? otherwise;
