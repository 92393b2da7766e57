import { describe, expect, it, vi } from "vitest";
import { readRow, textOf, wayOf, withMessage } from "../src/lib/answers";
import { asCommand, asCurl, asPython } from "../src/lib/commands";
import { columnOf, compareValues } from "../src/lib/columns";
import { diff, flatten, showValue } from "../src/lib/flatten";
import { argsFor, asComponent, fieldsOf, mergePatch, nextName, parseField, setAt, withDefaults } from "../src/lib/form";
import { formatBytes, formatDuration, formatDurationTicks, formatMoment, formatNumber, formatTicks, sentence, formatX, tabTitle } from "../src/lib/format";
import { type Condition, fieldOf, meets, problemOf, readConditions, serverQuery, writeConditions } from "../src/lib/filters";
import { type Points, addPoint, endAt, hasFiner, noPoints, stepsIn, withPart } from "../src/lib/points";
import { bestOf, familiesOf, groupMetrics, lowerIsBetter } from "../src/lib/groups";
import type { Job } from "../src/api/types";
import { isNewer, listedAfter } from "../src/lib/listed";
import { joinNames, splitNames } from "../src/lib/names";
import { type Checkpoint, checkpointOffers, offersOf } from "../src/lib/offers";
import { FIRST, TEMPLATES, isRecipe } from "../src/lib/templates";
import { gpuUse, systemValues } from "../src/lib/system";
import { band, rangeWithoutOutliers, smooth } from "../src/lib/smooth";
import type { JobEvent } from "../src/api/types";
import { eventText, stepBack } from "../src/lib/events";
import { orderText, rateBefore } from "../src/lib/orders";
import { type Ask, type Printed, levelOf, linesUntil, linesWith, withLive } from "../src/lib/printed";
import { pausesIn, sharedPauses } from "../src/lib/pauses";
import { errorText } from "../src/lib/errors";
import { drawing, soon, throttled } from "../src/lib/slices";
import { halfOf, panned, tableOf } from "../src/lib/table";

describe("format", () => {
  it("shows numbers, durations and sizes as a person writes them", () => {
    expect([0.00001235, 1234567, 20513.5, 0.25, NaN, "NaN", null].map((value) => formatNumber(value))).toEqual(["1.235e-5", "1,234,567", "20,510", "0.25", "NaN", "NaN", ""]);
    expect([0, 93, 3600, 90061].map(formatDuration)).toEqual(["0 s", "1 min 33 s", "1 h", "1 d 1 h"]);
    expect([sentence("no_such_shape"), sentence("pause")]).toEqual(["no such shape", "paused on request"]);
    expect(formatTicks([4.995e-5, 4.996e-5, null])).toEqual(["4.995e-5", "4.996e-5", ""]);
    expect(formatTicks([0, 0.5, 1])).toEqual(["0", "0.5", "1"]);
    expect(formatTicks([0.32, 0.3225, 0.325, 0.1 + 0.2])).toEqual(["0.32", "0.3225", "0.325", "0.3"]);
    expect([999, 1500, 999_700, 2.5e9, 1.2346e15].map(formatBytes)).toEqual(["999 B", "1.50 kB", "1.00 MB", "2.50 GB", "1,235 TB"]);
    expect([[0, 0.5, 1], [0, 60, 120], [-60, 0]].map(formatDurationTicks)).toEqual([["0 s", "0.5 s", "1 s"], ["0 s", "1 min", "2 min"], ["−1 min", "0 s"]]);
    expect([tabTitle("job", { name: "a", id: "job_1", state: "running" }), tabTitle("cluster", undefined), tabTitle("jobs", undefined)]).toEqual(["a (running) · Footplate", "Cluster · Footplate", "Footplate"]);
    const [now, later] = ["2026-01-01T12:00:00Z", "2026-01-03T12:00:00Z"];
    expect([formatMoment(now, Date.parse(now)).includes("2026"), formatMoment(later, Date.parse(now)).includes("2026")]).toEqual([false, true]);
  });
});

describe("answers about a job", () => {
  it("are taken only if they are newer", () => {
    const job = (version: number, last_no: number, step = 0) => ({ version, last_no, message: null, progress: { step } }) as unknown as Job;

    expect(isNewer(job(1, 1), undefined)).toBe(true);
    expect([job(2, 1), job(1, 2), job(1, 1, 5)].map((next) => isNewer(next, job(1, 1)))).toEqual([true, true, true]);
    expect([job(1, 9, 9), job(2, 4, 9), job(2, 5)].map((next) => isNewer(next, job(2, 5)))).toEqual([false, false, false]);
  });
});

