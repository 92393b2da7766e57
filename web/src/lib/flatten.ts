/** Specs as flat rows, so that two of them can be compared and a table can show any value. */

export type Flat = Map<string, unknown>;

/** Returns every leaf of a JSON value by its dotted path. Lists are leaves where they hold plain values only. */
export function flatten(value: unknown, path = "", into: Flat = new Map()): Flat {
  if (Array.isArray(value) && value.some((item) => item !== null && typeof item === "object")) {
    value.forEach((item, index) => flatten(item, join(path, String(index)), into));
  } else if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    for (const [key, item] of Object.entries(value)) flatten(item, join(path, key), into);
  } else if (path) {
    into.set(path, value);
  }
  return into;
}

const join = (path: string, key: string) => (path ? `${path}.${key}` : key);

export interface DiffRow {
  path: string;
  values: unknown[];
}

/** Returns the paths at which the specs differ, each with every spec's value. `undefined` means that a spec has no such path. */
export function diff(specs: Flat[], ignore: ReadonlySet<string> = new Set()): DiffRow[] {
  const paths = [...new Set(specs.flatMap((spec) => [...spec.keys()]))].sort();
  return paths
    .filter((path) => !ignore.has(path))
    .map((path) => ({ path, values: specs.map((spec) => spec.get(path)) }))
    .filter(({ values }) => new Set(values.map((value) => JSON.stringify(value))).size > 1);
}

export function showValue(value: unknown): string {
  if (value === undefined) return "—";
  if (Array.isArray(value) && value.length) return value.map(showValue).join(", ");
  return typeof value === "string" ? value : JSON.stringify(value);
}
