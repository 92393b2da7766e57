/** What the table needs beside the list: specs and summaries of the rows that are shown, each asked for once. */

import { signal } from "@preact/signals";
import { request } from "../api/client";
import type { Job } from "../api/types";
import { type Flat, flatten } from "../lib/flatten";

type Summary = Map<string, { last: number; min: number; max: number }>;
export const detailsVersion = signal(0);
const specs = new Map<string, Flat>();
const raw = new Map<string, unknown>();
const summaries = new Map<string, { at: number; rows: Summary }>();
const asked = new Set<string>();

export const specOf = (id: string) => specs.get(id);
export const rawSpecOf = (id: string) => raw.get(id);
export const summaryOf = (id: string) => summaries.get(id)?.rows;

/** Requests that run at once. The others wait, so that one page never floods the service. */
const AT_ONCE = 6;
const waiting: (() => Promise<void>)[] = [];
/** How many specs and summaries are still on their way. */
export const detailsPending = signal(0);
let running = 0;

function once(key: string, work: () => Promise<void>): void {
  if (asked.has(key)) return;
  asked.add(key);
  waiting.push(() => work().catch(() => void asked.delete(key)));
  startNext();
}

function startNext(): void {
  detailsPending.value = waiting.length + running;
  while (running < AT_ONCE && waiting.length) {
    running += 1;
    void waiting.shift()!().finally(() => {
      running -= 1;
      // Redrawn for every twentieth answer, and for the last.
      if (waiting.length % 20 === 0) detailsVersion.value += 1;
      startNext();
    });
  }
}

export function needSpec(id: string): void {
  once(`spec ${id}`, async () => {
    const spec = await request<unknown>(`/jobs/${id}/spec`);
    raw.set(id, spec);
    specs.set(id, flatten(spec));
  });
}

interface SummaryRow {
  name: string;
  last: { value: number } | null;
  min: { value: number } | null;
  max: { value: number } | null;
}

/** A running job's summary is asked for again when the job has moved. */
export function needSummary(job: Job): void {
  once(`summary ${job.id} ${Math.floor(job.last_no / 200)} ${job.state}`, async () => {
    const { data } = await request<{ data: SummaryRow[] }>(`/jobs/${job.id}/metrics/summary`);
    const rows: Summary = new Map();
    for (const row of data) {
      if (row.last && row.min && row.max) rows.set(row.name, { last: row.last.value, min: row.min.value, max: row.max.value });
    }
    summaries.set(job.id, { at: Date.now(), rows });
  });
}

export const metricNames = () => [...new Set([...summaries.values()].flatMap(({ rows }) => [...rows.keys()]))].sort();
/** Paths that have a value in a spec. What no spec sets is not offered: `loss` is then the metric. */
export const specPaths = () => [...new Set([...specs.values()].flatMap((flat) => [...flat].filter(([, value]) => value !== null).map(([path]) => path)))].sort();
