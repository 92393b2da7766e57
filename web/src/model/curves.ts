/** The curves of the jobs that are looked at: history once, down-sampled by the server, then live points behind it. */

import { signal } from "@preact/signals";
import { LiveFeed } from "../api/live";
import { explain, request } from "../api/client";
import { Unreachable } from "../api/connection";
import type { Job, JobEvent } from "../api/types";
import type { Curve } from "../lib/smooth";
import { joinNames } from "../lib/names";
import { type Part, type Points, addPoint, endAt, hasFiner, noPoints, stepsIn, withPart } from "../lib/points";
import { stepBack } from "../lib/events";
import { throttled } from "../lib/slices";
import { isSystem, systemValues } from "../lib/system";
import type { Range } from "../lib/table";

export type Axis = "step" | "epoch" | "relative" | "time";

const HISTORY_POINTS = 1000;
/** Curves per request: the server answers at most 100,000 points at once. */
const NAMES_PER_REQUEST = 50;
/** Pages of the use of CPU, memory and GPUs that are read one after the other. A rank fills nine in a day. */
const SYSTEM_PAGES = 10;
const SYSTEM_EVENTS_PER_PAGE = 1000;
/** What is left of a longer history is read as so many samples at equal distances. */
const SYSTEM_SAMPLES = 40;
const SYSTEM_EVENTS_PER_SAMPLE = 250;

/** Moves with every change of a curve. */
export const curvesVersion = signal(0);
const curves = new Map<string, Map<string, Points>>();
/** The finer part of each curve that the zoom shows. */
const parts = new Map<string, Map<string, Part>>();
const pending = new Map<string, Promise<void>>();
const facts = new Map<string, JobEvent[]>();
const printed = new Map<string, JobEvent[]>();
export const linesVersion = signal(0);
/** Twenty jobs send a hundred messages in a second. The page is drawn anew for all that came in this time. */
const REDRAW_MS = 300;
const redraw = throttled(() => {
  curvesVersion.value += 1;
}, REDRAW_MS);
const reread = throttled(() => {
  linesVersion.value += 1;
}, REDRAW_MS);
/** The newest events of a job that are kept. Printed lines are counted by themselves, so that they push no other event out. */
const MOST_KEPT = 10_000;

const feed = new LiveFeed(receive);

export function namesOf(ids: string[]): string[] {
  return [...new Set(ids.flatMap((id) => [...(curves.get(id)?.keys() ?? [])]))];
}

export function curveOf(id: string, name: string, axis: Axis, startedAt: number): Curve {
  const points = curves.get(id)?.get(name);
  const part = parts.get(id)?.get(name);
  return points ? onAxis(part ? withPart(points, part) : points, axis, startedAt) : { x: [], y: [] };
}

function onAxis(points: Points, axis: Axis, startedAt: number): Curve {
  if (axis === "relative") return { x: points.time.map((at) => (at - startedAt) / 1000), y: points.y };
  if (axis === "time") return { x: points.time.map((at) => at / 1000), y: points.y };
  return { x: points[axis], y: points.y };
}

/** The axis that the history of a job was loaded with. A job without an axis has only what arrived live. */
const axes = new Map<string, ServerAxis>();
/** Events that arrive while a history is on its way. They are drawn again behind it. */
const arrived = new Map<string, JobEvent[]>();
/** Jobs whose history is on its way. */
export const curvesPending = signal(0);
/** Why the history of a job could not be read. An outage is not named here, because histories are read again after it. */
export const curvesProblem = signal<string | null>(null);
/** Moves when other jobs are followed. Histories that are ready later do not bring back the jobs that were followed before. */
let choice = 0;

/** Follows these jobs: loads the history of those that are new or have another axis, and keeps what was loaded of the others. */
export function followJobs(jobs: Job[], axis: Axis): void {
  const mine = ++choice;
  curvesProblem.value = null;
  const loads = jobs.map((job) => needHistory(job, axis));
  curvesPending.value = pending.size;
  void Promise.all(loads).then(() => {
    if (mine === choice) feed.follow(new Map(jobs.map((job) => [job.id, cursors.get(job.id) ?? job.last_no])));
  });
}

