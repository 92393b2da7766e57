/** What the table needs beside the list: specs and summaries of jobs, asked for once and for many jobs at a time. */

import { signal } from "@preact/signals";
import { request } from "../api/client";
import type { Job, JobList } from "../api/types";
import { type Flat, flatten } from "../lib/flatten";
import type { SpecParts } from "../lib/offers";

type Summary = Map<string, { last: number; min: number; max: number }>;
export const detailsVersion = signal(0);
const specs = new Map<string, Flat>();
const raw = new Map<string, unknown>();
const summaries = new Map<string, Summary>();
const asked = new Set<string>();

export const specOf = (id: string) => specs.get(id);
export const rawSpecOf = (id: string) => raw.get(id);
export const partsOf = (id: string) => raw.get(id) as SpecParts | undefined;
export const summaryOf = (id: string) => summaries.get(id);

type Part = "spec" | "summary";
/** Jobs of one request. More would be a long answer, and the first rows would wait for it. */
const MOST: Record<Part, number> = { spec: 100, summary: 50 };
/** The jobs whose part is wanted, each with the key of its newest wish. */
const wanted: Record<Part, Map<string, string>> = { spec: new Map(), summary: new Map() };
/** A failed request is not sent again sooner, however often the table is drawn meanwhile. */
const RETRY_MS = 2000;
/** How many specs and summaries are still on their way. */
export const detailsPending = signal(0);
const isReading: Record<Part, boolean> = { spec: false, summary: false };

function want(part: Part, id: string, key: string): void {
  if (asked.has(key)) return;
  asked.add(key);
  wanted[part].set(id, key);
  count();
  // All rows that are drawn in this turn go into one request.
  if (!isReading[part]) void Promise.resolve().then(() => read(part));
}

/** Reads what is wanted, some jobs at a time, until nothing is left. */
async function read(part: Part): Promise<void> {
  if (isReading[part]) return;
  isReading[part] = true;
  while (wanted[part].size) {
    const batch = [...wanted[part]].slice(0, MOST[part]);
    const ids = batch.map(([id]) => id);
    try {
      const answer = await request<JobList>(`/jobs?limit=${ids.length}&include=${part}&ids=${ids.join(",")}`);
      if (part === "spec") keepSpecs(answer.specs ?? {});
      else keepSummaries((answer.summaries ?? {}) as Record<string, SummaryRow[]>);
      const there = new Set(answer.data.map((job) => job.id));
      // What did not fit into the answer is asked for again. A job that is gone is not.
      const answered = part === "spec" ? answer.specs : answer.summaries;
      for (const [id, key] of batch) if (!there.has(id) || answered?.[id] !== undefined) settle(part, id, key);
    } catch {
      await new Promise((done) => setTimeout(done, RETRY_MS));
      // The table asks again for the rows that it still shows.
      for (const [id, key] of batch) {
        settle(part, id, key);
        asked.delete(key);
      }
    }
    detailsVersion.value += 1;
  }
  isReading[part] = false;
}

/** A job that moved while its part was read is wanted with another key, so that it is read again. */
function settle(part: Part, id: string, key: string): void {
  if (wanted[part].get(id) === key) wanted[part].delete(id);
  count();
}

function count(): void {
  detailsPending.value = wanted.spec.size + wanted.summary.size;
}

function keepSpecs(found: Record<string, unknown>): void {
  for (const [id, spec] of Object.entries(found)) {
    raw.set(id, spec);
    specs.set(id, flatten(spec));
  }
}

function keepSummaries(found: Record<string, SummaryRow[]>): void {
  for (const [id, metrics] of Object.entries(found)) {
    const rows: Summary = new Map();
    for (const row of metrics) {
      // A metric that was never finite has no extremes. Its last value, NaN, stands in their place, so that the job looks diverged.
      if (row.last) rows.set(row.name, { last: Number(row.last.value), min: Number((row.min ?? row.last).value), max: Number((row.max ?? row.last).value) });
    }
    summaries.set(id, rows);
  }
}

interface SummaryRow {
  name: string;
  last: { value: number | string } | null;
  min: { value: number } | null;
  max: { value: number } | null;
}

export const needSpec = (id: string) => want("spec", id, `spec ${id}`);

/** A job's summary is asked for again when the job has moved, or goes back in a new attempt. */
export const needSummary = (job: Job) => want("summary", job.id, `summary ${job.id} ${job.attempt} ${Math.floor(job.last_no / 200)} ${job.state}`);

export const metricNames = () => [...new Set([...summaries.values()].flatMap((rows) => [...rows.keys()]))].sort();
/** Paths that have a value in a spec. What no spec sets is not offered: `loss` is then the metric. */
export const specPaths = () => [...new Set([...specs.values()].flatMap((flat) => [...flat].filter(([, value]) => value !== null).map(([path]) => path)))].sort();
