/** The jobs of the table: their order, and which of two answers about a job is the newer one. */

import type { Job } from "../api/types";

/**
 * Returns the list with its newest page in place. What stood among that page before and is missing now has been deleted. If the
 * page does not reach the known list, jobs between them are missing, so only the page is returned.
 */
export function listedAfter(known: readonly string[], newest: string[], isWhole: boolean): string[] {
  const last = known.indexOf(newest.at(-1)!);
  if (isWhole || last < 0) return newest;
  const seen = new Set(newest);
  return [...newest, ...known.slice(last + 1).filter((id) => !seen.has(id))];
}

/** Says whether an answer about a job is newer than the known one. A list that was read before a change may arrive after the change's answer. */
export function isNewer(job: Job, known: Job | undefined): boolean {
  if (!known) return true;
  if (job.version !== known.version) return job.version > known.version;
  if (job.last_no !== known.last_no) return job.last_no > known.last_no;
  return job.message !== known.message || job.progress?.step !== known.progress?.step;
}