describe("points of a curve", () => {
  const curve = (step: number[], isExact: boolean): Points => ({ step, epoch: step.map((at) => at / 100), time: step, y: step.map((at) => -at), isExact });
  const whole = curve([0, 100, 200, 300, 400], false);

  it("shows a finer part in place of the points of the same steps", () => {
    const part = { steps: [100, 200] as const, points: curve([100, 130, 170, 200], true) };
    expect(withPart(whole, part)).toEqual(curve([0, 100, 130, 170, 200, 300, 400], false));
    expect(withPart(whole, { steps: [300, 400], points: curve([300, 350, 400], true) }).step).toEqual([0, 100, 200, 300, 350, 400]);
    expect(withPart(whole, { steps: [500, 600], points: curve([500], true) }).step).toEqual([0, 100, 200, 300, 400, 500]);
  });
  it("asks for the steps that a zoom shows, on any axis, up to the next point on either side", () => {
    expect(stepsIn(whole.step, whole.step, [120, 180])).toEqual([100, 200]);
    expect(stepsIn(whole.epoch, whole.step, [1, 3.5])).toEqual([100, 400]);
    expect(stepsIn(whole.step, whole.step, [-50, 900])).toEqual([0, 400]);
    expect(stepsIn(whole.step, whole.step, [500, 600])).toBeNull();
    expect(stepsIn([], [], [0, 1])).toBeNull();
  });
  it("asks for finer points only where the service has more", () => {
    const steps = [100, 200] as const;
    const part = (from: number, to: number, isExact: boolean) => ({ steps: [from, to] as const, points: curve([], isExact) });
    expect(hasFiner(whole, undefined, steps)).toBe(true);
    expect(hasFiner(curve([0, 1], true), undefined, steps)).toBe(false);
    expect(hasFiner(whole, part(100, 200, false), steps)).toBe(false);
    expect(hasFiner(whole, part(0, 300, false), steps)).toBe(true);
    expect(hasFiner(whole, part(0, 300, true), steps)).toBe(false);
  });
  it("ends where a job goes back to, which a state or the checkpoint of a note says", () => {
    const points = noPoints();
    for (const step of [1, 2, 3]) addPoint(points, [step, NaN, 0, step], true);
    endAt(points, 2);
    expect([points.step, points.y, points.time]).toEqual([[1, 2], [1, 2], [0, 0]]);
    const event = (kind: string, step: number | null, data = {}) => stepBack({ kind, step, data } as never);
    expect([event("state", 5), event("state", null), event("note", 5, { checkpoint: "a" }), event("note", 5), event("log", 5)]).toEqual([5, null, 5, null, null]);
  });
  it("replaces repeated steps and thins what grows too long, with its spikes", () => {
    const points = noPoints();
    for (const step of [1, 2, 3, 2]) addPoint(points, [step, NaN, 0, step], true);
    expect([points.step, points.isExact]).toEqual([[1, 2], true]);
    for (let step = 3; step < 4100; step += 1) addPoint(points, [step, NaN, 0, step === 77 ? 9 : 0], true);
    expect([points.y.length < 2200, points.isExact, points.y.includes(9)]).toEqual([true, false, true]);
  });
});

describe("curves", () => {
  it("smooths by distance, so that twice the points give the same line", () => {
    const dense = Array.from({ length: 201 }, (_, index) => index / 2);
    const sparse = dense.filter((_, index) => index % 2 === 0);
    const step = (x: number) => (x < 50 ? 1 : 0);
    const a = smooth({ x: dense, y: dense.map(step) }, 0.9);
    const b = smooth({ x: sparse, y: sparse.map(step) }, 0.9);
    expect(Math.abs(a[120]! - b[60]!)).toBeLessThan(0.05);
    expect(smooth({ x: [1, 2], y: [3, 4] }, 0)).toEqual([3, 4]);
  });
  it("smooths a curve of sixty points so that one can see it", () => {
    const x = Array.from({ length: 60 }, (_, index) => 5 * index);
    const spread = (values: number[]) => Math.max(...values.slice(20)) - Math.min(...values.slice(20));
    expect(spread(smooth({ x, y: x.map((_, index) => index % 2) }, 0.7))).toBeLessThan(0.6);
  });
  it("makes a band of curves with different steps", () => {
    const found = band([{ x: [0, 2], y: [0, 2] }, { x: [0, 1, 2], y: [2, 2, 2] }]);
    expect(found).toEqual({ x: [0, 1, 2], mean: [1, 1.5, 2], low: [0, 1, 2], high: [2, 2, 2] });
  });
  it("leaves the outermost values out of the range", () => {
    const range = rangeWithoutOutliers([...Array.from({ length: 100 }, (_, index) => index / 100), 1e9])!;
    expect(range[1]).toBeLessThan(2);
    expect(rangeWithoutOutliers([1, 2, 3])).toBeNull();
    const [low, high] = rangeWithoutOutliers([...Array.from({ length: 100 }, () => 5), 1e9])!;
    expect([low < 5, high > 5, high < 6]).toEqual([true, true, true]);
  });
});

