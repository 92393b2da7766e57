/** One colour for each job, the same in table, charts and legends. The order is readable on light and on dark. */
export const COLORS = ["#2f7fd8", "#e07b00", "#1f9d6b", "#c2418f", "#8a63d2", "#b5892f", "#00919b", "#d1495b", "#5b7f1b", "#7d6a5a"];

const given = new Map<string, string>();

export function colorOf(id: string): string {
  let color = given.get(id);
  if (!color) {
    color = COLORS[given.size % COLORS.length]!;
    given.set(id, color);
  }
  return color;
}
