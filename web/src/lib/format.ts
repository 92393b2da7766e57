/** Text for numbers, times and sizes. Every function returns plain text, never markup. */

export function formatNumber(value: unknown, digits = 4): string {
  if (typeof value !== "number") return value === null || value === undefined ? "" : String(value);
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US");
  const magnitude = Math.abs(value);
  if (magnitude >= 1e6 || magnitude < 1e-4) return value.toExponential(Math.max(0, digits - 1)).replace(/\.?0+e/, "e");
  const rounded = Number(value.toPrecision(digits));
  return magnitude < 1000 ? String(rounded) : rounded.toLocaleString("en-US");
}

/** `93` seconds are "1 min 33 s". Two units at most. */
export function formatDuration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const units: [number, string][] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([size]) => whole >= size);
  if (first < 0) return "0 s";
  const parts: string[] = [];
  let rest = whole;
  for (const [size, unit] of units.slice(first, first + 2)) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count > 0) parts.push(`${count} ${unit}`);
  }
  return parts.join(" ");
}

export function formatAge(at: string, now: number): string {
  const seconds = (now - Date.parse(at)) / 1000;
  if (seconds < 5) return "just now";
  return `${formatDuration(seconds).split(" ").slice(0, 2).join(" ")} ago`;
}

export function formatBytes(bytes: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = bytes;
  let unit = 0;
  // 999.5 of a unit would be rounded to a thousand of it.
  while (size >= 999.5 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? size : size < 1000 ? size.toPrecision(3) : formatNumber(Math.round(size))} ${units[unit]}`;
}

/** The name that a person gave, or the end of the id. */
export function jobTitle(job: { name: string | null; id: string }): string {
  return job.name || `job ${job.id.slice(-8)}`;
}

/** Returns the name of the browser's tab. Somebody may have many of them open. */
export function tabTitle(view: string, job: { name: string | null; id: string; state: string } | undefined): string {
  const title = job ? `${jobTitle(job)} (${job.state})` : { compare: "Compare", submit: "New job", try: "Try", cluster: "Cluster" }[view];
  return [title, "Footplate"].filter(Boolean).join(" · ");
}

/** Reasons whose names say too little beside the state. */
const REASONS: Record<string, string> = { pause: "paused on request", cancel: "cancelled on request", drain: "the node is drained" };

export function sentence(reason: string): string {
  return REASONS[reason] ?? reason.replaceAll("_", " ");
}

/** Returns the labels of an axis, with as many digits as its values have. A value that is rounded would stand beside its place. */
export function formatTicks(values: (number | null)[]): string[] {
  const numbers = values.filter((value) => value !== null);
  const isExact = (digits: number) => numbers.every((value) => Math.abs(Number(value.toPrecision(digits)) - value) <= Math.abs(value) * 1e-9);
  const digits = [3, 4, 5, 6, 7].find(isExact) ?? 8;
  return values.map((value) => (value === null ? "" : formatNumber(value, digits)));
}

/** Returns labels of an axis of durations. Below a second, and for neighbours that two units do not tell apart, they are seconds. */
export function formatDurationTicks(values: number[]): string[] {
  const labels = values.map((value) => (value < 0 ? `−${formatDuration(-value)}` : formatDuration(value)));
  return new Set(labels).size === values.length ? labels : formatTicks(values).map((label) => `${label} s`);
}

/** A moment by the clock of the reader, with its date if that is not today. */
export function formatMoment(at: string, now: number): string {
  const moment = new Date(at);
  return moment.toDateString() === new Date(now).toDateString() ? moment.toLocaleTimeString() : moment.toLocaleString();
}

/** Writes a value of the x axis for a table. A wall time becomes ISO 8601 in UTC. A point without the value has nothing. */
export function formatX(x: number, axis: string): string {
  if (!Number.isFinite(x)) return "";
  return axis === "time" ? new Date(x * 1000).toISOString() : String(x);
}
