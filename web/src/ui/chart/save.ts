/** Saves a chart as a picture, a drawing or a table. */

import uPlot from "uplot";
import type { Axis } from "../../model/curves";
import { saveBlob } from "../../api/client";
import { formatX } from "../../lib/format";
import type { Range } from "../../lib/table";
import type { BrokenSeries, Line } from "./lines";

/** Saves what is drawn, with the title above, the legend below and the page's background behind. */
export function savePng(plot: uPlot | null, title: string, families: Line[][]): void {
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
    write(nameOf(members), 28, row, color);
  });
  image.toBlob((blob) => blob && saveBlob(blob, `${title}.png`));
}

/** Saves the points, with the name of the x axis in the header. A wall time is written in UTC as ISO 8601. */
export function saveCsv(lines: Line[], title: string, axis: Axis): void {
  const quote = (text: string) => `"${text.replaceAll('"', '""').replace(/^([=+\-@\t\r])/, "'$1")}"`;
  const rows = lines.flatMap((line) => line.curve.x.map((x, index) => `${quote(line.label)},${formatX(x, axis)},${line.curve.y[index]}`));
  saveBlob(new Blob([[`job,${axis},${quote(title)}`, ...rows].join("\n")], { type: "text/csv" }), `${title}.csv`);
}

const TITLE = 28;
const ROW = 16;
const escape = (text: string) => text.replace(/[&<>"]/g, (char) => `&#${char.charCodeAt(0)};`);
const nameOf = (members: Line[]) => `${members[0]!.family ?? members[0]!.label}${members.length > 1 ? ` (${members.length})` : ""}`;

/** Saves what is drawn as vectors: zoom, logarithmic axes, smoothed lines and bands are those of the chart. */
export function saveSvg(plot: uPlot | null, title: string, families: Line[][]): void {
  if (plot) saveBlob(new Blob([svgOf(plot, title, families)], { type: "image/svg+xml" }), `${title}.svg`);
}

function svgOf(plot: uPlot, title: string, families: Line[][]): string {
  const { color, outlineColor } = getComputedStyle(plot.root.closest(".chart-plot")!);
  const { backgroundColor } = getComputedStyle(plot.root.closest(".chart")!);
  const [left, top, width, height] = [plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height].map((size) => size / uPlot.pxRatio) as [number, number, number, number];
  const at = (value: number, scale: "x" | "y") => (plot.valToPos(value, scale) + (scale === "x" ? left : top)).toFixed(1);
  const [xs, ...columns] = plot.data as [number[], ...(number | null)[][]];
  const pausesOf = (index: number) => (plot.series[index] as BrokenSeries).pauses ?? [];
  // The places of a line, in one list for each part between two pauses.
  const partsOf = (column: (number | null)[], pauses: readonly Range[]) => {
    const parts: string[][] = Array.from({ length: pauses.length + 1 }, () => []);
    column.forEach((y, index) => y != null && parts[pauses.filter(([, to]) => to <= xs[index]!).length]!.push(`${at(xs[index]!, "x")} ${at(y, "y")}`));
    return parts;
  };
  const lines = columns.map((column, index) => {
    const { stroke, width: thickness } = plot.series[index + 1]!;
    const parts = partsOf(column, pausesOf(index + 1)).filter((places) => places.length > 0);
    const ink = typeof stroke === "function" ? stroke(plot, index + 1) : stroke;
    return `<path fill="none" stroke="${ink}" stroke-width="${thickness ?? 1}" d="${parts.map((places) => `M${places.join("L")}`).join("")}"/>`;
  });
  // uPlot has made a function of each fill.
  const bands = ((plot as unknown as { bands?: uPlot.Band[] }).bands ?? []).map(({ series: [high, low], fill }) => {
    const [above, below] = [high, low].map((index) => partsOf(columns[index - 1]!, pausesOf(index))) as [string[][], string[][]];
    const outlines = above.map((places, index) => [...places, ...below[index]!.reverse()]).filter((outline) => outline.length > 0);
    return `<path fill="${(fill as unknown as () => string)()}" d="${outlines.map((outline) => `M${outline.join("L")}Z`).join("")}"/>`;
  });
  const grid = ticksOf(plot, 0).map(([value, text]) => `<path stroke="${outlineColor}" d="M${at(value, "x")} ${top}v${height}"/><text y="${top + height + 16}" text-anchor="middle">${text.split("\n").map((line, row) => `<tspan x="${at(value, "x")}" dy="${row && "1.3em"}">${escape(line)}</tspan>`).join("")}</text>`)
    .concat(ticksOf(plot, 1).map(([value, text]) => `<path stroke="${outlineColor}" d="M${left} ${at(value, "y")}h${width}"/><text x="${left - 6}" y="${Number(at(value, "y")) + 4}" text-anchor="end">${escape(text)}</text>`));
  const names = families.map((members, index) => `<text x="12" y="${TITLE + plot.height + ROW * (index + 0.8)}"><tspan fill="${members[0]!.color}">●</tspan> ${escape(nameOf(members))}</text>`);
  const size = `${plot.width} ${TITLE + plot.height + ROW * (families.length + 0.5)}`;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${size}" font-family="Inter, sans-serif" font-size="11" fill="${color}"><rect width="100%" height="100%" fill="${backgroundColor}"/>`
    + `<text x="12" y="18" font-size="13" font-weight="600">${escape(title)}</text><clipPath id="c"><rect x="${left}" y="${top}" width="${width}" height="${height}"/></clipPath>`
    + `<g transform="translate(0 ${TITLE})">${grid.join("")}<g clip-path="url(#c)">${bands.join("")}${lines.join("")}</g></g>${names.join("")}</svg>`;
}

/** The values of an axis that have a label. uPlot keeps them beside the axis, without a name of their own. */
function ticksOf(plot: uPlot, which: number): [number, string][] {
  const { _splits: values, _values: texts } = plot.axes[which] as unknown as { _splits: number[]; _values: (string | null)[] };
  return values.flatMap((value, index): [number, string][] => (texts[index] ? [[value, String(texts[index])]] : []));
}
