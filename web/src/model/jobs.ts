/** All jobs that the page knows. The newest page and all active jobs are asked for every two seconds. */

import { batch, computed, effect, signal } from "@preact/signals";
import { ApiError, explain, jobPath, request } from "../api/client";
import { Unreachable } from "../api/connection";
import { FINAL, type Job, type JobList } from "../api/types";
import { readConditions, serverQuery } from "../lib/filters";
import { isNewer, listedAfter } from "../lib/listed";
import { followAgain } from "./curves";
import { param, route } from "./route";

export const jobs = signal<ReadonlyMap<string, Job>>(new Map());
export const listed = signal<readonly string[]>([]);
export const total = signal(0);
/** The project whose jobs are listed. Empty until the service has answered. */
export const listedProject = signal("");
export const isLoading = signal(true);
/** Why the key of this page can change nothing, or null. */
export const readOnly = signal<string | null>(null);
const nextCursor = signal<string | null>(null);
/** `isOfList` is true for a problem with the list of jobs, which goes away once the list can be read. */
export const message = signal<{ text: string; isError: boolean; isOfList?: boolean } | null>(null);
let filterKey = "";

const PAGE = 200;
const MOST_LOADED = 100_000;
/** Pages that are read before the table is drawn again, where all pages are wanted. */
const PAGES_AT_ONCE = 10;

export const conditions = computed(() => readConditions(param("where")));

let asked = { where: "", query: {} as Record<string, string> };

const filters = computed(() => {
  // "24h ago" is counted from the moment when somebody filtered. Counted anew with each poll it would empty the table each time.
  if (param("where") !== asked.where) asked = { where: param("where"), query: serverQuery(conditions.value, Date.now()) };
  const query = new URLSearchParams(asked.query);
  for (const name of ["state", "project"]) if (param(name)) query.set(name, param(name));
  return query.toString();
});

/** Takes jobs over that are newer than the known ones. Nothing is drawn again if there is none. */
export function keep(found: Job[]): void {
  const known = jobs.value;
  const changed = found.filter((job) => !deleted.has(job.id) && isNewer(job, known.get(job.id)));
  if (changed.length === 0) return;
  // A job that had ended and was resumed, here or elsewhere, sends events again.
  for (const job of changed) if (!FINAL.has(job.state) && FINAL.has(known.get(job.id)?.state ?? job.state)) followAgain(job.id);
  const next = new Map(known);
  for (const job of changed) next.set(job.id, job);
  jobs.value = next;
}

export function forget(id: string): void {
  const next = new Map(jobs.value);
  next.delete(id);
  batch(() => {
    jobs.value = next;
    listed.value = listed.value.filter((other) => other !== id);
  });
}

/** Jobs that were deleted here. An answer that was sent before may still hold them. */
const deleted = new Set<string>();

function forgetDeleted(id: string): void {
  deleted.add(id);
  forget(id);
}

const listPath = (query: string, cursor: string | null) => `/jobs?limit=${PAGE}${query && `&${query}`}${cursor ? `&cursor=${cursor}` : ""}`;

/** Reads the newest page of the list. */
async function readNewest(query: string): Promise<void> {
  const page = await request<JobList>(listPath(query, null), { isPulse: true });
  if (query !== filters.value) return;
  batch(() => {
    keep(page.data);
    const ids = page.data.map((job) => job.id).filter((id) => !deleted.has(id));
    const next = listedAfter(listed.value, ids, page.next_cursor === null);
    // While older pages are read, the cursor is theirs. Set back here, it would make them useless.
    if (next.length <= PAGE && !loadingMore) nextCursor.value = page.next_cursor;
    if (next.length !== listed.value.length || next.some((id, index) => id !== listed.value[index])) listed.value = next;
    total.value = Math.max(page.total_estimate, next.length);
    listedProject.value = page.project ?? "";
    readOnly.value = page.scopes?.includes("submit") === false ? "This key may only read. Changes need one with the scope “submit”." : null;
    isLoading.value = false;
  });
}

export const hasMore = computed(() => nextCursor.value !== null);
let loadingMore = false;

/** Loads the next page, or all pages if a column is sorted or filtered by that the server does not know. */
export async function loadMore(everything = false): Promise<void> {
  if (loadingMore) return;
  loadingMore = true;
  const query = filters.value;
  try {
    while (nextCursor.value && query === filters.value) {
      const found: Job[] = [];
      for (let count = 0; nextCursor.value && count < (everything ? PAGES_AT_ONCE : 1); count += 1) {
        const cursor: string = nextCursor.value;
        const page: JobList = await request<JobList>(listPath(query, cursor));
        if (query !== filters.value || cursor !== nextCursor.value) return;
        found.push(...page.data);
        nextCursor.value = page.next_cursor;
      }
      batch(() => {
        keep(found);
        const known = new Set(listed.value);
        listed.value = [...listed.value, ...found.map((job) => job.id).filter((id) => !known.has(id))];
        total.value = nextCursor.value ? Math.max(total.value, listed.value.length) : listed.value.length;
      });
      if (!everything || listed.value.length >= MOST_LOADED) break;
    }
  } catch (error) {
    failed(error);
  } finally {
    loadingMore = false;
  }
}

