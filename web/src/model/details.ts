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

async function once(key: string, work: () => Promise<void>): Promise<void> {
  if (asked.has(key)) return;
  asked.add(key);
  try {
    await work();
    detailsVersion.value += 1;
  } catch {
    asked.delete(key);
  }
}

export function needSpec(id: string): void {
  void once(`spec ${id}`, async () => {
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
  void once(`summary ${job.id} ${Math.floor(job.last_no / 200)} ${job.state}`, async () => {
    const { data } = await request<{ data: SummaryRow[] }>(`/jobs/${job.id}/metrics/summary`);
    const rows: Summary = new Map();
    for (const row of data) {
      if (row.last && row.min && row.max) rows.set(row.name, { last: row.last.value, min: row.min.value, max: row.max.value });
    }
    summaries.set(job.id, { at: Date.now(), rows });
  });
}

export const metricNames = () => [...new Set([...summaries.values()].flatMap(({ rows }) => [...rows.keys()]))].sort();
export const specPaths = () => [...new Set([...specs.values()].flatMap((flat) => [...flat.keys()]))].sort();