describe("tables for charts", () => {
  const many = (offset: number) => Array.from({ length: 3000 }, (_, index) => index + offset);
  it("have every x of a few points, and no value where a curve has none", () => {
    expect(tableOf([{ x: [1, 3], ys: [[10, NaN]] }, { x: [2, NaN], ys: [[20, 9]] }], 100, null)).toEqual([[1, 2, 3], [10, null, null], [null, 20, null]]);
  });
  it("of many points have a few rows, with every spike in its place", () => {
    const spiky = many(0).map((at) => (at === 1777 ? 99 : at === 1778 ? -99 : 0));
    const [x, first, second] = tableOf([{ x: many(0), ys: [spiky] }, { x: many(0.5), ys: [spiky] }], 300, null);
    expect(x.length).toBe(602);
    for (const column of [first!, second!]) {
      expect([column.indexOf(99), column.indexOf(-99)].map((row) => Math.abs(x[row]! - 1777) < 10)).toEqual([true, true]);
      expect(column.indexOf(99)).toBeLessThan(column.indexOf(-99));
    }
  });
  it("of a part show that part finely, and lines reach its edges", () => {
    const [x, line] = tableOf([{ x: many(0), ys: [many(0)] }], 10, [100.5, 110.5]);
    expect([x[0], x.at(-1), line![0], line!.at(-1)]).toEqual([100.5, 110.5, 100.5, 110.5]);
    expect(line!.filter((value) => value !== null).slice(1, -1)).toEqual([101, 102, 103, 104, 105, 106, 107, 108, 109, 110]);
  });
  it("on a logarithmic axis leave out what has no place there", () => {
    const [x, line] = tableOf([{ x: [0, 1, 10], ys: [[5, 6, 7]] }], 10, null, true);
    expect([x.map((at) => Math.round(at)), line]).toEqual([[1, 10], [6, 7]]);
  });
  it("show another part when they are panned, which stays above zero on a logarithmic axis", () => {
    expect(panned([10, 30], -0.5, false)).toEqual([0, 20]);
    expect(panned([1, 100], -2, true).map((at) => Number(at.toPrecision(6)))).toEqual([0.0001, 0.01]);
  });
  it("of a curve that is too long keep the spikes of the half that stays", () => {
    const values = [1, 1, 50, 1, 2, -50, 2, 2];
    expect(halfOf(values).map((place) => values[place])).toEqual([1, 50, 2, -50].sort((a, b) => values.indexOf(a) - values.indexOf(b)));
  });
});

describe("work in slices", () => {
  it("is done one piece at a time, the newest of each owner", async () => {
    vi.useFakeTimers();
    const done: string[] = [];
    const [first, second] = [{}, {}];
    soon.add(first, () => done.push("old"));
    soon.add(second, () => done.push("second"));
    soon.add(first, () => done.push("new"));
    expect(done).toEqual([]);
    vi.advanceTimersToNextTimer();
    expect(done).toEqual(["new"]);
    vi.runAllTimers();
    expect(done).toEqual(["new", "second"]);
    vi.useRealTimers();
  });
  it("draws at most one chart for each frame, and none that is gone", () => {
    vi.useFakeTimers();
    const frames: (() => void)[] = [];
    vi.stubGlobal("requestAnimationFrame", (frame: () => void) => frames.push(frame));
    const done: string[] = [];
    const gone = {};
    drawing.add({}, () => done.push("first"));
    drawing.add(gone, () => done.push("gone"));
    drawing.add({}, () => done.push("last"));
    drawing.remove(gone);
    const frame = () => (frames.shift()!(), vi.runAllTimers());
    frame();
    expect([done, frames.length]).toEqual([["first"], 1]);
    frame();
    expect([done, frames.length]).toEqual([["first", "last"], 0]);
    vi.unstubAllGlobals();
    vi.useRealTimers();
  });
  it("is throttled to its first and its last call in each period", () => {
    vi.useFakeTimers();
    let count = 0;
    const work = throttled(() => (count += 1), 100);
    for (let call = 0; call < 5; call += 1) work();
    expect(count).toBe(1);
    vi.advanceTimersByTime(150);
    expect(count).toBe(2);
    vi.runAllTimers();
    work();
    expect(count).toBe(3);
    vi.useRealTimers();
  });
});

describe("the list of jobs", () => {
  it("loses a job that was deleted, and keeps older pages", () => {
    expect(listedAfter(["d", "c", "b", "a"], ["e", "d", "b"], false)).toEqual(["e", "d", "b", "a"]);
    expect(listedAfter(["c", "b", "a"], ["c", "a"], true)).toEqual(["c", "a"]);
  });
});

describe("the list of jobs after a long absence", () => {
  it("begins again, because jobs between the newest page and the known list are missing", () => {
    expect(listedAfter(["b", "a"], ["z", "y"], false)).toEqual(["z", "y"]);
  });
});

describe("pauses on the wall time", () => {
  const trained = (from: number, count: number, seconds: number) => Array.from({ length: count }, (_, index) => from + index * seconds);
  it("are distances much longer than those near them", () => {
    expect(pausesIn([...trained(0, 5, 10), ...trained(3600, 5, 10)])).toEqual([[40, 3600]]);
    expect(pausesIn([...trained(0, 5, 1), ...trained(30, 5, 1)])).toEqual([]);
    expect(pausesIn(trained(0, 5, 3600))).toEqual([]);
    expect(pausesIn([0, 3600])).toEqual([]);
  });
  it("are none where history is coarser than the live points behind it", () => {
    expect(pausesIn([...trained(0, 20, 100), ...trained(2000, 500, 1)])).toEqual([]);
  });
  it("of several jobs are where none of them trained", () => {
    const [first, second, third] = [trained(0, 5, 10), trained(3600, 5, 10), [...trained(20, 5, 10), ...trained(7200, 5, 10)]];
    const shared = (...curves: number[][]) => sharedPauses(curves.map((x) => ({ x })), curves.map(pausesIn));
    expect(shared(second!, first!)).toEqual([[40, 3600]]);
    expect(shared(first!, third!)).toEqual([[60, 7200]]);
    expect(shared(first!, second!, third!)).toEqual([[60, 3600], [3640, 7200]]);
  });
  it("leave a paused job out of the mean of its family", () => {
    const [paused, runs] = [{ x: [...trained(0, 5, 10), ...trained(3600, 5, 10)], y: Array(10).fill(1) }, { x: trained(0, 200, 20), y: Array(200).fill(3) }];
    const { x, mean } = band([paused, runs], [paused, runs].map((curve) => pausesIn(curve.x)));
    expect(mean[x.indexOf(20)]).toBe(2);
    expect(mean[x.indexOf(2000)]).toBe(3);
  });
  it("are written in UTC", () => {
    expect(formatX(1_790_000_000.5, "time")).toBe("2026-09-21T14:13:20.500Z");
    expect([formatX(3, "step"), formatX(NaN, "time")]).toEqual(["3", ""]);
  });
});