/** Asks for one job. A job that was deleted here is not asked for, as if the service had answered that there is none. */
export async function refreshJob(id: string): Promise<Job> {
  if (deleted.has(id)) throw new ApiError(404, "not_found", `job ${id} was deleted`, [], null);
  const job = await request<Job>(jobPath(id), { isPulse: true });
  keep([job]);
  return job;
}

async function poll(): Promise<void> {
  const query = filters.value;
  if (query !== filterKey) {
    filterKey = query;
    nextCursor.value = null;
    batch(() => {
      listed.value = [];
      isLoading.value = true;
    });
  }
  try {
    await readNewest(query);
    const active = await request<JobList>("/jobs?limit=200&state=starting,running,stopping", { isPulse: true });
    const seen = new Set(active.data.map((job) => job.id));
    keep(active.data);
    const newest = new Set(listed.value.slice(0, PAGE));
    // A job that was active and is not any more, outside the newest page: ask for its end.
    const stale = [...jobs.value.values()].filter(
      (job) => ["starting", "running", "stopping"].includes(job.state) && !seen.has(job.id) && !newest.has(job.id),
    );
    await Promise.allSettled(stale.slice(0, 20).map((job) => refreshJob(job.id).catch((error) => isGone(error) && forget(job.id))));
    if (message.value?.isOfList) message.value = null;
  } catch (error) {
    failed(error);
  }
}

/** True for a job that was deleted elsewhere, or that belongs to another project. */
export const isGone = (error: unknown) => error instanceof ApiError && error.status === 404;

function failed(error: unknown): void {
  // The page says above that the service is unreachable, and asks for a key.
  if (error instanceof Unreachable || (error instanceof ApiError && error.status === 401)) return;
  message.value = { text: explain(error), isError: true, isOfList: true };
}

/** Does something that the user asked for, and says how it went. */
export async function attempt<T>(work: () => Promise<T>, done?: string): Promise<T | undefined> {
  try {
    const result = await work();
    message.value = done ? { text: done, isError: false } : null;
    return result;
  } catch (error) {
    const text = error instanceof Unreachable ? "The service did not answer, so this may not be done. Try again once the page has reconnected." : explain(error);
    message.value = { text, isError: true };
    return undefined;
  }
}

interface BulkAnswer {
  data: { job: string; error: { detail?: string; code?: string } | null }[];
}
const MOST_AT_ONCE = 500;

/** One verb for many jobs. Says how many it reached, and of the others the first reason. */
export async function actOnMany(some: Job[], action: string): Promise<void> {
  await attempt(async () => {
    const outcomes: BulkAnswer["data"] = [];
    for (let start = 0; start < some.length; start += MOST_AT_ONCE) {
      const ids = some.slice(start, start + MOST_AT_ONCE).map((job) => job.id);
      outcomes.push(...(await request<BulkAnswer>("/jobs/bulk", { method: "POST", body: { action, ids } })).data);
    }
    const refused = outcomes.filter((outcome) => outcome.error);
    if (action === "delete") outcomes.filter((outcome) => !outcome.error).forEach((outcome) => forgetDeleted(outcome.job));
    await Promise.allSettled(action === "delete" ? [] : outcomes.slice(0, 50).map((outcome) => refreshJob(outcome.job)));
    if (refused.length) throw new Error(`${action}: ${outcomes.length - refused.length} of ${outcomes.length} jobs. The first that refused: ${refused[0]!.error!.detail ?? refused[0]!.error!.code}`);
  });
}

export async function act(job: Job, action: string, body?: unknown): Promise<void> {
  await attempt(async () => {
    if (action === "delete") {
      await request(jobPath(job.id), { method: "DELETE" });
      forgetDeleted(job.id);
    } else {
      keep([await request<Job>(`${jobPath(job.id)}/${action}`, { method: "POST", body })]);
    }
  });
}

const MOST_TRIES = 5;

/** Changes the tags of a job. If the job was changed elsewhere meanwhile, it is read again first, so that no other change is lost. */
export async function changeTags(job: Job, change: (tags: readonly string[]) => string[]): Promise<void> {
  for (let known = job, tries = 1; ; tries += 1) {
    try {
      const headers = { "If-Match": `"${known.version}"` };
      return keep([await request<Job>(jobPath(job.id), { method: "PATCH", headers, body: { tags: change(known.tags) } })]);
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 412) || tries === MOST_TRIES) throw error;
      known = await request<Job>(jobPath(job.id));
    }
  }
}

export const isFinal = (job: Job) => FINAL.has(job.state);

/** Starts polling. A hidden page does not ask. */
export function startPolling(): void {
  let timer: ReturnType<typeof setTimeout>;
  const turn = async () => {
    clearTimeout(timer);
    if (!document.hidden) await poll();
    timer = setTimeout(turn, 2000);
  };
  effect(() => {
    void filters.value;
    void route.value.view;
    void turn();
  });
  document.addEventListener("visibilitychange", () => void turn());
}

export { poll as refreshNow };
