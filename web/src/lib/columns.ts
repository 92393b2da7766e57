/** The columns of the jobs table: what each shows and how it sorts. Metric and spec columns are added by name. */

import type { Job } from "../api/types";
import { formatAge, formatDuration, formatNumber, jobTitle, sentence } from "./format";
import type { Flat } from "./flatten";
import { showValue } from "./flatten";
import { lowerIsBetter } from "./groups";

export interface Extra {
  spec: Flat | undefined;
  summary: Map<string, { last: number; min: number; max: number }> | undefined;
  now: number;
}

export interface Column {
  id: string;
  title: string;
  width: number;
  text: (job: Job, extra: Extra) => string;
  /** What the column sorts by. Missing values sort last in both directions. */
  value: (job: Job, extra: Extra) => number | string | null;
  isNumber?: boolean;
}

const time = (at: string | null) => (at ? Date.parse(at) : null);

function runningSeconds(job: Job, now: number): number {
  const isRunning = ["starting", "running", "stopping"].includes(job.state);
  const since = isRunning && job.started_at ? (now - Date.parse(job.started_at)) / 1000 : 0;
  return Math.max(job.running_s, since);
}

/** Why a job is where it is: its error, the service's sentence, or the bare reason. */
export const reasonOf = (job: Job): string => job.error?.message ?? job.message ?? sentence(job.reason);

const share = (job: Job) => (job.progress?.max_steps ? job.progress.step / job.progress.max_steps : null);

export const COLUMNS: Column[] = [
  { id: "name", title: "Name", width: 180, text: jobTitle, value: (job) => jobTitle(job).toLowerCase() },
  { id: "state", title: "State", width: 104, text: (job) => job.state, value: (job) => job.state },
  {
    id: "why", title: "Reason", width: 178, text: reasonOf, value: reasonOf,
  },
  {
    id: "progress", title: "Progress", width: 128, isNumber: true,
    // A loop of one's own may not say how many steps it will take.
    text: (job) => (share(job) !== null ? `${Math.floor(share(job)! * 100)} %` : job.progress?.step ? `step ${formatNumber(job.progress.step)}` : ""), value: share,
  },
  {
    id: "eta", title: "Left", width: 100, isNumber: true,
    text: (job) => (job.state === "running" && job.progress?.eta_s ? formatDuration(job.progress.eta_s) : ""),
    value: (job) => (job.state === "running" ? (job.progress?.eta_s ?? null) : null),
  },
  { id: "created", title: "Created", width: 104, text: (job, { now }) => formatAge(job.created_at, now), value: (job) => time(job.created_at) },
  { id: "started", title: "Started", width: 104, text: (job, { now }) => (job.started_at ? formatAge(job.started_at, now) : ""), value: (job) => time(job.started_at) },
  { id: "finished", title: "Finished", width: 104, text: (job, { now }) => (job.finished_at ? formatAge(job.finished_at, now) : ""), value: (job) => time(job.finished_at) },
  { id: "running", title: "Ran", width: 100, isNumber: true, text: (job, { now }) => (job.started_at ? formatDuration(runningSeconds(job, now)) : ""), value: (job, { now }) => runningSeconds(job, now) },
  { id: "tags", title: "Tags", width: 84, text: (job) => job.tags.join(", "), value: (job) => job.tags.join() || null },
  { id: "project", title: "Project", width: 110, text: (job) => job.project, value: (job) => job.project },
  { id: "node", title: "Node", width: 110, text: (job) => job.nodes.join(", ") || (job.node ?? ""), value: (job) => job.nodes.join(", ") || job.node },
  { id: "attempt", title: "Attempt", width: 80, isNumber: true, text: (job) => String(job.attempt), value: (job) => job.attempt },
  { id: "priority", title: "Priority", width: 80, isNumber: true, text: (job) => String(job.priority), value: (job) => job.priority },
  { id: "id", title: "Id", width: 330, text: (job) => job.id, value: (job) => job.id },
];

export const DEFAULT_COLUMNS = ["name", "state", "progress", "eta", "metric:loss:last", "metric:eval_loss:best", "created", "running", "tags", "why"];

/** `metric:loss:min` and `spec:training.seed` are columns like any other. Returns null for a name that is not a column. */
export function columnOf(id: string): Column | null {
  const fixed = COLUMNS.find((column) => column.id === id);
  if (fixed) return fixed;
  const [kind, ...rest] = id.split(":");
  if (kind === "metric" && rest.length >= 2) return metricColumn(id, rest.slice(0, -1).join(":"), rest.at(-1)!);
  if (kind === "spec" && rest.length) return specColumn(id, rest.join(":"));
  return null;
}

/** True for a column that needs the spec of each job. */
export const needsSpec = (id: string) => id.startsWith("spec:");
/** True for a column that needs the summary of each job's metrics. */
export const needsSummary = (id: string) => /^metric:.*:(min|max|best)$/.test(id);

function metricColumn(id: string, name: string, which: string): Column {
  const isMost = which === "max" || (which === "best" && !lowerIsBetter(name));
  const value = (job: Job, { summary }: Extra) => {
    const latest = job.metrics[name];
    // NaN and infinities come as text, and a diverged job must not look like one without a value.
    if (which === "last") return typeof latest === "number" || typeof latest === "string" ? latest : null;
    const row = summary?.get(name);
    if (!row) return null;
    const found = isMost ? row.max : row.min;
    return Number.isFinite(found) ? found : String(found);
  };
  return { id, title: which === "last" ? name : `${which} ${name}`, width: 108, isNumber: true, value, text: (job, extra) => formatNumber(value(job, extra)) };
}

function specColumn(id: string, path: string): Column {
  const value = (_: Job, { spec }: Extra) => {
    const found = spec?.get(path);
    return found === undefined || found === null ? null : typeof found === "number" ? found : showValue(found);
  };
  return { id, title: path.split(".").at(-1)!, width: 120, value, text: (job, extra) => formatNumber(value(job, extra)) };
}

export function compareValues(a: number | string | null, b: number | string | null, isDescending: boolean): number {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  return isDescending ? -order : order;
}

/** Whether the job holds every word of the search in its name, id, tags, node, state or reason. */
export function matches(job: Job, search: string): boolean {
  const text = [job.name, job.id, job.state, job.reason, job.message, job.node, job.project, ...job.tags].join(" ").toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}