describe("what is offered", () => {
  const job = (changes: object) => ({ state: "running", attempt: 1, external: false, actions: ["do", "pause", "fork", "cancel"], ...changes }) as unknown as Job;
  const row = (changes: object) => ({ id: "ckpt_1", status: "committed", pinned: false, ...changes }) as Checkpoint;
  const whyNot = (...parts: Parameters<typeof offersOf>) => offersOf(...parts).filter(({ why }) => why).map(({ name }) => name);
  const plain = { data: { train: "a", eval: "b" } };
  it("is everything that a running job with a checkpoint can do", () => {
    const offers = offersOf(job({}), plain, [row({})]);
    expect(offers.map(({ name }) => name)).toEqual(["pause", "fork", "copy", "try", "save now", "evaluate now", "learning rate", "cancel"]);
    expect(offers.filter(({ why }) => why)).toEqual([]);
  });
  it("of a run elsewhere is only what the service can do", () => {
    expect(offersOf(job({ external: true, actions: ["delete"] }), {}, [])).toEqual([{ name: "delete", why: null }]);
  });
  it("is disabled where the service would refuse", () => {
    expect(whyNot(job({}), plain, [row({ status: "deleted" })])).toEqual(["fork", "try"]);
    expect(whyNot(job({}), { ...plain, loop: { use: "code:main" } }, [row({})])).toEqual(["try", "save now", "evaluate now", "learning rate"]);
    expect(whyNot(job({}), { ...plain, loop: { script: "train.py" } }, [row({})])).toEqual(["try"]);
    expect(whyNot(job({}), { data: { train: "a" }, optimizers: [{}, {}] }, [row({})])).toEqual(["evaluate now", "learning rate"]);
    expect(offersOf(job({}), { serve: {} }, []).some(({ name }) => name === "try")).toBe(false);
  });
  it("is only the download of checkpoints to a key that may only read", () => {
    expect(offersOf(job({}), plain, [row({})], "read only").every(({ why }) => why === "read only")).toBe(true);
    expect(offersOf(job({ external: true, actions: ["delete"] }), {}, [], "read only")).toEqual([{ name: "delete", why: "read only" }]);
    const whys = checkpointOffers(job({ state: "failed", actions: ["resume"] }), row({}), [row({})], plain, "read only");
    expect(Object.entries(whys).filter(([, why]) => why === null).map(([name]) => name)).toEqual(["download"]);
  });
  it("of a checkpoint depends on what it is and on what needs it", () => {
    const [only, other] = [row({}), row({ id: "ckpt_2" })];
    const refused = (of: Job, one: Checkpoint, all: Checkpoint[]) => Object.entries(checkpointOffers(of, one, all, plain)).filter(([, why]) => why).map(([name]) => name);
    expect(refused(job({ state: "paused", actions: ["resume"] }), only, [only])).toEqual(["delete"]);
    expect(refused(job({ state: "paused", actions: ["resume"] }), only, [only, other])).toEqual([]);
    expect(refused(job({ state: "running" }), only, [other, only])).toEqual(["resume"]);
    expect(refused(job({ state: "failed", actions: ["resume"] }), only, [only])).toEqual([]);
    expect(refused(job({ state: "paused", actions: ["resume"] }), only, [row({ id: "c", pinned: true }), only])).toEqual(["resume"]);
    expect(refused(job({ state: "stopping", actions: ["resume"] }), only, [other, only])).toEqual(["resume"]);
    expect(refused(job({ state: "failed", actions: ["resume"] }), row({ pinned: true }), [])).toEqual(["delete"]);
    expect(refused(job({ state: "failed", actions: ["resume"] }), row({ status: "deleted" }), [])).toEqual(["download", "pin", "resume", "fork", "try", "delete"]);
  });
});

describe("the use of GPUs", () => {
  it("is the newest report of each", () => {
    const report = (...gpus: object[]) => ({ kind: "system", data: { gpus } }) as unknown as Parameters<typeof gpuUse>[0][number];
    const events = [report({ uuid: "a", percent: 1 }), report({ uuid: "b", percent: 2 }), report({ uuid: "a", percent: 3 })];
    expect(gpuUse(events)).toEqual({ a: { uuid: "a", percent: 3 }, b: { uuid: "b", percent: 2 } });
  });
});

describe("templates", () => {
  it("are the recipes of the examples, and two that need nothing", () => {
    const titles = TEMPLATES.map((template) => template.title);
    for (const name of ["sft-lora", "dpo", "reward-model", "grpo", "embeddings", "setfit", "sst2"]) expect(titles).toContain(name);
    expect(TEMPLATES.filter((template) => !template.folder && !isRecipe(template.spec)).map((template) => template.spec.name)).toEqual([FIRST.name, "tiny-gpt"]);
    expect(isRecipe(TEMPLATES.find((template) => template.title === "dpo")!.spec)).toBe(true);
  });
});

