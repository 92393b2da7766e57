/** Curves as one table with one column of x, small enough that a chart draws it within a frame. */

export interface Columns {
  x: number[];
  /** Columns that share these x, for example a curve and its smoothed form. */
  ys: number[][];
}

/** The first column is x. `null` is a place where a curve has no value. */
export type Table = [number[], ...(number | null)[][]];
export type Range = readonly [from: number, to: number];

/** Rows up to which a table has every x of every curve. */
const MOST_ROWS = 2000;

/**
 * Returns all curves on one x axis. If they have many different x, the range is divided into `cells` of equal width. A cell
 * has the lowest and the highest value of each curve in their order, so no spike is lost. Values outside the range are
 * left out, apart from the line's way to its edges. With `isLogX` cells have equal widths on a logarithmic axis.
 */
export function tableOf(curves: Columns[], cells: number, range: Range | null, isLogX = false): Table {
  if (isLogX) {
    const [x, ...columns] = tableOf(curves.map(inLogarithms), cells, range && [Math.log(range[0]), Math.log(range[1])]);
    return [x.map(Math.exp), ...columns];
  }
  const shared = curves[0]?.x ?? [];
  const isShared = shared.length <= MOST_ROWS && isRising(shared) && curves.every((curve) => isEqual(curve.x, shared));
  if (isShared) return [shared, ...curves.flatMap((curve) => curve.ys.map((column) => column.map(orNull)))];
  const points = curves.reduce((sum, curve) => sum + curve.x.length, 0);
  return points <= MOST_ROWS ? union(curves) : inCells(curves, cells, range ?? extent(curves));
}

/** Points at zero and below have no place on a logarithmic axis. */
function inLogarithms({ x, ys }: Columns): Columns {
  const kept = x.map((_, index) => index).filter((index) => x[index]! > 0);
  return { x: kept.map((index) => Math.log(x[index]!)), ys: ys.map((values) => kept.map((index) => values[index]!)) };
}

const orNull = (value: number) => (Number.isFinite(value) ? value : null);

function isEqual(some: number[], others: number[]): boolean {
  return some === others || (some.length === others.length && some.every((value, index) => value === others[index]));
}

const isRising = (x: number[]) => x.every((value, index) => index === 0 || value >= x[index - 1]!) && !x.some(Number.isNaN);

/** Returns the lowest and the highest x of all curves. */
export function extent(curves: { x: number[] }[]): Range {
  let [from, to] = [Infinity, -Infinity];
  for (const { x } of curves) {
    for (const at of x) {
      if (at < from) from = at;
      if (at > to) to = at;
    }
  }
  return [from, to];
}

/** Returns a range moved by a share of its width. On a logarithmic axis it is moved by a factor, so that it stays above zero. */
export function panned([from, to]: Range, share: number, isLog: boolean): Range {
  if (isLog) return [from * (to / from) ** share, to * (to / from) ** share];
  return [from + (to - from) * share, to + (to - from) * share];
}

function union(curves: Columns[]): Table {
  const x = [...new Set(curves.flatMap((curve) => curve.x))].filter(Number.isFinite).sort((a, b) => a - b);
  const places = new Map(x.map((at, row) => [at, row]));
  const columns = curves.flatMap((curve) =>
    curve.ys.map((values) => {
      const column: (number | null)[] = Array(x.length).fill(null);
      curve.x.forEach((at, index) => {
        const row = places.get(at);
        if (row !== undefined) column[row] = orNull(values[index]!);
      });
      return column;
    }),
  );
  return [x, ...columns];
}

function inCells(curves: Columns[], cells: number, [from, to]: Range): Table {
  const width = (to - from) / cells;
  const x = [from];
  for (let cell = 0; cell < cells; cell += 1) x.push(from + (cell + 0.25) * width, from + (cell + 0.75) * width);
  x.push(to);
  return [x, ...curves.flatMap((curve) => curve.ys.map((values) => cellsOf(curve.x, values, cells, [from, to])))];
}

/** Returns a column: the value at the left edge, two values for each cell, and the value at the right edge. */
function cellsOf(x: number[], values: number[], cells: number, [from, to]: Range): (number | null)[] {
  const [low, high] = [new Int32Array(cells).fill(-1), new Int32Array(cells).fill(-1)];
  const scale = cells / (to - from || 1);
  let [before, first, last, after] = [-1, -1, -1, -1];
  for (let index = 0; index < x.length; index += 1) {
    const at = x[index]!;
    if (!Number.isFinite(values[index]!) || Number.isNaN(at)) continue;
    if (at < from) before = index;
    else if (at > to) {
      if (after < 0) after = index;
    } else {
      if (first < 0) first = index;
      last = index;
      const cell = Math.min(cells - 1, Math.floor((at - from) * scale));
      if (low[cell]! < 0 || values[index]! < values[low[cell]!]!) low[cell] = index;
      if (high[cell]! < 0 || values[index]! >= values[high[cell]!]!) high[cell] = index;
    }
  }
  const between = (left: number, right: number, at: number) =>
    left < 0 || right < 0 ? null : values[left]! + ((values[right]! - values[left]!) * (at - x[left]!)) / (x[right]! - x[left]! || 1);
  const column: (number | null)[] = [between(before, first < 0 ? after : first, from)];
  for (let cell = 0; cell < cells; cell += 1) {
    const [one, other] = [Math.min(low[cell]!, high[cell]!), Math.max(low[cell]!, high[cell]!)];
    column.push(one < 0 ? null : values[one]!, other === one ? null : values[other]!);
  }
  column.push(between(last < 0 ? before : last, after, to));
  return column;
}

/** Returns the places of half of the values: of each four neighbours the lowest and the highest, so that spikes stay. */
export function halfOf(values: number[]): number[] {
  const kept: number[] = [];
  for (let start = 0; start < values.length; start += 4) {
    let [low, high] = [start, start];
    for (let index = start + 1; index < Math.min(start + 4, values.length); index += 1) {
      if (values[index]! < values[low]!) low = index;
      if (!(values[index]! <= values[high]!)) high = index;
    }
    kept.push(...(low === high ? [low] : [Math.min(low, high), Math.max(low, high)]));
  }
  return kept;
}
