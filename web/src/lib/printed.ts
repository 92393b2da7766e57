/** The lines that a job printed: its newest, earlier ones, and those that hold a text. */

export interface Printed {
  no: number;
  at: string;
  rank: number;
  stream: string;
  text: string;
}

interface Page {
  data: Printed[];
  next_cursor: string | null;
}

/** What was read of a log, and the event after which no line is left out. */
export interface Read {
  lines: Printed[];
  from: number;
  isWhole: boolean;
}

/** Returns the log with lines that arrived live behind it. At most so many lines stay, so that a log can be followed for days. */
export function withLive(read: Read, live: Printed[], most: number): Read {
  const lines = [...read.lines, ...live].slice(-most);
  return { ...read, lines, from: lines.length < read.lines.length + live.length ? lines[0]!.no - 1 : read.from };
}

/** Sends one request for lines. */
export type Ask = (query: URLSearchParams) => Promise<Page>;

/** Events that are searched for the newest lines. If they hold no line, earlier events are searched. */
const EVENTS = 5000;
const LINES_PER_PAGE = 5000;
/** Lines of one search. More would be too many to read. */
export const MOST_FOUND = 2000;

/** Returns the lines that were printed last until the event `until`. No line was left out after the event `from`. */
export async function linesUntil(ask: Ask, until: number, rank: string): Promise<{ lines: Printed[]; from: number }> {
  let [end, size] = [until, EVENTS];
  for (;;) {
    const from = Math.max(0, end - size);
    const { lines } = await pages(ask, { rank }, from, end, Infinity);
    if (lines.length || from === 0) return { lines, from };
    // A job that has trained for weeks since its last line: each stretch without a line makes the next one longer.
    [end, size] = [from, size * 4];
  }
}

/** Returns the lines that hold a text, from the first on. `isWhole` is false if there may be more of them. */
export const linesWith = (ask: Ask, grep: string, rank: string) => pages(ask, { grep, rank }, 0, Infinity, MOST_FOUND);

/** Reads page after page. A page may be empty although a next one is there, because the service searches some events at a time. */
async function pages(ask: Ask, wanted: { grep?: string; rank: string }, from: number, until: number, most: number): Promise<{ lines: Printed[]; isWhole: boolean }> {
  const lines: Printed[] = [];
  let after: string | null = String(from);
  while (after !== null && Number(after) < until && lines.length < most) {
    const query = new URLSearchParams({ after, limit: String(Math.min(most, LINES_PER_PAGE)) });
    for (const [name, value] of Object.entries(wanted)) if (value) query.set(name, value);
    const page: Page = await ask(query);
    lines.push(...page.data.filter((line) => line.no <= until));
    after = page.next_cursor;
  }
  return { lines: lines.slice(0, most === Infinity ? undefined : most), isWhole: after === null };
}

/** How a line is coloured: a level that its text names, and not its stream, because most libraries log to stderr. */
export function levelOf(text: string): "error" | "warning" | "" {
  if (/^\s*(Traceback \(most recent|\w*(Error|Exception)\b:)|\b(ERROR|CRITICAL|FATAL)\b/.test(text)) return "error";
  return /\bWARN(ING)?\b|\w+Warning:/.test(text) ? "warning" : "";
}