const isLoaded = (id: string, axis: Axis) => axes.get(id) === axisOfServer(axis);

/** Loads a history with this axis unless it is loaded. A load with another axis that is under way ends first. */
function needHistory(job: Job, axis: Axis): Promise<void> {
  const underWay = pending.get(job.id);
  if (!underWay && isLoaded(job.id, axis)) return Promise.resolve();
  const mine = (underWay ?? Promise.resolve())
    .then(() => (isLoaded(job.id, axis) ? undefined : inTurn(() => load(job, axis))))
    .catch((error) => {
      if (!(error instanceof Unreachable)) curvesProblem.value = explain(error);
    })
    .finally(() => {
      if (pending.get(job.id) === mine) pending.delete(job.id);
      curvesPending.value = pending.size;
    });
  pending.set(job.id, mine);
  return mine;
}

/** Histories that are read at the same time. More would keep the service from its other work. */
const MOST_LOADS = 2;
let loading = 0;
const turns: (() => void)[] = [];

async function inTurn<T>(work: () => Promise<T>): Promise<T> {
  if (loading >= MOST_LOADS) await new Promise<void>((resolve) => turns.push(resolve));
  else loading += 1;
  try {
    return await work();
  } finally {
    const next = turns.shift();
    if (next) next();
    else loading -= 1;
  }
}

/** Follows one job without its curves: its states, notes and printed lines. */
export function followEvents(job: Job): void {
  choice += 1;
  feed.follow(new Map([[job.id, cursors.get(job.id) ?? job.last_no]]));
}

export function followAgain(id: string): void {
  feed.again(id);
}

const cursors = new Map<string, number>();

interface SeriesAnswer {
  data: { name: string; exact: boolean; x: (number | string)[]; y: (number | string | null)[]; steps: (number | null)[] | null }[];
}

interface EventPage {
  data: JobEvent[];
  next_cursor: string | null;
}

async function load(job: Job, axis: Axis): Promise<void> {
  // The cursor is taken first: an event that arrives between the two is drawn twice at one place, never lost.
  const until = Math.max(cursors.get(job.id) ?? 0, job.last_no);
  cursors.set(job.id, until);
  arrived.set(job.id, []);
  const mine = new Map<string, Points>();
  try {
    for (const names of await namesInParts(job)) {
      for (const [name, points] of await readPoints(job.id, axis, names)) mine.set(name, points);
    }
    for (const [name, points] of await readSystem(job.id, [1, until])) mine.set(name, points);
    curves.set(job.id, mine);
    parts.delete(job.id);
    axes.set(job.id, axisOfServer(axis));
    for (const event of arrived.get(job.id)!) draw(event) || goBack(event);
  } finally {
    arrived.delete(job.id);
    redraw();
  }
}

type ServerAxis = "step" | "epoch" | "time";
const axisOfServer = (axis: Axis): ServerAxis => (axis === "relative" ? "time" : axis);

async function readPoints(id: string, axis: Axis, query: string): Promise<Map<string, Points>> {
  const x = axisOfServer(axis);
  const { data } = await request<SeriesAnswer>(`/jobs/${id}/metrics/series?x=${x}&points=${HISTORY_POINTS}${query}`);
  return new Map(data.map((series) => {
    const unknown = () => Array<number>(series.y.length).fill(NaN);
    return [series.name, {
      step: (series.steps ?? series.x).map(numberOrNaN),
      time: x === "time" ? series.x.map((at) => Date.parse(String(at))) : unknown(),
      epoch: x === "epoch" ? series.x.map(Number) : unknown(),
      y: series.y.map(toNumber),
      isExact: series.exact,
    }];
  }));
}

const numberOrNaN = (value: unknown) => (typeof value === "number" ? value : NaN);

/** Returns the job's use of CPU, memory and GPUs between two events, as its nodes sent it. */
async function readSystem(id: string, range: Range): Promise<Map<string, Points>> {
  const { events, isWhole } = await systemEvents(id, range);
  const read = new Map<string, Points>();
  for (const event of events) draw(event, read);
  if (!isWhole) for (const points of read.values()) points.isExact = false;
  return read;
}

