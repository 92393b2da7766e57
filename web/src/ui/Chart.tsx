/** One metric of the selected jobs. Drawn only while it can be seen. */

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { saveBlob } from "../api/client";
import { formatDuration, formatNumber } from "../lib/format";
import { bestOf } from "../lib/groups";
import { type Curve, band, rangeWithoutOutliers, smooth } from "../lib/smooth";
import { Menu } from "./Menu";
import { colorsVersion } from "./theme";

export interface Line {
  label: string;
  color: string;
  curve: Curve;
  /** Lines of one family are drawn as their mean, with a band from the lowest to the highest. */
  family?: string;
}

export interface Settings {
  xLabel: string;
  isTime: boolean;
  isDuration: boolean;
  isLog: boolean;
  smoothing: number;
  withoutOutliers: boolean;
}

interface Props {
  title: string;
  lines: Line[];
  settings: Settings;
  /** Charts with the same key share the cursor and the zoom. */
  sync: string;
  height?: number;
}

export function Chart({ title, lines, settings, sync, height = 200 }: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shape = useRef("");
  const [isVisible, setVisible] = useState(false);
  const [legend, setLegend] = useState<(number | null)[] | null>(null);

  useEffect(() => {
    const observer = new IntersectionObserver(([entry]) => setVisible(entry!.isIntersecting), { rootMargin: "200px" });
    observer.observe(frame.current!);
    return () => observer.disconnect();
  }, []);

  const drawn = lines.filter((line) => line.curve.x.length > 0);
  const families = familiesOf(drawn);
  const key = JSON.stringify([drawn.map((line) => [line.label, line.color, line.family]), settings, colorsVersion.value]);

  useEffect(() => {
    if (!isVisible || drawn.length === 0) {
      plot.current?.destroy();
      plot.current = null;
      return;
    }
    const { series, bands, data } = prepare(families, settings);
    if (plot.current && shape.current === key) {
      plot.current.setData(data, !isZoomed(plot.current));
      return;
    }
    plot.current?.destroy();
    shape.current = key;
    const element = frame.current!;
    plot.current = new uPlot(
      {
        width: element.clientWidth,
        height,
        series,
        bands,
        legend: { show: false },
        cursor: { sync: { key: sync, setSeries: false }, drag: { x: true, y: true, uni: 20 }, points: { size: 6 } },
        scales: { x: { time: settings.isTime }, y: scaleY(settings, drawn) },
        axes: axes(element, settings),
        padding: [8, 14, 0, 0],
        plugins: [panning(sync)],
        hooks: {
          setCursor: [
            (u) => {
              const index = u.cursor.idx;
              setLegend(index == null ? null : u.data.slice(1).map((column) => valueNear(column as (number | null)[], index)));
            },
          ],
        },
      },
      data,
      element,
    );
  });

  useEffect(() => {
    const observer = new ResizeObserver(() => {
      if (plot.current && frame.current) plot.current.setSize({ width: frame.current.clientWidth, height });
    });
    observer.observe(frame.current!);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, []);

  const width = seriesPerFamily(families, settings);
  /** Where the value of a family stands among the drawn series: its mean, or its smoothed line. */
  const placeOf = (index: number) => width.slice(0, index).reduce((a, b) => a + b, 0) + (width[index] === 2 ? 1 : 0);
  return (
    <figure class="chart" data-metric={title}>
      <figcaption>
        <span class="chart-title">{title}</span>
        <Menu label="···" name={`Save ${title}`} class="right">
          <button type="button" onClick={() => savePng(plot.current, title)}>PNG</button>
          <button type="button" onClick={() => saveSvg(drawn, title)}>SVG</button>
          <button type="button" onClick={() => saveCsv(drawn, title, settings.xLabel)}>CSV</button>
        </Menu>
      </figcaption>
      <div
        ref={frame}
        class="chart-plot"
        role="img"
        aria-label={describe(title, drawn)}
        title="Drag to zoom, Shift and drag to pan, double-click to see all"
        style={{ minHeight: `${height}px` }}
      >
        {drawn.length === 0 && <p class="chart-empty">No value of {title} yet.</p>}
      </div>
      <ul class={`legend ${width.includes(3) ? "of-families" : ""}`}>
        {families.map((members, index) => {
          const last = members.map((line) => line.curve.y.at(-1)!);
          const best = bestOf(members[0]!.curve.y, title);
          const aside = members.length > 1 ? min(last) === max(last) ? "" : `${formatNumber(min(last), 3)} to ${formatNumber(max(last), 3)}` : best === undefined ? "" : `best ${formatNumber(best)}`;
          return (
            <li key={members[0]!.family ?? members[0]!.label}>
              <i style={{ background: members[0]!.color }} />
              <span class="legend-name" title={members.map((line) => line.label).join(", ")}>{members[0]!.family ?? members[0]!.label}{members.length > 1 && ` (${members.length})`}</span>
              <b>{formatNumber(legend ? legend[placeOf(index)] : mean(last))}</b>
              {!legend && <small>{aside}</small>}
            </li>
          );
        })}
      </ul>
    </figure>
  );
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
const seriesPerFamily = (families: Line[][], { smoothing }: Settings) => families.map((members) => (members.length > 1 ? 3 : smoothing > 0 ? 2 : 1));

const mean = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;

function valueNear(column: (number | null)[], index: number): number | null {
  for (let distance = 0; distance < 50; distance += 1) {
    const value = column[index - distance] ?? column[index + distance];
    if (value != null) return value;
  }
  return null;
}

function isZoomed(plot: uPlot): boolean {
  const xs = plot.data[0];
  const { min, max } = plot.scales.x!;
  return xs.length > 1 && min != null && max != null && (min > xs[0]! || max < xs.at(-1)! * 0.98);
}

/** Series for uPlot: with smoothing the raw line stands faint behind; of a family the mean stands before its band. */
function prepare(families: Line[][], settings: Settings): { series: uPlot.Series[]; bands: uPlot.Band[]; data: uPlot.AlignedData } {
  const series: uPlot.Series[] = [{ label: "x" }];
  const bands: uPlot.Band[] = [];
  const isSmooth = settings.smoothing > 0;
  const tables = families.map((members) => {
    const { curve, label, color } = members[0]!;
    if (members.length > 1) {
      const found = band(members.map((line) => ({ x: line.curve.x, y: smooth(line.curve, settings.smoothing) })));
      series.push({ label, stroke: color, width: 2, spanGaps: true });
      series.push({ label: "max", stroke: `${color}55`, spanGaps: true, points: { show: false } }, { label: "min", stroke: `${color}55`, spanGaps: true, points: { show: false } });
      bands.push({ series: [series.length - 2, series.length - 1], fill: `${color}22` });
      return [found.x, gaps(found.mean), gaps(found.high), gaps(found.low)] as uPlot.AlignedData;
    }
    series.push({ label, stroke: isSmooth ? `${color}44` : color, width: isSmooth ? 1 : 1.5, spanGaps: true });
    if (!isSmooth) return [curve.x, gaps(curve.y)] as uPlot.AlignedData;
    series.push({ label, stroke: color, width: 2, spanGaps: true });
    return [curve.x, gaps(curve.y), gaps(smooth(curve, settings.smoothing))] as uPlot.AlignedData;
  });
  return { series, bands, data: tables.length === 1 ? tables[0]! : uPlot.join(tables) };
}

const gaps = (values: number[]) => values.map((value) => (Number.isFinite(value) ? value : null));

function scaleY(settings: Settings, lines: Line[]): uPlot.Scale {
  const range = settings.withoutOutliers ? rangeWithoutOutliers(lines.flatMap((line) => line.curve.y)) : null;
  // A logarithmic axis holds positive values only. Others would stop the whole chart.
  const isLog = settings.isLog && lines.every((line) => line.curve.y.every((value) => !(value <= 0)));
  return { distr: isLog ? 3 : 1, ...(range && !isLog ? { range: () => range } : {}) };
}

function axes(element: HTMLElement, settings: Settings): uPlot.Axis[] {
  const { color, outlineColor } = getComputedStyle(element);
  const grid = { stroke: outlineColor, width: 1 };
  const common = { stroke: color, grid, ticks: { show: false }, font: "11px Inter, system-ui, sans-serif" };
  const seconds = (_: uPlot, values: number[]) => values.map((value) => formatDuration(value));
  return [
    { ...common, size: 26, gap: 4, ...(settings.isDuration ? { values: seconds, space: 90 } : {}) },
    { ...common, size: 52, gap: 6, values: (_, values) => values.map((value) => (value == null ? "" : formatNumber(value, 3))) },
  ];
}

/** Moves all charts of one group along x while Shift is held. Without it uPlot zooms. */
function panning(sync: string): uPlot.Plugin {
  const start = (u: uPlot, event: MouseEvent) => {
    if (!event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const { min: left, max: right } = u.scales.x!;
    const unit = (right! - left!) / u.over.clientWidth;
    const move = (other: MouseEvent) => {
      const by = (event.clientX - other.clientX) * unit;
      for (const plot of uPlot.sync(sync).plots) plot.setScale("x", { min: left! + by, max: right! + by });
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

function savePng(plot: uPlot | null, title: string): void {
  plot?.ctx.canvas.toBlob((blob) => blob && saveBlob(blob, `${title}.png`));
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
