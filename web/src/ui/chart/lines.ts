/** What a chart draws: the lines of jobs, put together into families, as series for uPlot. */

import type uPlot from "uplot";
import { pausesIn, sharedPauses } from "../../lib/pauses";
import { type Curve, band, smooth } from "../../lib/smooth";
import type { Columns, Range } from "../../lib/table";
import type { Axis } from "../../model/curves";

/** A job as charts show it. */
export interface Look {
  id: string;
  label: string;
  color: string;
  startedAt: number;
  /** Lines of one family are drawn as their mean, with a band from the lowest to the highest. */
  family?: string;
}

export interface Line extends Look {
  curve: Curve;
}

export interface Settings {
  axis: Axis;
  isLog: boolean;
  isLogX: boolean;
  smoothing: number;
  withoutOutliers: boolean;
}

/** Lines with the same family beside each other; a line without one is a family by itself. */
export function familiesOf(lines: Line[]): Line[][] {
  const families = new Map<string, Line[]>();
  lines.forEach((line, index) => {
    const key = line.family === undefined ? `line ${index}` : `family ${line.family}`;
    families.set(key, [...(families.get(key) ?? []), line]);
  });
  return [...families.values()];
}

/** How many drawn series each family has: mean, high and low of several lines, or one line and its smoothed form. */
export const seriesPerFamily = (families: Line[][], isSmooth: boolean) => families.map((members) => (members.length > 1 ? 3 : isSmooth ? 2 : 1));

/** A series whose line ends before each pause and begins again behind it. */
export type BrokenSeries = uPlot.Series & { pauses?: Range[] };

/** Returns how a line spans places without a value. It spans all of them but the pauses. */
function spanning(pauses: Range[]): BrokenSeries {
  if (pauses.length === 0) return { spanGaps: true };
  const gaps: uPlot.Series.GapsRefiner = (u) => pauses.map(([from, to]) => [u.valToPos(from, "x", true), u.valToPos(to, "x", true)]);
  return { spanGaps: false, gaps, pauses };
}

/** Series for uPlot: with smoothing the raw line stands faint behind; of a family the mean stands before its band. */
export function prepare(families: Line[][], settings: Settings): { series: BrokenSeries[]; bands: uPlot.Band[]; columns: Columns[]; isLog: boolean; pauses: Range[] } {
  const allPauses: Range[] = [];
  const series: BrokenSeries[] = [{ label: "x" }];
  const bands: uPlot.Band[] = [];
  const isSmooth = settings.smoothing > 0;
  // A logarithmic axis holds positive values only. Others are left out, and without a positive value the axis stays linear.
  const isLog = settings.isLog && families.some((members) => members.some((line) => line.curve.y.some((value) => value > 0)));
  const drawable = ({ x, y }: Curve): Curve => ({ x, y: isLog ? y.map((value) => (value > 0 ? value : NaN)) : y });
  const columns = families.map((members): Columns => {
    const { label, color } = members[0]!;
    const curve = drawable(members[0]!.curve);
    const ownPauses = members.map((line) => (settings.axis === "time" ? pausesIn(line.curve.x) : []));
    const pauses = settings.axis === "time" ? sharedPauses(members.map((line) => line.curve), ownPauses) : [];
    const spans = spanning(pauses);
    allPauses.push(...pauses);
    if (members.length > 1) {
      const found = band(members.map((line) => drawable(line.curve)).map((part) => ({ x: part.x, y: smooth(part, settings.smoothing) })), ownPauses);
      series.push({ label, stroke: color, width: 2, ...spans });
      series.push({ label: "max", stroke: `${color}55`, ...spans, points: { show: false } }, { label: "min", stroke: `${color}55`, ...spans, points: { show: false } });
      bands.push({ series: [series.length - 2, series.length - 1], fill: `${color}22` });
      return { x: found.x, ys: [found.mean, found.high, found.low] };
    }
    series.push({ label, stroke: isSmooth ? `${color}44` : color, width: isSmooth ? 1 : 1.5, ...spans });
    if (!isSmooth) return { x: curve.x, ys: [curve.y] };
    series.push({ label, stroke: color, width: 2, ...spans });
    return { x: curve.x, ys: [curve.y, smooth(curve, settings.smoothing)] };
  });
  return { series, bands, columns, isLog, pauses: allPauses };
}
