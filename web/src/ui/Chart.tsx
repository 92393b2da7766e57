/** One metric of the selected jobs. Drawn only while it can be seen. */

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { saveBlob } from "../api/client";
import { formatDuration, formatNumber } from "../lib/format";
import { type Curve, band, rangeWithoutOutliers, smooth } from "../lib/smooth";

export interface Line {
  label: string;
  color: string;
  curve: Curve;
}

export interface Settings {
  xLabel: string;
  isTime: boolean;
  isDuration: boolean;
  isLog: boolean;
  smoothing: number;
  withoutOutliers: boolean;
  asBand: boolean;
}

interface Props {
  title: string;
  lines: Line[];
  settings: Settings;
  /** Charts with the same key share the cursor and the zoom. */
  sync: string;
  height?: number;
}

export function Chart({ title, lines, settings, sync, height = 220 }: Props) {
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
  const key = JSON.stringify([drawn.map((line) => [line.label, line.color]), settings]);

  useEffect(() => {
    if (!isVisible || drawn.length === 0) {
      plot.current?.destroy();
      plot.current = null;
      return;
    }
    const { series, bands, data } = prepare(drawn, settings);
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

  const shown = settings.asBand && drawn.length > 1 ? [{ label: `mean of ${drawn.length}`, color: drawn[0]!.color, curve: drawn[0]!.curve }] : drawn;
  return (
    <figure class="chart" data-metric={title}>
      <figcaption>
        <span class="chart-title">{title}</span>
        <span class="chart-tools">
          <button type="button" onClick={() => savePng(plot.current, title)} aria-label={`Save ${title} as PNG`}>PNG</button>
          <button type="button" onClick={() => saveSvg(drawn, title)} aria-label={`Save ${title} as SVG`}>SVG</button>
          <button type="button" onClick={() => saveCsv(drawn, title, settings.xLabel)} aria-label={`Save ${title} as CSV`}>CSV</button>
        </span>
      </figcaption>
      <div
        ref={frame}
        class="chart-plot"
        role="img"
        aria-label={describe(title, drawn)}
        onDblClick={() => plot.current?.setData(plot.current.data)}
        style={{ minHeight: `${height}px` }}
      >
        {drawn.length === 0 && <p class="chart-empty">No value of {title} yet.</p>}
      </div>
      <ul class="legend">
        {shown.map((line, index) => (
          <li key={line.label}>
            <i style={{ background: line.color }} />
            <span class="legend-name">{line.label}</span>
            <b>{formatNumber(legend ? legend[offsetOf(index, settings)] : line.curve.y.at(-1))}</b>
            {!legend && <small>best {formatNumber(bestOf(line.curve.y, title))}</small>}
          </li>
        ))}
      </ul>
    </figure>
  );
}

/** Where the smoothed value of line `index` stands among the drawn series. */
const offsetOf = (index: number, { smoothing, asBand }: Settings) => (asBand ? 0 : smoothing > 0 ? index * 2 + 1 : index);

function valueNear(column: (number | null)[], index: number): number | null {
  for (let distance = 0; distance < 50; distance += 1) {
    const value = column[index - distance] ?? column[index + distance];
    if (value != null) return value;
  }
  return null;
}

export function bestOf(values: number[], name: string): number | undefined {
  const finite = values.filter(Number.isFinite);
  if (finite.length === 0) return undefined;
  const isLow = /loss|error|perplexity|mse|mae|wer|cer|runtime|norm/i.test(name);
  return finite.reduce((best, value) => (isLow ? Math.min(best, value) : Math.max(best, value)));
}

function isZoomed(plot: uPlot): boolean {
  const xs = plot.data[0];
  const { min, max } = plot.scales.x!;
  return xs.length > 1 && min != null && max != null && (min > xs[0]! || max < xs.at(-1)! * 0.98);
}

/** Series for uPlot: with smoothing the raw line stands faint behind, with a band the mean stands before low and high. */
function prepare(lines: Line[], settings: Settings): { series: uPlot.Series[]; bands: uPlot.Band[]; data: uPlot.AlignedData } {
  const series: uPlot.Series[] = [{ label: "x" }];
  if (settings.asBand && lines.length > 1) {
    const found = band(lines.map(({ curve }) => ({ x: curve.x, y: smooth(curve, settings.smoothing) })));
    const color = lines[0]!.color;
    series.push({ label: "mean", stroke: color, width: 2 }, { label: "max", stroke: `${color}55` }, { label: "min", stroke: `${color}55` });
    return { series, bands: [{ series: [2, 3], fill: `${color}22` }], data: [found.x, gaps(found.mean), gaps(found.high), gaps(found.low)] as uPlot.AlignedData };
  }
  const tables: uPlot.AlignedData[] = lines.map(({ curve, label, color }) => {
    const isSmooth = settings.smoothing > 0;
    series.push({ label, stroke: isSmooth ? `${color}44` : color, width: isSmooth ? 1 : 1.5, spanGaps: true });
    if (!isSmooth) return [curve.x, gaps(curve.y)] as uPlot.AlignedData;
    series.push({ label, stroke: color, width: 2, spanGaps: true });
    return [curve.x, gaps(curve.y), gaps(smooth(curve, settings.smoothing))] as uPlot.AlignedData;
  });
  const data = tables.length === 1 ? tables[0]! : uPlot.join(tables);
  return { series, bands: [], data };
}

const gaps = (values: number[]) => values.map((value) => (Number.isFinite(value) ? value : null));

function scaleY(settings: Settings, lines: Line[]): uPlot.Scale {
  const range = settings.withoutOutliers ? rangeWithoutOutliers(lines.flatMap((line) => line.curve.y)) : null;
  // A logarithmic axis holds positive values only. Others would stop the whole chart.
  const isLog = settings.isLog && lines.every((line) => line.curve.y.every((value) => !(value <= 0)));
  return { distr: isLog ? 3 : 1, ...(range && !isLog ? { range: () => range } : {}) };
}

function axes(element: HTMLElement, settings: Settings): uPlot.Axis[] {
  const style = getComputedStyle(element);
  const stroke = style.getPropertyValue("--muted").trim() || "#667";
  const grid = { stroke: style.getPropertyValue("--line").trim() || "#ddd", width: 1 };
  const common = { stroke, grid, ticks: grid, font: "11px system-ui, sans-serif" };
  const seconds = (_: uPlot, values: number[]) => values.map((value) => formatDuration(value));
  return [
    { ...common, ...(settings.isDuration ? { values: seconds, space: 90 } : {}) },
    { ...common, size: 62, values: (_, values) => values.map((value) => (value == null ? "" : formatNumber(value, 3))) },
  ];
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
