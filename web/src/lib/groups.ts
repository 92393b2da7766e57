/** Which chart stands under which heading. */

export interface Group {
  title: string;
  names: string[];
}

/** `eval_loss` and `eval/loss` belong to "eval"; a name without a prefix that several share belongs to "train". */
export function groupMetrics(names: Iterable<string>): Group[] {
  const groups = new Map<string, string[]>();
  for (const name of [...names].sort(compareNames)) {
    const title = prefixOf(name);
    groups.set(title, [...(groups.get(title) ?? []), name]);
  }
  const order = (title: string) => ["train", "eval", "test", "system"].indexOf(title);
  return [...groups.entries()]
    .map(([title, members]) => ({ title, names: members }))
    .sort((a, b) => (order(a.title) + 1 || 9) - (order(b.title) + 1 || 9) || a.title.localeCompare(b.title));
}

function prefixOf(name: string): string {
  const slash = name.indexOf("/");
  if (slash > 0) return name.slice(0, slash);
  const known = /^(eval|test|train|system|gpu|cpu|memory)_/.exec(name);
  if (!known) return "train";
  return ["gpu", "cpu", "memory"].includes(known[1]!) ? "system" : known[1]!;
}

/** Losses first, then by name. */
function compareNames(a: string, b: string): number {
  const rank = (name: string) => (name === "loss" ? 0 : name.endsWith("loss") ? 1 : /runtime|per_second|flos/.test(name) ? 3 : 2);
  return rank(a) - rank(b) || a.localeCompare(b);
}

/** Whether a smaller value of this metric is better. */
export function lowerIsBetter(name: string): boolean {
  return /loss|error|perplexity|mse|mae|wer|cer|runtime/i.test(name);
}
