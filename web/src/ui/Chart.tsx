/** One metric of the selected jobs. Drawn only while it can be seen, and one chart in each task of the page. */

import { type Signal, useSignal } from "@preact/signals";
import { memo } from "preact/compat";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { saveBlob } from "../api/client";
import { formatDuration, formatNumber, formatTicks } from "../lib/format";
import { bestOf } from "../lib/groups";
import { notAnyMore, soon } from "../lib/slices";
import { type Curve, band, rangeWithoutOutliers, smooth } from "../lib/smooth";
import { type Columns, type Range, tableOf } from "../lib/table";
import { type Axis, curveOf, curvesVersion, wantFiner } from "../model/curves";
import { Menu } from "./Menu";
import { colorsVersion } from "./theme";
import { rangeOf } from "./zoom";

/** A job as charts show it. */
export interface Look {
  id: string;
  label: string;
  color: string;
  startedAt: number;
  /** Lines of one family are drawn as their mean, with a band from the lowest to the highest. */
  family?: string;
}

interface Line extends Look {
  curve: Curve;
}

export interface Settings {
  axis: Axis;
  isLog: boolean;
  isLogX: boolean;
  smoothing: number;
  withoutOutliers: boolean;
}

interface Props {
  title: string;
  looks: Look[];
  settings: Settings;
  /** Charts with the same key share the cursor and the zoom. */
  sync: string;
  height?: number;
}

/** What the cursor points at, for each drawn column. */
type Pointed = Signal<(number | null)[] | null>;

export function Chart({ title, looks, settings, sync, height = 200 }: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shape = useRef("");
  const before = useRef<Line[]>([]);
  const vertical = useRef<Range | null>(null);
  const pointed: Pointed = useSignal(null);
  const [isVisible, setVisible] = useState(false);
  const { axis } = settings;
  const version = isVisible ? curvesVersion.value : null;
  const range = isVisible ? rangeOf(sync).value : null;

  useEffect(() => {
    const observer = new IntersectionObserver(([entry]) => setVisible(entry!.isIntersecting), { rootMargin: "200px" });
    observer.observe(frame.current!);
    return () => observer.disconnect();
  }, []);

  const lines = useMemo(() => {
    if (version === null) return before.current;
    return looks.map((look) => ({ ...look, curve: curveOf(look.id, title, axis, look.startedAt) })).filter((line) => line.curve.x.length > 0);
  }, [version, looks, title, axis]);
  before.current = lines;
  const families = useMemo(() => familiesOf(lines), [lines]);
  const isSmooth = settings.smoothing > 0;
  const key = JSON.stringify([lines.map((line) => [line.id, line.label, line.color, line.family]), { ...settings, smoothing: isSmooth }, colorsVersion.value]);

  const draw = () => {
    const element = frame.current;
    if (!element) return;
    const { series, bands, columns, isLog } = prepare(families, settings);
    const data = tableOf(columns, Math.max(100, element.clientWidth), range, settings.isLogX) as uPlot.AlignedData;
    if (data[0].length === 0) return;
    const ownShape = `${key} ${isLog}`;
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
    const limits = settings.withoutOutliers && !isLog ? rangeWithoutOutliers(lines.flatMap((line) => line.curve.y)) : null;
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
        scales: { x: { time: axis === "time", distr: settings.isLogX ? 3 : 1 }, y: { distr: isLog ? 3 : 1, ...(limits ? { range: () => limits } : {}) } },
        axes: axes(element, settings),
        padding: [8, 14, 0, 0],
        plugins: [panning(sync)],
        hooks: {
          setCursor: [
            (u) => {
              const index = u.cursor.idx;
              soon(pointed, () => (pointed.value = index == null ? null : u.data.slice(1).map((column) => valueNear(column as (number | null)[], index))));
            },
          ],
        },
      },
      data,
      element,
    );
    show(plot.current);
  };

  const isDrawn = isVisible && lines.length > 0;
  useEffect(() => {
    if (range === null) vertical.current = null;
    else if (isDrawn) looks.forEach(({ id, startedAt }) => wantFiner({ id, name: title, axis, startedAt, range }));
  }, [range, isDrawn, looks, title, axis]);
  useEffect(() => {
    if (isDrawn) soon(plot, draw);
    else {
      notAnyMore(plot);
      plot.current?.destroy();
      plot.current = null;
    }
  }, [isDrawn, lines, key, settings.smoothing, range, height]);

  useEffect(() => {
    const observer = new ResizeObserver(() => {
      if (plot.current && frame.current) plot.current.setSize({ width: frame.current.clientWidth, height });
    });
    observer.observe(frame.current!);
    return () => {
      observer.disconnect();
      notAnyMore(plot);
      notAnyMore(pointed);
      plot.current?.destroy();
      plot.current = null;
    };
  }, []);

  return (
    <figure class="chart" data-metric={title}>
      <figcaption>
        <span class="chart-title">{title}</span>
        <Menu label="···" name={`Save ${title}`} class="right">
          <button type="button" onClick={() => savePng(plot.current, title, families)}>PNG</button>
          <button type="button" onClick={() => saveSvg(lines, title)}>SVG</button>
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
        {isVisible && lines.length === 0 && <p class="chart-empty">No value of {title} yet.</p>}
      </div>
      {before.current.length > 0 ? <Legend title={title} families={families} isSmooth={isSmooth} pointed={pointed} /> : <ul class="legend">{looks.map((look) => <li key={look.id}>&nbsp;</li>)}</ul>}
    </figure>
  );
}

