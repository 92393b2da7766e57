/** One metric of the selected jobs. Drawn only while it can be seen, and one chart in each task of the page. */

import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { formatDurationTicks, formatNumber, formatTicks } from "../lib/format";
import { drawing, soon } from "../lib/slices";
import { rangeWithoutOutliers } from "../lib/smooth";
import { type Range, tableOf } from "../lib/table";
import { curveOf, curvesVersion, wantFiner } from "../model/curves";
import { panning, zooming } from "./chart/gestures";
import { Legend, type Pointed } from "./chart/Legend";
import { type Line, type Look, type Settings, familiesOf, prepare } from "./chart/lines";
import { saveCsv, savePng, saveSvg } from "./chart/save";
import { Menu } from "./Menu";
import { colorsVersion } from "./theme";
import { rangeOf } from "./zoom";

interface Props {
  title: string;
  looks: Look[];
  settings: Settings;
  /** True if the other charts have another axis, so that this one names its own. */
  isOwnAxis?: boolean;
}

const HEIGHT = 200;
const LARGE_HEIGHT = 440;

export function Chart({ title, looks, settings, isOwnAxis = false }: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shape = useRef("");
  const before = useRef<Line[]>([]);
  const vertical = useRef<Range | null>(null);
  const limits = useRef<[number, number] | null>(null);
  const pointed: Pointed = useSignal(null);
  const [isVisible, setVisible] = useState(false);
  const [isLarge, setLarge] = useState(false);
  const height = isLarge ? LARGE_HEIGHT : HEIGHT;
  const { axis } = settings;
  /** Charts with the same axis share the cursor and the zoom. */
  const sync = axis;
  const version = isVisible ? curvesVersion.value : null;
  const range = isVisible ? rangeOf(sync).value : null;

  useEffect(() => {
    const observer = new IntersectionObserver(([entry]) => setVisible(entry!.isIntersecting), { rootMargin: "200px" });
    observer.observe(frame.current!);
    return () => observer.disconnect();
  }, []);

  const lines = useMemo(() => {
    if (version === null) return before.current;
    return looks.map((look) => ({ ...look, curve: curveOf(look.id, title, axis, look.startedAt) })).filter((line) => line.curve.x.some(Number.isFinite));
  }, [version, looks, title, axis]);
  before.current = lines;
  const families = useMemo(() => familiesOf(lines), [lines]);
  const isSmooth = settings.smoothing > 0;
  const key = JSON.stringify([lines.map((line) => [line.id, line.label, line.color, line.family]), { ...settings, smoothing: isSmooth }, height, colorsVersion.value]);

  const draw = () => {
    const element = frame.current;
    if (!element) return;
    const { series, bands, columns, isLog, pauses } = prepare(families, settings);
    const data = tableOf(columns, Math.max(100, element.clientWidth), range, settings.isLogX) as uPlot.AlignedData;
    if (data[0].length === 0) return;
    limits.current = settings.withoutOutliers && !isLog ? rangeWithoutOutliers(lines.flatMap((line) => line.curve.y)) : null;
    const ownShape = `${key} ${isLog} ${pauses} ${limits.current === null}`;
    const show = (u: uPlot) => {
      if (range) u.setScale("x", { min: range[0], max: range[1] });
      if (vertical.current) u.setScale("y", { min: vertical.current[0], max: vertical.current[1] });
    };
    if (plot.current && shape.current === ownShape) {
      const present = plot.current;
      present.batch(() => {
        present.setData(data, range === null);
        show(present);
      });
      return;
    }
    plot.current?.destroy();
    shape.current = ownShape;
    plot.current = new uPlot(
      {
        width: element.clientWidth,
        height,
        series,
        bands,
        legend: { show: false },
        cursor: {
          // The zoom is shared by rangeOf, so that each chart is drawn in a task of its own, and charts that are mounted later have it.
          sync: { key: sync, setSeries: false, filters: { pub: (type) => type === "mousemove", sub: () => true } },
          drag: { x: true, y: true, uni: 20, setScale: false },
          points: { size: 6 },
          hover: { skip: [null, undefined] },
          bind: zooming(sync, vertical),
        },
        scales: { x: { time: axis === "time", distr: settings.isLogX ? 3 : 1 }, y: { distr: isLog ? 3 : 1, ...(limits.current ? { range: () => limits.current! } : {}) } },
        axes: axes(element, settings),
        padding: [8, 18, 0, 0],
        plugins: [panning(sync)],
        hooks: {
          setCursor: [
            (u) => {
              const index = u.cursor.idx;
              soon.add(pointed, () => (pointed.value = index == null ? null : u.data.slice(1).map((column) => valueNear(column as (number | null)[], index))));
            },
          ],
        },
      },
      data,
      element,
    );
    show(plot.current);
  };

  /** Draws one series as it is and all others faint, or with null all as they are. */
  const stress = useMemo(() => (series: number | null) => plot.current?.setSeries(series, { focus: true }), []);

  const isDrawn = isVisible && lines.length > 0;
  useEffect(() => {
    if (range === null) vertical.current = null;
    else if (isDrawn) looks.forEach(({ id, startedAt }) => wantFiner({ id, name: title, axis, startedAt, range }));
  }, [range, isDrawn, looks, title, axis]);
  useEffect(() => {
    if (isDrawn) drawing.add(plot, draw);
    else {
      drawing.remove(plot);
      plot.current?.destroy();
      plot.current = null;
    }
  }, [isDrawn, lines, key, settings.smoothing, range]);

  useEffect(() => {
    const observer = new ResizeObserver(() => {
      if (plot.current && frame.current) plot.current.setSize({ width: frame.current.clientWidth, height: plot.current.height });
    });
    observer.observe(frame.current!);
    return () => {
      observer.disconnect();
      drawing.remove(plot);
      soon.remove(pointed);
      plot.current?.destroy();
      plot.current = null;
    };
  }, []);

  return (
    <figure class={`chart ${isLarge ? "large" : ""}`} data-metric={title}>
      <figcaption>
        <span class="chart-title">{title}</span>
        {isOwnAxis && <small> over {axis} time</small>}
        <button type="button" class="quiet" aria-pressed={isLarge} aria-label={`Enlarge ${title}`} title={isLarge ? "Smaller" : "Larger"} onClick={() => setLarge(!isLarge)}>{isLarge ? "−" : "+"}</button>
        <Menu label="···" name={`Save ${title}`} class="right">
          <button type="button" onClick={() => savePng(plot.current, title, families)}>PNG</button>
          <button type="button" onClick={() => saveSvg(plot.current, title, families)}>SVG</button>
          <button type="button" onClick={() => saveCsv(lines, title, axis)}>CSV</button>
        </Menu>
      </figcaption>
      <div
        ref={frame}
        class="chart-plot"
        role="img"
        aria-label={describe(title, lines)}
        title="Drag to zoom, Shift and drag to pan, double-click to see all"
        style={{ minHeight: `${height}px` }}
      >
        {isVisible && lines.length === 0 && <p class="chart-empty">{`No value of ${title} with ${axis === "epoch" ? "an epoch" : axis === "step" ? "a step" : "a time"} yet.`}</p>}
      </div>
      {before.current.length > 0 ? <Legend title={title} families={families} isSmooth={isSmooth} pointed={pointed} stress={stress} /> : <ul class="legend">{looks.map((look) => <li key={look.id}>&nbsp;</li>)}</ul>}
    </figure>
  );
}