describe("groups and columns", () => {
  it("puts train before eval, and losses first", () => {
    expect(groupMetrics(["layer_10/norm", "layer_2/norm", "m10", "m9"]).map(({ title, names }) => [title, ...names])).toEqual([["train", "m9", "m10"], ["layer_2", "layer_2/norm"], ["layer_10", "layer_10/norm"]]);
    expect(groupMetrics(["eval_loss", "lr", "loss", "system/running_s", "eval/f1"])).toEqual([
      { title: "train", names: ["loss", "lr"] }, { title: "eval", names: ["eval_loss", "eval/f1"] }, { title: "system", names: ["system/running_s"] },
    ]);
  });
  it("knows which value of a metric is the best one", () => {
    expect(["eval_loss", "rmse", "wer", "eval/mae", "answer_f1", "soccer_accuracy"].map(lowerIsBetter)).toEqual([true, true, true, true, false, false]);
    expect(["answer_f1", "acc_norm", "finance_f1", "grad_norm", "lr", "global_step"].map((name) => bestOf([1, 2], name))).toEqual([2, 2, 2, undefined, undefined, undefined]);
  });
  it("shows how far a job is, also without a known number of steps, and no time for one that never ran", () => {
    const job = (step: number, max_steps: number) => ({ progress: { step, max_steps }, attempt: 0, running_s: 0, state: "queued" }) as unknown as Job;
    const extra = { spec: undefined, summary: undefined, now: 0 };
    expect([job(1, 3), job(1200, 0), job(0, 0)].map((one) => columnOf("progress")!.text(one, extra))).toEqual(["33 %", "step 1,200", ""]);
    expect(columnOf("running")!.text(job(0, 0), extra)).toBe("");
  });
  it("sorts missing values last in both directions", () => {
    expect([3, null, 1].sort((a, b) => compareValues(a, b, false))).toEqual([1, 3, null]);
    expect([3, null, 1].sort((a, b) => compareValues(a, b, true))).toEqual([3, 1, null]);
  });
});

describe("specs", () => {
  it("shows only what differs", () => {
    const specs = [{ a: { b: 1, c: [1] } }, { a: { b: 2, c: [1] }, d: null }].map((spec) => flatten(spec));
    expect(diff(specs)).toEqual([{ path: "a.b", values: [1, 2] }, { path: "d", values: [undefined, null] }]);
  });
  it("shows lists as people write them", () => {
    expect([["a", "b"], [1], [], "a", null, undefined].map(showValue)).toEqual(["a, b", "1", "[]", "a", "null", "—"]);
  });
  it("adds the defaults of what only other specs set", () => {
    const schema = { properties: { priority: { default: 5 }, training: { $ref: "#/$defs/Training" } }, $defs: { Training: { properties: { learning_rate: { default: 5e-5 } } } } };
    const catalogue = { models: { mlp: { args: { properties: { hidden: { default: 64 } } } } } };
    const specs = [{ model: { use: "mlp", args: { hidden: 64 } }, training: { learning_rate: 0.1 }, priority: 7 }, { model: { use: "mlp", args: {} } }, { model: { use: "my_code:Net", args: { hidden: 9 } } }];

    const rows = diff(withDefaults(specs.map((spec) => flatten(spec)), schema, catalogue));

    expect(Object.fromEntries(rows.map(({ path, values }) => [path, values]))).toEqual({
      "model.args.hidden": [64, 64, 9], "model.use": ["mlp", "mlp", "my_code:Net"], priority: [7, 5, 5], "training.learning_rate": [0.1, 5e-5, 5e-5],
    });
    expect(withDefaults([flatten(specs[0]), flatten(specs[2])], schema, {})[1]!.has("priority")).toBe(true);
    expect(diff(withDefaults(specs.slice(0, 2).map((spec) => flatten({ model: spec.model })), schema, catalogue))).toEqual([]);
  });
  it("gives a fork a name of its own", () => {
    const taken = new Set([null, "run fork", "run fork 2"]);
    expect(["other", "run", "run fork 2"].map((name) => nextName(name, "fork", taken))).toEqual(["other fork", "run fork 3", "run fork 3"]);
    expect(nextName("run fork", "copy", taken)).toBe("run fork copy");
    expect(nextName("x".repeat(128), "fork", taken).length).toBeLessThan(128);
  });
  it("keeps the arguments of a component while its name is typed, and then those that the new one takes", () => {
    const args = { hidden: 256, depth: 3 };
    expect([argsFor(undefined, args), argsFor({ properties: { depth: {} } }, args), argsFor({}, args)]).toEqual([args, { depth: 3 }, {}]);
  });
  it("edits a spec by pointers without touching the rest", () => {
    const spec = { training: { seed: 1 }, model: "m" };
    expect(setAt(spec, ["training", "seed"], undefined)).toEqual({ model: "m" });
    expect(setAt(spec, ["training", "lr"], 0.1)).toEqual({ training: { seed: 1, lr: 0.1 }, model: "m" });
    expect(asComponent("m", {})).toBe("m");
    expect(asComponent("m", { a: 1 })).toEqual({ use: "m", args: { a: 1 } });
    expect(asComponent("m", {}, { use: "m", args: { a: 1 } })).toEqual({ use: "m", args: {} });
  });
  it("reads fields from a schema, and what is typed into them", () => {
    const fields = fieldsOf({ properties: { n: { anyOf: [{ type: "integer" }, { type: "null" }], default: null }, mode: { enum: ["a", "b"] }, on: { type: "boolean" } }, required: ["mode"] });
    expect(fields.map(({ name, kind, isRequired }) => [name, kind, isRequired])).toEqual([["n", "number", false], ["mode", "choice", true], ["on", "boolean", false]]);
    expect([parseField("number", "1e-3"), parseField("number", "x"), parseField("boolean", "true"), parseField("json", "[1]"), parseField("text", " ")]).toEqual([0.001, "x", true, [1], undefined]);
  });
  it("makes a merge patch for a fork", () => {
    expect(mergePatch({ a: 1, b: { c: 1, d: 2 }, e: 5 }, { a: 1, b: { c: 3, d: 2 } })).toEqual({ b: { c: 3 }, e: null });
  });
});