interface LegendProps {
  title: string;
  families: Line[][];
  isSmooth: boolean;
  pointed: Pointed;
}

/** The last and the best value of each line, or under the cursor its value there. */
const Legend = memo(({ title, families, isSmooth, pointed }: LegendProps) => {
  const width = seriesPerFamily(families, isSmooth);
  /** Where the value of a family stands among the drawn columns: its mean, or its smoothed line. */
  const placeOf = (index: number) => width.slice(0, index).reduce((a, b) => a + b, 0) + (width[index] === 2 ? 1 : 0);
  const rows = useMemo(() => families.map((members) => figuresOf(members, title)), [families, title]);
  const values = pointed.value;
  return (
    <ul class={`legend ${width.includes(3) ? "of-families" : ""}`}>
      {families.map((members, index) => (
        <li key={members[0]!.family ?? members[0]!.id}>
          <i style={{ background: members[0]!.color }} />
          <span class="legend-name" title={members.map((line) => line.label).join(", ")}>{members[0]!.family ?? members[0]!.label}{members.length > 1 && ` (${members.length})`}</span>
          <b>{formatNumber(values ? values[placeOf(index)] : rows[index]!.last)}</b>
          {!values && <small>{rows[index]!.aside}</small>}
        </li>
      ))}
    </ul>
  );
});

function figuresOf(members: Line[], title: string): { last: number; aside: string } {
  const last = members.map((line) => line.curve.y.at(-1)!);
  const best = members.length === 1 ? bestOf(members[0]!.curve.y, title) : undefined;
  const spread = members.length > 1 && min(last) !== max(last) ? `${formatNumber(min(last), 3)} to ${formatNumber(max(last), 3)}` : "";
  return { last: mean(last), aside: best === undefined ? spread : `best ${formatNumber(best)}` };
}

/** Lines with the same family beside each other; a line without one is a family by itself. */
function familiesOf(lines: Line[]): Line[][] {
  const families = new Map<string, Line[]>();
  lines.forEach((line, index) => {
    const key = line.family === undefined ? `line ${index}` : `family ${line.family}`;
    families.set(key, [...(families.get(key) ?? []), line]);
  });
  return [...families.values()];
}

/** How many drawn series each family has: mean, high and low of several lines, or one line and its smoothed form. */
const seriesPerFamily = (families: Line[][], isSmooth: boolean) => families.map((members) => (members.length > 1 ? 3 : isSmooth ? 2 : 1));

const mean = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;

function valueNear(column: (number | null)[], index: number): number | null {
  for (let distance = 0; distance < 50; distance += 1) {
    const value = column[index - distance] ?? column[index + distance];
    if (value != null) return value;
  }
  return null;
}

