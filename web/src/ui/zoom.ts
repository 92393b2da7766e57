/** The part of x that the charts of one group show. */

import { type Signal, signal } from "@preact/signals";
import type { Range } from "../lib/table";

const ranges = new Map<string, Signal<Range | null>>();

export function showAllOfX(): void {
  for (const range of ranges.values()) range.value = null;
}

/** Returns the group's part of x, which is null while all is shown. */
export function rangeOf(group: string): Signal<Range | null> {
  const range = ranges.get(group) ?? signal<Range | null>(null);
  ranges.set(group, range);
  return range;
}