describe("names in one text", () => {
  it("come back as they were, with their commas and backslashes", () => {
    const names = ["loss", "f1@0.5,0.9", "a\\b", "c\\,"];
    expect(joinNames(["f1@0.5,0.9", "loss"])).toBe("f1@0.5\\,0.9,loss");
    expect(splitNames(joinNames(names))).toEqual(names);
    expect(splitNames("a,,b\\c,")).toEqual(["a", "b\\c"]);
  });
});

describe("commands", () => {
  it("writes a request as curl, Python and command line", () => {
    const pause = { method: "POST", path: "/jobs/job_1/pause" };
    expect(asCurl(pause, "http://h", true)).toBe(`curl -s -X POST 'http://h/jobs/job_1/pause' -H "Authorization: Bearer $FOOTPLATE_API_KEY"`);
    expect(asPython(pause, "http://h", true)).toContain('job = client.jobs.get("job_1")\njob.pause()');
    expect(asCommand(pause)).toBe("footplate pause job_1");
    expect(asPython({ method: "POST", path: "/jobs", body: '{"a": true, "b": null}' }, "http://h", true)).toContain('create({"a": True, "b": None})');
  });

  it("repeats a fork with its changes and an order with its values", () => {
    const fork = { method: "POST", path: "/jobs/job_1/fork", body: '{"checkpoint": "best", "patch": {"name": "b", "training": {"seed": 2, "note": "it\'s"}}}' };
    expect(asCommand(fork)).toBe(`footplate fork job_1 --checkpoint best --set 'name="b"' --set 'training.seed=2' --set 'training.note="it'\\''s"'`);
    expect(asPython(fork, "http://h", false)).toContain('fork = job.fork(checkpoint="best", patch={"name": "b", "training": {"seed": 2, "note": "it\'s"}})');
    const rate = { method: "POST", path: "/jobs/job_1/do", body: '{"save": true, "set": {"learning_rate": 0.001}}' };
    const back = { method: "POST", path: "/jobs/job_1/resume", body: '{"checkpoint": "ckpt_1"}' };
    expect(asCommand(back)).toBe("footplate resume job_1 --checkpoint ckpt_1");
    expect(asPython(back, "http://h", false)).toContain('job.resume(checkpoint="ckpt_1")');
    expect(asCommand(rate)).toBe("footplate do job_1 --save --set 'learning_rate=0.001'");
    expect(asPython(rate, "http://h", false)).toContain('job.do(save=True, set={"learning_rate": 0.001})');
  });

  it("repeats a request in another project", () => {
    const logs = { method: "GET", path: "/jobs/job_1/logs?project=vision" };
    const events = { method: "GET", path: "/jobs/job_1/events?kinds=state,checkpoint&project=vision" };
    const submit = { method: "POST", path: "/jobs?project=vision", body: "{}" };
    const pin = { method: "PATCH", path: "/jobs/job_1/checkpoints/ckpt_1?project=vision", body: "{}" };
    expect([logs, events, submit, pin].map(asCommand)).toEqual(["footplate logs job_1 --project 'vision'", "footplate events job_1 --project 'vision'", "footplate submit '{}' --project 'vision'", null]);
    expect(asPython(logs, "http://h", false)).toContain('client = Client("http://h", project="vision")\njob = client.jobs.get("job_1")\nfor line in job.logs()');
    expect(asPython(events, "http://h", false)).toContain('job.events(kinds="state,checkpoint", follow=False)');
    expect(asPython(pin, "http://h", false)).toContain('httpx2.request("PATCH", "http://h/jobs/job_1/checkpoints/ckpt_1?project=vision", json={})');
    expect(asCurl(logs, "http://h", false)).toBe("curl -s 'http://h/jobs/job_1/logs?project=vision'");
  });

  it("is Python with the key for what the client has no method for", () => {
    const pin = { method: "PATCH", path: "/jobs/job_1/checkpoints/ckpt_1", body: '{"pinned": true}' };
    expect(asPython(pin, "http://h", true)).toContain('headers={"Authorization": "Bearer " + os.environ["FOOTPLATE_API_KEY"]}');
    expect(asPython(pin, "http://h", false)).not.toContain("headers");
    expect(asCommand(pin)).toBeNull();
  });
});

