/** All jobs that the page knows. The newest page and all active jobs are asked for every two seconds. */

import { batch, computed, effect, signal } from "@preact/signals";
import { explain, jobPath, request } from "../api/client";
import { heard, unreachable } from "../api/live";
import { FINAL, type Job, type JobList } from "../api/types";
import { param, route } from "./route";

export const jobs = signal<ReadonlyMap<string, Job>>(new Map());
export const listed = signal<readonly string[]>([]);
export const total = signal(0);
export const isLoading = signal(true);
export const message = signal<{ text: string; isError: boolean } | null>(null);
let nextCursor: string | null = null;
let filterKey = "";

const PAGE = 200;
const MOST_LOADED = 100_000;

const filters = computed(() => {
  const query = new URLSearchParams();
  for (const name of ["state", "tag", "project"]) if (param(name)) query.set(name, param(name));
  return query.toString();
});

export function keep(found: Job[]): void {
  const next = new Map(jobs.value);
  for (const job of found) next.set(job.id, job);
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

/** Reads a page of the list. Returns false at the end of the list. */
async function readPage(query: string, cursor: string | null): Promise<boolean> {
  const page = await request<JobList>(`/jobs?limit=${PAGE}${query && `&${query}`}${cursor ? `&cursor=${cursor}` : ""}`);
  heard();
  if (query !== filters.value) return false;
  batch(() => {
    keep(page.data);
    const ids = page.data.map((job) => job.id);
    const seen = new Set(ids);
    const others = listed.value.filter((id) => !seen.has(id));
    listed.value = cursor ? [...others, ...ids] : [...ids, ...others];
    total.value = Math.max(page.total_estimate, listed.value.length);
    isLoading.value = false;
  });
  if (cursor || nextCursor === undefined || listed.value.length <= PAGE) nextCursor = page.next_cursor;
  return page.next_cursor !== null;
}

export const hasMore = computed(() => listed.value.length < total.value);
let loadingMore = false;

/** Loads the next page, or all pages if a column is sorted that the server does not sort by. */
export async function loadMore(everything = false): Promise<void> {
  if (loadingMore || !nextCursor) return;
  loadingMore = true;
  try {
    do {
      if (!(await readPage(filters.value, nextCursor))) break;
    } while (everything && listed.value.length < MOST_LOADED);
  } catch (error) {
    failed(error);
  } finally {
    loadingMore = false;
  }
}

/** Asks for one job. Returns null if there is none. */
export async function refreshJob(id: string): Promise<Job | null> {
  const job = await request<Job>(jobPath(id));
  keep([job]);
  return job;
}

async function poll(): Promise<void> {
  const query = filters.value;
  if (query !== filterKey) {
    filterKey = query;
    nextCursor = null;
    batch(() => {
      listed.value = [];
      isLoading.value = true;
    });
  }
  try {
    await readPage(query, null);
    const project = param("project");
    const active = await request<JobList>(`/jobs?limit=200&state=starting,running,stopping${project && `&project=${project}`}`);
    const seen = new Set(active.data.map((job) => job.id));
    keep(active.data);
    const newest = new Set(listed.value.slice(0, PAGE));
    // A job that was active and is not any more, outside the newest page: ask for its end.
    const stale = [...jobs.value.values()].filter(
      (job) => ["starting", "running", "stopping"].includes(job.state) && !seen.has(job.id) && !newest.has(job.id),
    );
    await Promise.allSettled(stale.slice(0, 20).map((job) => refreshJob(job.id)));
    if (message.value?.isError && message.value.text.startsWith("The service is unreachable")) message.value = null;
  } catch (error) {
    failed(error);
  }
}

function failed(error: unknown): void {
  if (error instanceof TypeError) unreachable();
  else message.value = { text: explain(error), isError: true };
}

/** Does something that the user asked for, and says how it went. */
export async function attempt<T>(work: () => Promise<T>, done?: string): Promise<T | undefined> {
  try {
    const result = await work();
    message.value = done ? { text: done, isError: false } : null;
    return result;
  } catch (error) {
    message.value = { text: explain(error), isError: true };
    return undefined;
  }
}

export async function act(job: Job, action: string, body?: unknown): Promise<void> {
  await attempt(async () => {
    if (action === "delete") {
      await request(jobPath(job.id), { method: "DELETE" });
      forget(job.id);
    } else {
      keep([await request<Job>(`${jobPath(job.id)}/${action}`, { method: "POST", body })]);
    }
  });
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
