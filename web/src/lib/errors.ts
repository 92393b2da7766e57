/** What a refused request says: the fault, and what would work. */

/** Names a field as a form does: "states: must be one of…" for "/states/0: must be one of…". */
const withField = (detail: string) => detail.replace(/^\/: /, "").replace(/^\/(?:query\/)?(\w+)(?:\/\d+)?: /, "$1: ");

/** Returns the fault and a hint: the answer's own, or that of its only wrong field. */
export function errorText(detail: string, hint: string | null, problems: { hint?: string | null }[]): string {
  return [withField(detail), hint ?? (problems.length === 1 ? problems[0]!.hint : null)].filter(Boolean).join(" — ");
}