describe("filters", () => {
  const job = { id: "job_1", name: "a", tags: ["x"], node: "node-1", nodes: [], metrics: { loss: 0.25, bad: "NaN" }, created_at: "2026-01-02T00:00:00Z" } as unknown as Job;
  const extra = { spec: new Map<string, unknown>([["training.seed", 3]]), summary: new Map([["f1", { last: 0.5, min: 0.1, max: 0.9 }]]), now: Date.parse("2026-01-02T12:00:00Z") };
  const holds = (text: string) => readConditions(text).every((condition) => meets(job, condition, extra));
  it("stand in an address and come back from it", () => {
    const conditions: Condition[] = [{ field: "spec:training.seed", operator: "<=", value: "1;2=3" }, { field: "node", operator: "~", value: "a b" }];
    expect(readConditions(writeConditions(conditions))).toEqual(conditions);
    expect(readConditions("nothing;;no such=1")).toEqual([]);
    expect(readConditions("node=50%")).toEqual([{ field: "node", operator: "=", value: "50%" }]);
  });
  it("compare numbers, text, tags, times and the best of a metric", () => {
    expect(["spec:training.seed=3", "metric:loss:last<0.3", "metric:f1:best>=0.9", "metric:bad:last=nan", "tags=x", "node~ODE", "created>24h", "created<2026-01-03", "created<1h"].map(holds)).toEqual(Array(9).fill(true));
    expect(["spec:training.seed!=3", "metric:loss:last>0.3", "metric:none:last<1", "tags=y", "created>1h", "spec:none=1"].map(holds)).toEqual(Array(6).fill(false));
  });
  it("say what is wrong with a value before they are used", () => {
    expect(problemOf({ field: "created", operator: ">", value: "soon" }, 0)).toContain("is not a moment");
    expect(problemOf({ field: "created", operator: "=", value: "2026-01-01" }, 0)).toContain("is a moment");
    expect(problemOf({ field: "node", operator: "<", value: "a" }, 0)).toContain("is not a number");
    expect(problemOf({ field: "created", operator: ">", value: "7d" }, 0)).toBeNull();
  });
  it("find a field by what people call it", () => {
    expect(["Node", "tag", "learning_rate", "f1", "metric:f1:max", "lss"].map((name) => fieldOf(name, ["training.learning_rate"], ["f1", "learning_rate"]))).toEqual(["node", "tags", "spec:training.learning_rate", "metric:f1:last", "metric:f1:max", null]);
  });
  it("ask the service for what it can filter by itself", () => {
    expect(serverQuery(readConditions("tags=x;created>24h;node=a"), Date.parse("2026-01-02T00:00:00Z"))).toEqual({ tag: "x", created_after: "2026-01-01T00:00:00.000Z" });
  });
});

describe("families", () => {
  it("join jobs that differ by seeds and names only", () => {
    const specs = new Map(["a-s1", "a-s2", "b-s1"].map((name, index) => [name, new Map<string, unknown>([["name", name], ["training.seed", index], ["training.learning_rate", name[0]!]])]));
    const jobs = [...specs.keys()].map((id) => ({ id, name: id, tags: [] }));
    const titles = (by: string) => familiesOf(jobs, by, (id) => specs.get(id)).map((family) => [family.title, family.jobs.length]);
    expect(titles("seeds")).toEqual([["a", 2], ["b-s1", 1]]);
    expect(titles("training.learning_rate")).toEqual([['learning_rate "a"', 2], ['learning_rate "b"', 1]]);
    expect(titles("all")).toEqual([["all", 3]]);
  });
});

describe("use of the machine", () => {
  const event = { job: "job_1", no: 1, attempt: 1, rank: 0, kind: "system" as const, at: "", step: null, epoch: null };

  it("draws CPU, memory and each GPU, and not the time that training has run", () => {
    const gpus = [{ uuid: "a", percent: 90, memory_mb: 1000 }, { uuid: "b", percent: 10, memory_mb: 20 }];
    const values = systemValues({ ...event, data: { running_s: 10, cpu_percent: 99.5, memory_mb: 300, gpus } });

    expect(Object.fromEntries(values)).toEqual({
      "system/cpu_percent": 99.5,
      "system/memory_mb": 300,
      "system/gpu0_percent": 90,
      "system/gpu0_memory_mb": 1000,
      "system/gpu1_percent": 10,
      "system/gpu1_memory_mb": 20,
    });
  });

  it("tells the ranks of a job apart", () => {
    expect(systemValues({ ...event, rank: 1, data: { cpu_percent: 5 } })).toEqual([["system/cpu_percent (rank 1)", 5]]);
  });
});

