import type { components } from "./schema";

type Schemas = components["schemas"];
export type Job = Schemas["Job"];
export type JobState = Schemas["JobState"];
export type JobList = Schemas["JobList"];
export type Action = Schemas["Action"];
export type Queue = Schemas["Queue"];
export type UploadedFile = Schemas["File"];
export type Validation = Schemas["Validation"];
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** One immutable fact about a job, as the stream sends it. */
export interface JobEvent {
  job: string;
  no: number;
  attempt: number;
  rank: number;
  kind: "state" | "log" | "eval" | "checkpoint" | "progress" | "line" | "system" | "do" | "note" | "gap" | "done";
  at: string;
  step: number | null;
  epoch: number | null;
  data: Record<string, unknown>;
}

export const FINAL: ReadonlySet<JobState> = new Set<JobState>(["succeeded", "failed", "cancelled"]);
export const STATES: JobState[] = ["queued", "starting", "running", "stopping", "paused", "succeeded", "failed", "cancelled"];
