/** Stretches of wall time in which a job logged nothing, because it was paused, queued or stopped. */

import type { Range } from "./table";

const SHORTEST_SECONDS = 60;
/** A distance between two points is a pause if it is so many times as long as most distances near it. */
const TIMES = 10;
/** Distances on each side that are compared. Points far away may have other distances, because history is down-sampled. */
const NEAR = 4;

/** Returns the pauses between points at these times in seconds. */
export function pausesIn(x: number[]): Range[] {
  const distances = x.slice(1).map((at, index) => at - x[index]!);
  return distances.flatMap((distance, index): Range[] => {
    if (!(distance >= SHORTEST_SECONDS)) return [];
    const near = [...distances.slice(Math.max(0, index - NEAR), index), ...distances.slice(index + 1, index + 1 + NEAR)].sort((a, b) => a - b);
    const usual = near[near.length >> 1];
    return usual !== undefined && distance > TIMES * usual ? [[x[index]!, x[index + 1]!]] : [];
  });
}

export const isInside = (pauses: Range[], at: number) => pauses.some(([from, to]) => from < at && at < to);

/** Returns the stretches between the first and the last point in which none of these jobs trained. */
export function sharedPauses(curves: { x: number[] }[], pauses: Range[][]): Range[] {
  const trained = curves.flatMap(({ x }, index): Range[] => {
    const [first, last] = [x.find(Number.isFinite), x.findLast(Number.isFinite)];
    if (first === undefined || last === undefined) return [];
    const ends = [first, ...pauses[index]!.flat(), last];
    return ends.flatMap((from, place): Range[] => (place % 2 ? [] : [[from, ends[place + 1]!]]));
  });
  const gaps: Range[] = [];
  let until = Infinity;
  for (const [from, to] of trained.sort((a, b) => a[0] - b[0])) {
    if (from - until >= SHORTEST_SECONDS) gaps.push([until, from]);
    until = until === Infinity ? to : Math.max(until, to);
  }
  return gaps;
}
