/** The points of one curve, as columns that share their index, and a finer part of them that a zoom shows. */

import { type Range, halfOf } from "./table";

export interface Points {
  step: number[];
  epoch: number[];
  time: number[];
  y: number[];
  /** True if every point that the job logged is here. */
  isExact: boolean;
}

/** Points of a range of steps, closer together than those of the whole curve. */
export interface Part {
  steps: Range;
  points: Points;
}

/** Points that a curve may have before half of them are left out. */
const MOST_POINTS = 4000;

export const noPoints = (): Points => ({ step: [], epoch: [], time: [], y: [], isExact: true });

const columnsOf = (points: Points) => [points.step, points.epoch, points.time, points.y];

/** Adds a point at the end. With `isRepeated`, points of this step and later ones are replaced. */
export function addPoint(points: Points, [step, epoch, time, y]: [number, number, number, number], isRepeated: boolean): void {
  while (isRepeated && points.step.length && points.step.at(-1)! >= step) for (const column of columnsOf(points)) column.pop();
  [step, epoch, time, y].forEach((value, index) => columnsOf(points)[index]!.push(value));
  if (points.y.length <= MOST_POINTS) return;
  const kept = halfOf(points.y);
  for (const column of columnsOf(points)) column.splice(0, column.length, ...kept.map((index) => column[index]!));
  points.isExact = false;
}

/** Leaves out the points after a step, because the job goes back to this step. */
export function endAt(points: Points, step: number): void {
  while (points.step.length && points.step.at(-1)! > step) for (const column of columnsOf(points)) column.pop();
}

/** Returns the curve with its finer part in place of the points of the same steps. */
export function withPart(points: Points, { steps: [first, last], points: part }: Part): Points {
  const behind = points.step.findIndex((step) => step > last);
  const before = points.step.findIndex((step) => step >= first);
  const join = (column: number[], finer: number[]) => [...column.slice(0, before < 0 ? undefined : before), ...finer, ...(behind < 0 ? [] : column.slice(behind))];
  return {
    step: join(points.step, part.step),
    epoch: join(points.epoch, part.epoch),
    time: join(points.time, part.time),
    y: join(points.y, part.y),
    isExact: false,
  };
}

/** Returns the steps of the points in a range of x, up to the next point on either side. Returns null if there are none. */
export function stepsIn(x: number[], step: number[], [from, to]: Range): Range | null {
  let [first, last] = [-1, -1];
  x.forEach((at, index) => {
    if (at <= from || first < 0) first = index;
    if (at < to || last < 0) last = index + 1;
  });
  if (first < 0) return null;
  const steps: Range = [step[first]!, step[Math.min(last, x.length - 1)]!];
  return steps[0] < steps[1] ? steps : null;
}

/** Returns true if the service has finer points of these steps than the curve and its present part. */
export function hasFiner(points: Points, part: Part | undefined, [first, last]: Range): boolean {
  if (points.isExact) return false;
  const isInside = part !== undefined && part.steps[0] <= first && last <= part.steps[1];
  return !isInside || !(part.points.isExact || (part.steps[0] === first && part.steps[1] === last));
}
