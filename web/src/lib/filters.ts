/** Conditions on jobs, such as `loss < 0.5`, `node = node-1` or `created > 24h`. They stand in the address as `where`. */

import type { Job } from "../api/types";
import { COLUMNS, type Extra, columnOf } from "./columns";

export const OPERATORS = ["=", "!=", "<", "<=", ">", ">=", "~"] as const;
export type Operator = (typeof OPERATORS)[number];
export const SPOKEN: Record<Operator, string> = { "=": "is", "!=": "is not", "<": "<", "<=": "≤", ">": ">", ">=": "≥", "~": "contains" };

export interface Condition {
  field: string;
  operator: Operator;
  value: string;
}

const TIMES: ReadonlySet<string> = new Set(["created", "started", "finished"]);
const AGO = /^(\d+(?:\.\d+)?)\s*(min|h|d|w)$/;
const MINUTES: Record<string, number> = { min: 1, h: 60, d: 1440, w: 10080 };
const WRITTEN = /^(.+?)(!=|<=|>=|=|<|>|~)(.*)$/;

export function writeConditions(conditions: Condition[]): string {
  return conditions.map(({ field, operator, value }) => `${field}${operator}${encodeURIComponent(value)}`).join(";");
}

/** Reads what `writeConditions` wrote. Parts that are not a condition are left out. */
export function readConditions(text: string): Condition[] {
  return text.split(";").flatMap((part) => {
    const match = WRITTEN.exec(part);
    if (!match || !columnOf(match[1]!)) return [];
    return [{ field: match[1]!, operator: match[2] as Operator, value: decoded(match[3]!) }];
  });
}

/** Text that was not encoded, because somebody wrote the address by hand, stays as it is. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** A condition as a person reads it: "learning_rate ≤ 0.01", "Created after 24h ago". */
export function showCondition({ field, operator, value }: Condition): string {
  const title = columnOf(field)?.title ?? field;
  if (!TIMES.has(field)) return `${title} ${SPOKEN[operator]} ${value}`;
  const word = operator.startsWith(">") ? "after" : operator.startsWith("<") ? "before" : SPOKEN[operator];
  return `${title} ${word} ${value}${AGO.test(value) ? " ago" : ""}`;
}

/** Milliseconds of a moment that somebody wrote: "24h" is that long before now, all else is a date. */
export function momentOf(value: string, now: number): number {
  const ago = AGO.exec(value.trim());
  return ago ? now - Number(ago[1]) * MINUTES[ago[2]!]! * 60_000 : Date.parse(value);
}

/** Says what is wrong with a condition before it is used. Returns null for one that can be used. */
export function problemOf({ field, operator, value }: Condition, now: number): string | null {
  if (TIMES.has(field) && !/^[<>]/.test(operator)) return `${columnOf(field)!.title} is a moment, which no other one equals. Use ${SPOKEN[">"]} for after it, or ${SPOKEN["<"]} for before it.`;
  if (TIMES.has(field) && Number.isNaN(momentOf(value, now))) return `“${value}” is not a moment. Write 30min, 24h, 7d, or a date such as 2026-01-31.`;
  if (/^[<>]/.test(operator) && !TIMES.has(field) && (value.trim() === "" || Number.isNaN(Number(value)))) return `“${value}” is not a number, which ${SPOKEN[operator]} needs. Use “is” or “contains” for text.`;
  return null;
}

/**
 * Returns the column that somebody means by a name: its id, its title, a metric, or the end of a path in a spec.
 * `learning_rate` is both a metric and a spec value: the spec wins, because people filter by what they chose.
 */
export function fieldOf(typed: string, paths: string[], metrics: string[]): string | null {
  const name = typed.trim();
  const fixed = COLUMNS.find((column) => [column.id, column.title.toLowerCase()].includes(name.toLowerCase()));
  if (fixed) return fixed.id;
  if (name.toLowerCase() === "tag") return "tags";
  if (columnOf(name)) return name;
  const path = paths.find((other) => other === name) ?? paths.find((other) => other.endsWith(`.${name}`));
  if (path) return `spec:${path}`;
  return metrics.includes(name) ? `metric:${name}:last` : null;
}

export function meets(job: Job, { field, operator, value }: Condition, extra: Extra): boolean {
  const text = value.trim();
  if (field === "tags" && operator !== "~") return job.tags.includes(text) === (operator === "=");
  const found = columnOf(field)?.value(job, extra) ?? null;
  if (operator === "!=") return found === null || String(found) !== text && !(typeof found === "number" && found === Number(text));
  if (found === null) return false;
  if (operator === "~") return String(found).toLowerCase().includes(text.toLowerCase());
  if (operator === "=") return String(found).toLowerCase() === text.toLowerCase() || (typeof found === "number" && found === Number(text));
  const limit = TIMES.has(field) ? momentOf(text, extra.now) : Number(text);
  const number = Number(found);
  return operator === "<" ? number < limit : operator === "<=" ? number <= limit : operator === ">" ? number > limit : number >= limit;
}

/** True for a condition that the server applies by itself, so that no other page has to be read for it. */
export const isOfServer = (condition: Condition, now: number): boolean => Object.keys(serverQuery([condition], now)).length > 0;

/** The part of the conditions that the server can apply by itself, as query parameters of `GET /jobs`. */
export function serverQuery(conditions: Condition[], now: number): Record<string, string> {
  const query: Record<string, string> = {};
  for (const { field, operator, value } of conditions) {
    const moment = field === "created" ? momentOf(value, now) : NaN;
    if (field === "tags" && operator === "=") query.tag = value;
    else if (!Number.isNaN(moment) && operator.startsWith(">")) query.created_after = new Date(moment).toISOString();
    else if (!Number.isNaN(moment) && operator.startsWith("<")) query.created_before = new Date(moment).toISOString();
  }
  return query;
}
