/** The order of the jobs in the table. */

/** Returns the list with its newest page in place. What stood among that page before and is missing now has been deleted. */
export function listedAfter(known: readonly string[], newest: string[], isWhole: boolean): string[] {
  if (isWhole) return newest;
  const seen = new Set(newest);
  const last = known.indexOf(newest.at(-1)!);
  return [...newest, ...known.slice(last + 1).filter((id) => !seen.has(id))];
}
