/** Saves a chart as a picture, a drawing or a table. */

import type uPlot from "uplot";
import { saveBlob } from "../../api/client";
import { formatNumber } from "../../lib/format";
import type { Line } from "./lines";

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
    write(members[0]!.family ?? members[0]!.label, 28, row, color);
  });
  image.toBlob((blob) => blob && saveBlob(blob, `${title}.png`));
}

export function saveCsv(lines: Line[], title: string, xLabel: string): void {
  const quote = (text: string) => `"${text.replaceAll('"', '""').replace(/^([=+\-@\t\r])/, "'$1")}"`;
  const rows = lines.flatMap((line) => line.curve.x.map((x, index) => `${quote(line.label)},${x},${line.curve.y[index]}`));
  saveBlob(new Blob([[`job,${xLabel},${quote(title)}`, ...rows].join("\n")], { type: "text/csv" }), `${title}.csv`);
}

export function saveSvg(lines: Line[], title: string): void {
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
