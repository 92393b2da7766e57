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
    .sort((a, b) => (order(a.title) + 1 || 9) - (order(b.title) + 1 || 9) || inOrder(a.title, b.title));
}

function prefixOf(name: string): string {
  const slash = name.indexOf("/");
  if (slash > 0) return name.slice(0, slash);
  const known = /^(eval|test|train|system|gpu|cpu|memory)_/.exec(name);
  if (!known) return "train";
  return ["gpu", "cpu", "memory"].includes(known[1]!) ? "system" : known[1]!;
}

/** Compares names so that `layer_2` stands before `layer_10`. */
const inOrder = new Intl.Collator("en", { numeric: true }).compare;

/** Losses first, then by name. */
function compareNames(a: string, b: string): number {
  const rank = (name: string) => (name === "loss" ? 0 : name.endsWith("loss") ? 1 : /runtime|per_second|flos/.test(name) ? 3 : 2);
  return rank(a) - rank(b) || inOrder(a, b);
}

/** Whether a smaller value of this metric is better. */
export function lowerIsBetter(name: string): boolean {
  return /loss|error|perplexity/i.test(name) || hasWord(name, "r?mse|mae|mape|wer|cer|ppl|nll");
}

/** Short words count only where they stand alone: `answer_f1` is no word error rate. */
const hasWord = (name: string, words: string) => new RegExp(`(^|[^a-z])(${words})([^a-z]|$)`, "i").test(name);

/** A schedule, a speed or a counter has no best value. */
export const hasBest = (name: string): boolean => !/learning_rate|epoch|tokens|runtime|per_second|^system\//i.test(name) && !hasWord(name, "lr|steps?|nan|(?<!acc_)norm");

/** The best finite value of a metric, or undefined where there is none. */
export function bestOf(values: number[], name: string): number | undefined {
  const finite = values.filter(Number.isFinite);
  if (finite.length === 0 || !hasBest(name)) return undefined;
  const isLow = lowerIsBetter(name);
  return finite.reduce((best, value) => (isLow ? Math.min(best, value) : Math.max(best, value)));
}

/** Metrics that a run has once, at its end. They are figures for a table, not curves. */
export const isFigure = (name: string): boolean => /^train_(loss|runtime|samples_per_second|steps_per_second)$|^total_flos$/.test(name);

export interface Family<J> {
  title: string;
  jobs: J[];
}

/**
 * Puts jobs that belong together into families, in the order in which they come. `by` is "seeds" (equal specs but for
 * seeds and names), "tags", "all", or a path of the spec.
 */
export function familiesOf<J extends { id: string; name: string | null; tags: string[] }>(jobs: J[], by: string, specOf: (id: string) => ReadonlyMap<string, unknown> | undefined): Family<J>[] {
  const families = new Map<string, J[]>();
  for (const job of jobs) {
    const key = by === "all" ? "" : by === "tags" ? job.tags.join(", ") : by === "seeds" ? withoutSeeds(specOf(job.id)) : JSON.stringify(specOf(job.id)?.get(by));
    families.set(key, [...(families.get(key) ?? []), job]);
  }
  return [...families].map(([key, members]) => ({ title: titleOf(key, members, by), jobs: members }));
}

const withoutSeeds = (spec: ReadonlyMap<string, unknown> | undefined) =>
  JSON.stringify([...(spec ?? [])].filter(([path]) => path !== "name" && !/(^|[._])seed$/.test(path)).sort());

function titleOf(key: string, members: { id: string; name: string | null }[], by: string): string {
  if (by === "all") return "all";
  if (by === "tags") return key || "no tag";
  if (by !== "seeds") return `${by.split(".").at(-1)} ${key ?? "—"}`;
  const names = members.map((job) => job.name ?? job.id.slice(-8));
  const shared = names.reduce((a, b) => a.slice(0, [...a].findIndex((char, index) => char !== b[index]) >>> 0));
  return names.length === 1 ? names[0]! : shared.replace(/[-_ .]*(s|seed)?[-_ .=]*$/i, "") || names[0]!;
}