/** Series for uPlot: with smoothing the raw line stands faint behind; of a family the mean stands before its band. */
function prepare(families: Line[][], settings: Settings): { series: uPlot.Series[]; bands: uPlot.Band[]; columns: Columns[]; isLog: boolean } {
  const series: uPlot.Series[] = [{ label: "x" }];
  const bands: uPlot.Band[] = [];
  const isSmooth = settings.smoothing > 0;
  const columns = families.map((members): Columns => {
    const { curve, label, color } = members[0]!;
    if (members.length > 1) {
      const found = band(members.map((line) => ({ x: line.curve.x, y: smooth(line.curve, settings.smoothing) })));
      series.push({ label, stroke: color, width: 2, spanGaps: true });
      series.push({ label: "max", stroke: `${color}55`, spanGaps: true, points: { show: false } }, { label: "min", stroke: `${color}55`, spanGaps: true, points: { show: false } });
      bands.push({ series: [series.length - 2, series.length - 1], fill: `${color}22` });
      return { x: found.x, ys: [found.mean, found.high, found.low] };
    }
    series.push({ label, stroke: isSmooth ? `${color}44` : color, width: isSmooth ? 1 : 1.5, spanGaps: true });
    if (!isSmooth) return { x: curve.x, ys: [curve.y] };
    series.push({ label, stroke: color, width: 2, spanGaps: true });
    return { x: curve.x, ys: [curve.y, smooth(curve, settings.smoothing)] };
  });
  // A logarithmic axis holds positive values only. Others would stop the whole chart.
  const isLog = settings.isLog && families.every((members) => members.every((line) => line.curve.y.every((value) => !(value <= 0))));
  return { series, bands, columns, isLog };
}

function axes(element: HTMLElement, settings: Settings): uPlot.Axis[] {
  const { color, outlineColor } = getComputedStyle(element);
  const grid = { stroke: outlineColor, width: 1 };
  const common = { stroke: color, grid, ticks: { show: false }, font: "11px Inter, system-ui, sans-serif" };
  const seconds = (_: uPlot, values: number[]) => values.map((value) => formatDuration(value));
  return [
    { ...common, size: 26, gap: 4, ...(settings.axis === "relative" ? { values: seconds, space: 90 } : {}) },
    { ...common, gap: 6, size: (_, labels) => Math.max(52, 12 + 7 * Math.max(0, ...(labels ?? []).map((label) => label.length))), values: (_, values) => formatTicks(values) },
  ];
}

/** A drag shows the chosen part of x in all charts of the group, and of y in this one. A double click shows all again. */
function zooming(sync: string, vertical: { current: Range | null }): uPlot.Cursor.Bind {
  return {
    mouseup: (u, _, handler) => (event) => {
      handler(event);
      const { left, top, width, height } = u.select;
      if (width === 0 && height === 0) return null;
      if (width > 0 && width < u.over.clientWidth) rangeOf(sync).value = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
      if (height > 0 && height < u.over.clientHeight) {
        vertical.current = [u.posToVal(top + height, "y"), u.posToVal(top, "y")];
        u.setScale("y", { min: vertical.current[0], max: vertical.current[1] });
      }
      for (const plot of uPlot.sync(sync).plots) plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      return null;
    },
    dblclick: (u) => () => {
      rangeOf(sync).value = null;
      vertical.current = null;
      u.setData(u.data);
      return null;
    },
  };
}