async function systemEvents(id: string, [first, last]: Range): Promise<{ events: JobEvent[]; isWhole: boolean }> {
  const events: JobEvent[] = [];
  let [from, after] = [0, first - 1];
  const read = async (limit: number) => {
    const page = await request<EventPage>(`/jobs/${id}/events?kinds=system&limit=${limit}&after=${after}`);
    events.push(...page.data.filter(({ no }) => no <= last && no > (events.at(-1)?.no ?? 0)));
    return page.next_cursor === null ? Infinity : Number(page.next_cursor);
  };
  for (let page = 0; page < SYSTEM_PAGES; page += 1) {
    from = after;
    after = await read(SYSTEM_EVENTS_PER_PAGE);
    if (after >= last) return { events, isWhole: true };
  }
  // The last sample ends about where the history ends, if its events are as close to each other as those of the last page.
  const start = after;
  const room = Math.max(0, last - start - ((start - from) * SYSTEM_EVENTS_PER_SAMPLE) / SYSTEM_EVENTS_PER_PAGE);
  for (let sample = 0; sample < SYSTEM_SAMPLES; sample += 1) {
    after = start + Math.floor((room * sample) / (SYSTEM_SAMPLES - 1));
    await read(SYSTEM_EVENTS_PER_SAMPLE);
  }
  return { events, isWhole: false };
}

interface Wish {
  id: string;
  name: string;
  axis: Axis;
  startedAt: number;
  range: Range;
}

/** The newest reading of each finer part, by job and name. An older answer that arrives later is not shown. */
const readings = new Map<string, number>();
let reading = 0;

/** What the charts want to show of curves in more detail. It is read once the zoom has rested. */
const wishes = new Map<string, Wish>();
const REST_MS = 250;
let rest: ReturnType<typeof setTimeout> | undefined;

/** Reads more points of the part that a chart shows, if the service has more. The whole history is not read again. */
export function wantFiner(wish: Wish): void {
  wishes.set(`${wish.id} ${wish.name}`, wish);
  clearTimeout(rest);
  rest = setTimeout(readFiner, REST_MS);
}

/** Drops the parts and what is not read yet, because everything is shown again. */
export function forgetFiner(): void {
  wishes.clear();
  readings.clear();
  parts.clear();
  redraw();
}

function readFiner(): void {
  const requests = new Map<string, { wish: Wish; steps: Range; names: string[] }>();
  for (const wish of wishes.values()) {
    const points = curves.get(wish.id)?.get(wish.name);
    const steps = points && stepsIn(onAxis(points, wish.axis, wish.startedAt).x, points.step, wish.range);
    if (!steps || !hasFiner(points, parts.get(wish.id)?.get(wish.name), steps)) continue;
    const isOfMachine = isMeasured(wish.name);
    const key = `${wish.id} ${isOfMachine ? "system" : steps}`;
    const found = requests.get(key) ?? { wish, steps, names: [] };
    // One event has the measurements of all curves of a rank, so the ranges of several curves are read as one.
    if (isOfMachine) found.steps = [Math.min(found.steps[0], steps[0]), Math.max(found.steps[1], steps[1])];
    found.names.push(wish.name);
    requests.set(key, found);
  }
  wishes.clear();
  for (const { wish, steps, names } of requests.values()) {
    const mine = ++reading;
    for (const name of names) readings.set(`${wish.id} ${name}`, mine);
    const query = `&names=${encodeURIComponent(joinNames(names))}&first_step=${steps[0]}&last_step=${steps[1]}`;
    const read = () => (isMeasured(wish.name) ? readSystem(wish.id, steps) : readPoints(wish.id, wish.axis, query));
    // Without an answer, the points that were loaded before stay.
    inTurn(read).then((read) => keepParts(wish.id, steps, read, mine), () => undefined);
  }
}

function keepParts(id: string, steps: Range, read: Map<string, Points>, turn: number): void {
  const mine = parts.get(id) ?? new Map<string, Part>();
  for (const [name, points] of read) if (readings.get(`${id} ${name}`) === turn) mine.set(name, { steps, points });
  parts.set(id, mine);
  redraw();
}

