/** Curves as they are drawn: smoothed, or several as one band. */

import { isInside } from "./pauses";
import type { Range } from "./table";

export interface Curve {
  x: number[];
  y: number[];
}

/** A weight of 0.9 keeps nine tenths over one of so many stretches of x. More of them would not smooth a curve of few points. */
const STRETCHES = 200;

/**
 * Returns an exponential moving average whose weight depends on the distance in x, not on the number of points.
 * A job that logs ten times as often is smoothed over the same stretch. `weight` is 0 (raw) to 0.99.
 */
export function smooth(curve: Curve, weight: number): number[] {
  const { x, y } = curve;
  const span = (x.at(-1) ?? 0) - (x[0] ?? 0);
  if (weight <= 0 || span <= 0) return y.slice();
  const scale = STRETCHES / span;
  let average = 0;
  let debias = 0;
  let previous = x[0]!;
  return y.map((value, index) => {
    if (!Number.isFinite(value)) return value;
    const keep = index === 0 ? 0 : Math.pow(weight, Math.max(0, (x[index]! - previous) * scale));
    previous = x[index]!;
    average = average * keep + value * (1 - keep);
    debias = debias * keep + (1 - keep);
    return debias > 0 ? average / debias : value;
  });
}

export interface Band {
  x: number[];
  mean: number[];
  low: number[];
  high: number[];
}

/**
 * Returns mean, minimum and maximum of several curves at every x that one of them has. Outside its own range, and in its
 * pauses, a curve does not count.
 */
export function band(curves: Curve[], pauses: Range[][] = []): Band {
  const places = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const cursors = curves.map(() => 0);
  const result: Band = { x: places, mean: [], low: [], high: [] };
  for (const place of places) {
    let sum = 0;
    let count = 0;
    let low = Infinity;
    let high = -Infinity;
    curves.forEach((curve, index) => {
      const value = isInside(pauses[index] ?? [], place) ? null : interpolate(curve, place, cursors, index);
      if (value === null) return;
      sum += value;
      count += 1;
      low = Math.min(low, value);
      high = Math.max(high, value);
    });
    result.mean.push(count ? sum / count : NaN);
    result.low.push(count ? low : NaN);
    result.high.push(count ? high : NaN);
  }
  return result;
}

function interpolate({ x, y }: Curve, place: number, cursors: number[], index: number): number | null {
  if (x.length === 0 || place < x[0]! || place > x.at(-1)!) return null;
  let cursor = cursors[index]!;
  while (cursor + 1 < x.length && x[cursor + 1]! <= place) cursor += 1;
  cursors[index] = cursor;
  const value = y[cursor]!;
  const next = y[cursor + 1];
  if (next === undefined || x[cursor] === place) return Number.isFinite(value) ? value : null;
  const share = (place - x[cursor]!) / (x[cursor + 1]! - x[cursor]!);
  const between = value + (next - value) * share;
  return Number.isFinite(between) ? between : null;
}

/** Returns the range that holds all values but the outermost two percent on each side, or null where too few are there. */
export function rangeWithoutOutliers(values: number[]): [number, number] | null {
  const finite = values.filter(Number.isFinite).sort((a, b) => a - b);
  if (finite.length < 20) return null;
  const low = finite[Math.floor(finite.length * 0.02)]!;
  const high = finite[Math.ceil(finite.length * 0.98) - 1]!;
  // A curve that is level but for few points needs some height, too: a scale without any cannot be drawn.
  const margin = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - margin, high + margin];
}