function valueNear(column: (number | null)[], index: number): number | null {
  for (let distance = 0; distance < 50; distance += 1) {
    const value = column[index - distance] ?? column[index + distance];
    if (value != null) return value;
  }
  return null;
}

function axes(element: HTMLElement, settings: Settings): uPlot.Axis[] {
  const { color, outlineColor } = getComputedStyle(element);
  const grid = { stroke: outlineColor, width: 1 };
  const common = { stroke: color, grid, ticks: { show: false }, font: "11px Inter, system-ui, sans-serif" };
  const seconds = (_: uPlot, values: number[]) => formatDurationTicks(values);
  return [
    // Labels of a time have two lines, the date below the hour.
    { ...common, size: settings.axis === "time" ? 40 : 26, gap: 4, ...(settings.axis === "relative" ? { values: seconds, space: 90 } : {}) },
    { ...common, gap: 6, size: (_, labels) => Math.max(52, 12 + 7 * Math.max(0, ...(labels ?? []).map((label) => label.length))), values: (_, values) => formatTicks(values) },
  ];
}

function describe(title: string, lines: Line[]): string {
  const parts = lines.slice(0, 5).map((line) => `${line.label} last ${formatNumber(line.curve.y.at(-1))}`);
  return `${title}: ${parts.join(", ") || "no value yet"}`;
}