/** Every metric in one request, or for a job with many metrics some in each: an answer holds 100,000 points at most. */
async function namesInParts(job: Job): Promise<string[]> {
  if (Object.keys(job.metrics).length <= NAMES_PER_REQUEST) return [""];
  const { data } = await request<{ data: { name: string }[] }>(`/jobs/${job.id}/metrics/summary`);
  const parts: string[] = [];
  for (let start = 0; start < data.length; start += NAMES_PER_REQUEST) {
    parts.push(`&names=${encodeURIComponent(joinNames(data.slice(start, start + NAMES_PER_REQUEST).map((row) => row.name)))}`);
  }
  return parts;
}

const toNumber = (value: unknown) => (typeof value === "number" ? value : Number(value ?? NaN));

function receive(events: JobEvent[]): void {
  let isDrawn = false;
  for (const event of events) {
    if (["log", "eval", "system"].includes(event.kind)) {
      arrived.get(event.job)?.push(event);
      isDrawn = draw(event) || isDrawn;
    } else {
      if (stepBack(event) !== null) arrived.get(event.job)?.push(event);
      isDrawn = goBack(event) || isDrawn;
      if (event.kind !== "progress") remember(event.kind === "line" ? printed : facts, event);
    }
    cursors.set(event.job, event.no);
  }
  if (isDrawn) redraw();
  reread();
}

function remember(kept: Map<string, JobEvent[]>, event: JobEvent): void {
  const known = kept.get(event.job) ?? [];
  kept.set(event.job, known);
  known.push(event);
  if (known.length > 2 * MOST_KEPT) known.splice(0, MOST_KEPT);
}

/** Takes the points out that the job leaves behind, if the event says that it goes back to a step. */
function goBack(event: JobEvent): boolean {
  const step = stepBack(event);
  if (step === null) return false;
  for (const [name, points] of curves.get(event.job) ?? []) if (!isSystem(name)) endAt(points, step);
  parts.delete(event.job);
  for (const key of readings.keys()) if (key.startsWith(`${event.job} `)) readings.delete(key);
  return true;
}

/** Names of curves that nodes measure. They have times, but neither steps nor epochs. */
const measured = new Set<string>();
export const isMeasured = (name: string): boolean => measured.has(name);

/** Adds each value of an event to its curve. Returns false if none could be drawn. */
function draw(event: JobEvent, into = curvesOf(event.job)): boolean {
  if (!["log", "eval", "system"].includes(event.kind)) return false;
  const values = event.kind === "system" ? systemValues(event) : Object.entries(event.data);
  return values.map(([name, value]) => add(event, name, value, into)).some(Boolean);
}

function curvesOf(id: string): Map<string, Points> {
  const known = curves.get(id) ?? new Map<string, Points>();
  curves.set(id, known);
  return known;
}

/** Adds a point. A retried job goes back some steps: what it runs again replaces what it ran. */
function add(event: JobEvent, name: string, value: unknown, into: Map<string, Points>): boolean {
  if (typeof value !== "number" && typeof value !== "string") return false;
  const number = toNumber(value);
  if (Number.isNaN(number) && value !== "NaN") return false;
  const isOfMachine = event.kind === "system";
  if (isOfMachine) measured.add(name);
  const points = into.get(name) ?? noPoints();
  into.set(name, points);
  // The number of an event stands in place of the step that a measurement lacks. Finer points are read by it.
  const step = isOfMachine ? event.no : (event.step ?? NaN);
  const part = parts.get(event.job)?.get(name);
  if (part && into === curves.get(event.job) && step <= part.steps[1]) parts.get(event.job)!.delete(name);
  addPoint(points, [step, event.epoch ?? NaN, Date.parse(event.at), number], !isOfMachine);
  return true;
}

/** What arrived live of a job beside its metrics and printed lines: states, notes, checkpoints, orders. */
export const liveEvents = (id: string): JobEvent[] => facts.get(id) ?? [];

/** The lines that a job printed while the page followed it. */
export const liveLines = (id: string): JobEvent[] => printed.get(id) ?? [];
