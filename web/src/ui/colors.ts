import { selectedIds } from "../model/selection";

/** One colour for each job, the same in table, charts and legends. The order is readable on light and on dark. */
export const COLORS = ["#2f7fd8", "#e07b00", "#1f9d6b", "#c2418f", "#8a63d2", "#b5892f", "#00919b", "#d1495b", "#5b7f1b", "#7d6a5a"];

const given = new Map<string, string>();

/** Returns the colour of a job. A new job takes the colour that the fewest selected jobs have. */
export function colorOf(id: string): string {
  const known = given.get(id);
  if (known) return known;
  const selected = new Set(selectedIds());
  for (const other of given.keys()) if (!selected.has(other)) given.delete(other);
  const taken = [...given.values()];
  const uses = (color: string) => taken.filter((other) => other === color).length;
  const color = COLORS.reduce((best, other) => (uses(other) < uses(best) ? other : best));
  given.set(id, color);
  return color;
}
