/** What can be done with a job and with a checkpoint now, and why not what cannot. */

import type { Job } from "../api/types";

export interface Checkpoint {
  id: string;
  attempt: number;
  step: number;
  status: string;
  bytes: number;
  files: number;
  metrics: Record<string, unknown>;
  is_best: boolean;
  pinned: boolean;
  created_at: string;
}

export interface Offer {
  name: string;
  /** The reason why it cannot be done now, or null. */
  why: string | null;
}

/** The parts of a spec that decide what a job can do. */
export interface SpecParts {
  serve?: unknown;
  export?: unknown;
  loop?: { use?: string; script?: string } | string | null;
  trainer?: { use?: string } | string | null;
  data?: { train?: unknown; eval?: unknown; split?: unknown };
  training?: { learning_rate?: number };
  optimizers?: unknown;
  resume_from?: { job?: string | null; checkpoint?: string | null } | null;
}

export const LIVE = ["save now", "evaluate now", "learning rate"] as const;
export const ELSEWHERE = "This run is on other machines and only reports here, so it is steered there.";

/** Returns the verbs of the job's menu. `saved` is null until the checkpoints are known. `refused` says why the key allows none of them. */
export function offersOf(job: Job, spec: SpecParts | undefined, saved: Checkpoint[] | null, refused: string | null = null): Offer[] {
  const offer = (name: string, why: string | null = null): Offer => ({ name, why: refused ?? why });
  if (job.external) return job.actions.map((name) => offer(name));
  const isHelper = Boolean(spec?.serve || spec?.export);
  const missing = saved && !saved.some((row) => row.status === "committed") ? "The job has no checkpoint yet." : null;
  const isLast = (name: string) => name === "cancel" || name === "delete";
  const offers = job.actions.filter((name) => name !== "do" && !isLast(name)).map((name) => offer(name, name === "fork" ? missing : null));
  if (!isHelper) offers.push(offer("copy"));
  if (job.attempt > 0 && !isHelper) offers.push(offer("try", hasOwnLoop(spec) ? "The job has a loop of its own, so only its own code can load its checkpoints." : missing));
  if (job.actions.includes("do")) offers.push(...LIVE.map((name) => offer(name, whyNotLive(name, spec))));
  return [...offers, ...job.actions.filter(isLast).map((name) => offer(name))];
}

const hasOwnLoop = (spec: SpecParts | undefined) => Boolean(spec?.loop);

function whyNotLive(name: (typeof LIVE)[number], spec: SpecParts | undefined): string | null {
  if (!spec) return null;
  const { loop, trainer, data = {} } = spec;
  if (loop) return typeof loop === "object" && loop.script ? null : "The job has a loop of its own, which takes no commands.";
  if (!data.train) return "The job does not train.";
  const ownTrainer = typeof trainer === "string" ? trainer : trainer?.use;
  if (name === "evaluate now" && !data.eval && !data.split && !ownTrainer?.includes(":")) return "The job has no data to evaluate on: data.eval is not set.";
  if (name === "learning rate" && Array.isArray(spec.optimizers) && spec.optimizers.length > 1) {
    return "Each optimizer of this job has a rate of its own. The API takes all of them: POST /jobs/{id}/do.";
  }
  return null;
}

/** Returns why each verb of a checkpoint cannot be used, or null where it can. */
export function checkpointOffers(
  job: Job, row: Checkpoint, rows: Checkpoint[], spec: SpecParts | undefined, refused: string | null = null,
): Record<"download" | "pin" | "resume" | "fork" | "try" | "delete", string | null> {
  const gone = row.status === "committed" ? null : `The checkpoint is ${row.status}.`;
  const isNeeded = !["succeeded", "failed", "cancelled"].includes(job.state) && !rows.some((other) => other !== row && other.status === "committed");
  return {
    download: gone,
    pin: refused ?? (row.pinned ? null : gone),
    resume: refused ?? gone ?? whyNotResume(job, row, rows),
    fork: refused ?? gone,
    try: refused ?? gone ?? (hasOwnLoop(spec) ? "The job has a loop of its own, so only its own code can load its checkpoints." : null),
    delete: refused ?? (["deleting", "deleted"].includes(row.status) ? gone : row.pinned ? "Unpin it first." : isNeeded ? "The job would continue from it. Cancel the job first, or wait for another checkpoint." : null),
  };
}

/** Returns the checkpoints that a resume from this one deletes. `rows` are sorted newest first. */
export const newerThan = (row: Checkpoint, rows: Checkpoint[]) => rows.slice(0, rows.indexOf(row)).filter((other) => other.status !== "deleting");

function whyNotResume(job: Job, row: Checkpoint, rows: Checkpoint[]): string | null {
  if (!job.actions.includes("resume")) return "Only a paused, failed or cancelled job can be resumed.";
  const newer = newerThan(row, rows);
  if (newer.length && job.state === "stopping") return "The job is still stopping. Wait until it is paused.";
  const pinned = newer.find((other) => other.pinned);
  return pinned ? `This would delete the checkpoint of step ${pinned.step}, which is pinned. Unpin it first, or fork.` : null;
}