/** Moves all charts of one group along x while Shift is held. */
function panning(sync: string): uPlot.Plugin {
  const start = (u: uPlot, event: MouseEvent) => {
    if (!event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const { min: left, max: right } = u.scales.x!;
    const unit = (right! - left!) / u.over.clientWidth;
    const move = (other: MouseEvent) => {
      const by = (event.clientX - other.clientX) * unit;
      rangeOf(sync).value = [left! + by, right! + by];
    };
    const end = () => document.removeEventListener("mousemove", move);
    document.addEventListener("mousemove", move);
    document.addEventListener("mouseup", end, { once: true });
  };
  return { hooks: { init: (u: uPlot) => u.over.addEventListener("mousedown", (event) => start(u, event), { capture: true }) } };
}

function describe(title: string, lines: Line[]): string {
  const parts = lines.slice(0, 5).map((line) => `${line.label} last ${formatNumber(line.curve.y.at(-1))}`);
  return `${title}: ${parts.join(", ") || "no value yet"}`;
}

/** Saves what is drawn, with the title above, the legend below and the page's background behind. */
function savePng(plot: uPlot | null, title: string, families: Line[][]): void {
  if (!plot) return;
  const chart = plot.ctx.canvas;
  const pixel = chart.width / plot.width;
  const line = 18 * pixel;
  const image = document.createElement("canvas");
  image.width = chart.width;
  image.height = chart.height + line * (families.length + 2);
  const { color, backgroundColor } = getComputedStyle(plot.root.closest(".chart")!);
  const context = image.getContext("2d")!;
  context.fillStyle = backgroundColor;
  context.fillRect(0, 0, image.width, image.height);
  context.drawImage(chart, 0, 1.5 * line);
  const write = (text: string, left: number, row: number, ink: string) => {
    context.fillStyle = ink;
    context.fillText(text, left * pixel, row);
  };
  context.font = `600 ${13 * pixel}px Inter, system-ui, sans-serif`;
  write(title, 12, line, color);
  context.font = `${12 * pixel}px Inter, system-ui, sans-serif`;
  families.forEach((members, index) => {
    const row = chart.height + line * (index + 2.2);
    write("●", 12, row, members[0]!.color);
    write(members[0]!.family ?? members[0]!.label, 28, row, color);
  });
  image.toBlob((blob) => blob && saveBlob(blob, `${title}.png`));
}

function saveCsv(lines: Line[], title: string, xLabel: string): void {
  const quote = (text: string) => `"${text.replaceAll('"', '""').replace(/^([=+\-@\t\r])/, "'$1")}"`;
  const rows = lines.flatMap((line) => line.curve.x.map((x, index) => `${quote(line.label)},${x},${line.curve.y[index]}`));
  saveBlob(new Blob([[`job,${xLabel},${quote(title)}`, ...rows].join("\n")], { type: "text/csv" }), `${title}.csv`);
}

function saveSvg(lines: Line[], title: string): void {
  const [width, height, margin] = [800, 400, 40];
  const xs = lines.flatMap((line) => line.curve.x);
  const ys = lines.flatMap((line) => line.curve.y).filter(Number.isFinite);
  const [left, right, low, high] = [min(xs), max(xs), min(ys), max(ys)];
  const place = (x: number, y: number) =>
    `${(margin + ((x - left) / (right - left || 1)) * (width - 2 * margin)).toFixed(1)} ${(height - margin - ((y - low) / (high - low || 1)) * (height - 2 * margin)).toFixed(1)}`;
  const escape = (text: string) => text.replace(/[&<>"]/g, (char) => `&#${char.charCodeAt(0)};`);
  const paths = lines.map(({ curve, color }) => {
    const points = curve.x.map((x, index) => [x, curve.y[index]!] as const).filter(([, y]) => Number.isFinite(y));
    return `<path fill="none" stroke="${color}" stroke-width="1.5" d="M${points.map(([x, y]) => place(x, y)).join("L")}"/>`;
  });
  const labels = [[margin, height - 14, formatNumber(left)], [width - margin, height - 14, formatNumber(right)], [4, height - margin, formatNumber(low, 3)], [4, margin, formatNumber(high, 3)]];
  const texts = labels.map(([x, y, text]) => `<text x="${x}" y="${y}">${escape(String(text))}</text>`);
  const names = lines.map((line, index) => `<text x="${margin + 8}" y="${margin + 14 * (index + 1)}" fill="${line.color}">${escape(line.label)}</text>`);
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="11"><text x="${margin}" y="20" font-size="14">${escape(title)}</text>${paths.join("")}${texts.join("")}${names.join("")}</svg>`;
  saveBlob(new Blob([svg], { type: "image/svg+xml" }), `${title}.svg`);
}

const min = (values: number[]) => values.reduce((a, b) => Math.min(a, b), Infinity);
const max = (values: number[]) => values.reduce((a, b) => Math.max(a, b), -Infinity);