describe("answers of a checkpoint", () => {
  it("are asked for without the message before that got no answer", () => {
    const answered = [{ role: "user", content: "a" }, { role: "assistant", content: "b" }] as const;
    const stopped = withMessage([...answered], "stopped");
    expect(withMessage(stopped, "c")).toEqual([...answered, { role: "user", content: "c" }]);
  });

  it("reads the text of chats and completions, their end, and an error in their midst", () => {
    const chat = { choices: [{ delta: { content: "at" } }] };
    const texts = [chat, { choices: [{ delta: {} }] }, { choices: [{ text: " dawn" }] }].map((event) => textOf(JSON.stringify(event)));
    expect([...texts, textOf("[DONE]")]).toEqual(["at", "", " dawn", null]);
    expect(() => textOf('{"error":{"message":"the session has ended"}}')).toThrow("the session has ended");
  });

  it("takes a row as JSON or as a text, and the way that fits the model", () => {
    expect([readRow('{"x": [1]}'), readRow(" hello ")]).toEqual([{ x: [1] }, "hello"]);
    expect(() => readRow("{x: 1}")).toThrow("The row is not JSON");
    expect([wayOf("hf/causal-lm"), wayOf("toy/mlp")]).toEqual(["text", "row"]);
  });
});

describe("printed lines", () => {
  const line = (no: number, text = `line ${no}`): Printed => ({ no, at: "", rank: 0, stream: "stdout", text });
  /** A log as the service sends it: a page searches some events at a time, so it may be empty although a next one is there. */
  const logOf = (lines: Printed[], last: number, searched: number): Ask => async (query) => {
    const [from, to] = [Number(query.get("after")), Number(query.get("after")) + searched];
    const grep = query.get("grep") ?? "";
    return { data: lines.filter(({ no, text }) => no > from && no <= to && text.includes(grep)), next_cursor: to < last ? String(to) : null };
  };

  it("are the newest ones, and then earlier ones without a gap", async () => {
    const all = Array.from({ length: 12_000 }, (_, index) => line(index + 1));
    const ask = logOf(all, 12_000, 700);
    const newest = await linesUntil(ask, 12_000, "");
    const earlier = await linesUntil(ask, newest.from, "");
    expect([earlier.lines[0]!.no, earlier.lines.at(-1)!.no, newest.lines[0]!.no, newest.lines.at(-1)!.no]).toEqual([2001, 7000, 7001, 12_000]);
  });

  it("are found however long ago the job printed them", async () => {
    const { lines, from } = await linesUntil(logOf([line(3)], 1_000_000, 100_000), 1_000_000, "");
    expect([lines.map(({ no }) => no), from]).toEqual([[3], 0]);
  });

  it("are searched page after page, to a limit that is named", async () => {
    const ask = logOf([line(1), line(90_000, "found"), ...Array.from({ length: 3000 }, (_, index) => line(95_000 + index, "many"))], 100_000, 1000);
    expect(await linesWith(ask, "found", "")).toEqual({ lines: [line(90_000, "found")], isWhole: true });
    const many = await linesWith(ask, "many", "");
    expect([many.lines.length, many.isWhole]).toEqual([2000, false]);
  });

  it("are joined with live ones, and the oldest make room for them without a gap", () => {
    const read = { lines: [line(3), line(4)], from: 0, isWhole: true };
    expect(withLive(read, [line(6)], 9)).toEqual({ lines: [line(3), line(4), line(6)], from: 0, isWhole: true });
    expect(withLive(read, [line(6), line(7)], 3)).toEqual({ lines: [line(4), line(6), line(7)], from: 3, isWhole: true });
  });

  it("are coloured by the level that they name, not by their stream", () => {
    expect(["12:00 INFO ready", "12:00 WARNING low", "x.py:3: UserWarning: old", "ValueError: no", "12:00 ERROR no", "no errors found"].map(levelOf)).toEqual(["", "warning", "warning", "error", "error", ""]);
  });
});

describe("events and orders", () => {
  const event = (kind: string, data: object, step: number | null = null) => ({ kind, data, step }) as unknown as JobEvent;

  it("say what happened, without paths and sums", () => {
    const saved = event("checkpoint", { status: "committed", path: "jobs/a", bytes: 1_500_000, manifest_sha256: "ab", files: 8, is_best: true, message: null }, 80);
    expect(eventText(saved)).toBe("checkpoint of step 80 saved, 1.50 MB in 8 files, the best so far");
    expect(eventText(event("done", { ending: "finished", reason: "completed", running_s: 93, outputs: "jobs/a" }))).toBe("the attempt ended: finished, completed, ran 1 min 33 s");
  });

  it("say what the loop answered", () => {
    expect(orderText(event("do", { status: "asked", message: "requested: save" }))).toBe("requested: save. The loop answers after its present step.");
    expect(orderText(event("do", { status: "done", message: "saves a checkpoint" }, 831))).toBe("At step 831: saves a checkpoint.");
  });

  it("begin with the rate that the schedule multiplies, not with the rate of the present step", () => {
    const set = event("do", { status: "asked", set: { learning_rate: 0.01 } });
    expect(rateBefore([], { training: { learning_rate: 5e-5 } })).toBe("0.00005");
    expect(rateBefore([set, event("do", { status: "done", set: { learning_rate: { from: 1, to: 2 } } })], { training: { learning_rate: 5e-5 } })).toBe("0.01");
  });
});

describe("errors", () => {
  it("say what would work, also for one wrong field", () => {
    expect(errorText("/url: is private", null, [{ hint: "use a public address" }])).toBe("url: is private — use a public address");
    expect(errorText("2 fields are wrong", null, [{ hint: "one" }, { hint: "other" }])).toBe("2 fields are wrong");
    expect(errorText("it runs", "pause it", [])).toBe("it runs — pause it");
    expect(errorText("/: the file is empty", null, [])).toBe("the file is empty");
  });
});
