/** Tests what the page keeps of the service's answers. The browser's globals are replaced, and each test chooses when an answer comes. */

import { describe, expect, it, vi } from "vitest";
import type { Job } from "../src/api/types";

class Socket {
  static readonly CONNECTING = 0;
  static all: Socket[] = [];
  readyState = Socket.CONNECTING;
  isClosed = false;
  private listeners = new Map<string, (event: unknown) => void>();
  constructor(readonly address: string, readonly protocols: string[]) {
    Socket.all.push(this);
  }
  addEventListener(kind: string, listener: (event: unknown) => void): void {
    this.listeners.set(kind, listener);
  }
  close(): void {
    this.isClosed = true;
  }
  open(): void {
    this.readyState = 1;
    this.listeners.get("open")?.({});
  }
  receive(frame: object): void {
    this.listeners.get("message")!({ data: JSON.stringify(frame) });
  }
}

interface Held {
  path: string;
  signal: AbortSignal | null;
  headers: Record<string, string>;
  body: string | null;
  answer: (response: Response) => void;
  fail: (error: unknown) => void;
}
const held: Held[] = [];
vi.stubGlobal("WebSocket", Socket);
vi.stubGlobal("location", { hash: "", origin: "http://service" });
vi.stubGlobal("window", { addEventListener: () => undefined });
vi.stubGlobal("history", { replaceState: () => undefined, pushState: () => undefined });
let key: string | null = null;
vi.stubGlobal("sessionStorage", { getItem: () => key });
vi.stubGlobal("fetch", (path: string, { signal, headers, body }: Omit<Held, "path" | "answer" | "fail">) => new Promise<Response>((answer, fail) => held.push({ path, signal, headers, body, answer, fail })));

const { curveOf, curvesPending, curvesProblem, followEvents, followJobs, wantFiner } = await import("../src/model/curves");
const { detailsPending, needSummary, summaryOf } = await import("../src/model/details");
const { act, changeTags, jobs, keep, listed, loadMore, refreshJob, refreshNow } = await import("../src/model/jobs");
const { colorOf } = await import("../src/ui/colors");
const { select } = await import("../src/model/selection");
const { isOnline } = await import("../src/api/connection");

const requests = (...parts: string[]) => held.filter(({ path }) => parts.every((part) => path.includes(part)));

/** Answers the oldest request whose path has these parts, once it is sent. */
async function answer(parts: string[], body: object, status = 200): Promise<void> {
  await vi.waitFor(() => expect(requests(...parts), parts.join(" ")).not.toEqual([]));
  reply(requests(...parts)[0]!, body, status);
}

function reply(request: Held, body: object, status = 200): void {
  held.splice(held.indexOf(request), 1);
  request.answer(new Response(JSON.stringify(body), { status, headers: { "Content-Type": "application/json" } }));
}

const series = (x: unknown[], y: number[]) => ({ data: [{ name: "loss", exact: true, x, y }] });
const job = (id: string, changes: object = {}) => ({ id, version: 1, last_no: 9, state: "running", attempt: 1, metrics: {}, message: null, ...changes }) as unknown as Job;
const settled = () => new Promise((done) => setTimeout(done));

async function answerHistory(id: string, x: number[], y: number[]): Promise<void> {
  await answer([id, "x=step"], series(x, y));
  await answer([id, "kinds=system"], { data: [], next_cursor: null });
}

describe("the jobs that are followed", () => {
  it("are those that were chosen last, also if the history of others is ready later", async () => {
    followJobs([job("job_slow")], "step");
    followJobs([job("job_chosen")], "step");
    await answerHistory("job_chosen", [1], [1]);
    await vi.waitFor(() => expect(Socket.all.at(-1)!.address).toContain("job_chosen"));

    await answerHistory("job_slow", [1], [1]);
    await vi.waitFor(() => expect(curvesPending.value).toBe(0));
    await settled();

    expect(Socket.all.at(-1)!.address).toContain("job_chosen");
  });

  it("are followed by one socket, and a replaced one is closed once it is open", () => {
    followEvents(job("job_first"));
    const replaced = Socket.all.at(-1)!;
    followEvents(job("job_second"));
    // A browser logs an error for a socket that is closed earlier.
    expect(replaced.isClosed).toBe(false);
    replaced.open();
    expect(replaced.isClosed).toBe(true);

    const present = Socket.all.at(-1)!;
    present.open();
    followEvents(job("job_third"));
    expect(present.isClosed).toBe(true);
  });

  it("have their whole history, also if live points came first", async () => {
    followEvents(job("job_live"));
    Socket.all.at(-1)!.receive({ job: "job_live", events: [{ job: "job_live", no: 10, kind: "log", at: "2026-01-01T00:00:00Z", step: 3, epoch: null, rank: 0, data: { loss: 3 } }] });
    followJobs([job("job_live", { last_no: 10 })], "step");

    await answerHistory("job_live", [1, 2, 3], [1, 2, 3]);

    await vi.waitFor(() => expect(curveOf("job_live", "loss", "step", 0).x).toEqual([1, 2, 3]));
  });

  it("have the axis that was chosen while their history was on its way", async () => {
    followJobs([job("job_axis")], "step");
    followJobs([job("job_axis")], "epoch");
    await answerHistory("job_axis", [1, 2], [5, 6]);

    await answer(["job_axis", "x=epoch"], { data: [{ name: "loss", exact: true, x: [0.5, 1], y: [5, 6], steps: [1, 2] }] });
    await answer(["job_axis", "kinds=system"], { data: [], next_cursor: null });

    await vi.waitFor(() => expect(curveOf("job_axis", "loss", "epoch", 0).x).toEqual([0.5, 1]));
  });

  it("have each value at its own epoch, also if others have none", async () => {
    followJobs([job("job_epochs")], "epoch");
    await answer(["job_epochs", "x=epoch"], { data: [{ name: "loss", exact: true, x: [0.5], y: [6], steps: [2] }] });
    await answer(["job_epochs", "kinds=system"], { data: [], next_cursor: null });
    await vi.waitFor(() => expect(curveOf("job_epochs", "loss", "epoch", 0)).toEqual({ x: [0.5], y: [6] }));

    followJobs([job("job_epochs")], "step");
    await answerHistory("job_epochs", [1, 2], [5, 6]);

    await vi.waitFor(() => expect(curveOf("job_epochs", "loss", "step", 0)).toEqual({ x: [1, 2], y: [5, 6] }));
  });

  it("say why a history cannot be read, until it is read", async () => {
    followJobs([job("job_refused")], "step");
    await answer(["job_refused", "x=step"], { detail: "too many requests", code: "rate_limited" }, 429);
    await vi.waitFor(() => expect(curvesProblem.value).toBe("too many requests"));

    followJobs([job("job_refused")], "step");
    await answerHistory("job_refused", [1], [1]);

    await vi.waitFor(() => expect(curveOf("job_refused", "loss", "step", 0).x).toEqual([1]));
    expect(curvesProblem.value).toBeNull();
  });
});

describe("the use of the machine in a long job", () => {
  const START = Date.parse("2026-01-01T00:00:00Z");
  const name = "system/cpu_percent";
  /** Event number n was measured n seconds after the start. */
  const measured = (no: number) => ({ job: "job_long", no, kind: "system", at: new Date(START + no * 1000).toISOString(), step: null, epoch: null, rank: 0, data: { cpu_percent: no % 100 } });
  const LAST = 200_000;

  /** Answers requests for events as the service does. Returns their number. */
  async function answerEvents(isDone: () => boolean): Promise<number> {
    for (let count = 0; ; count += 1) {
      while (!isDone() && requests("job_long", "kinds=system").length === 0) await settled();
      const [request] = requests("job_long", "kinds=system");
      if (!request) return count;
      const query = new URLSearchParams(request.path.split("?")[1]);
      const [after, limit] = [Number(query.get("after")), Number(query.get("limit"))];
      const data = Array.from({ length: Math.min(limit, LAST - after) }, (_, index) => measured(after + 1 + index));
      await answer(["job_long", "kinds=system"], { data, next_cursor: after + limit < LAST ? String(after + limit) : null });
    }
  }

  it("reaches from its first to its newest measurement, and a zoom shows more of them", async () => {
    followJobs([job("job_long", { last_no: LAST })], "step");
    await answer(["job_long", "x=step"], { data: [] });
    expect(await answerEvents(() => curvesPending.value === 0)).toBeLessThanOrEqual(50);
    const whole = () => curveOf("job_long", name, "relative", START).x;
    expect(whole()[0]).toBeLessThan(200);
    expect(whole().at(-1)).toBeGreaterThan(LAST - 500);
    expect(Math.max(...whole().slice(1).map((x, index) => x - whole()[index]!))).toBeLessThan(LAST / 30);

    wantFiner({ id: "job_long", name, axis: "relative", startedAt: START, range: [100_000, 100_500] });
    const near = () => whole().filter((x) => x >= 100_000 && x <= 100_500).length;
    expect(near()).toBeLessThan(200);
    await answerEvents(() => near() >= 200);
  }, 60_000);
});

describe("tags", () => {
  it("that another reader adds at the same time are kept", async () => {
    const done = changeTags(job("job_tags", { tags: ["a"] }), (tags) => [...tags, "b"]);
    await answer(["job_tags"], { detail: "changed", code: "precondition_failed" }, 412);
    await answer(["job_tags"], job("job_tags", { version: 2, tags: ["a", "c"] }));
    await vi.waitFor(() => expect(requests("job_tags")).not.toEqual([]));
    const [request] = requests("job_tags");

    expect(JSON.parse(request!.body!)).toEqual({ tags: ["a", "c", "b"] });
    expect(request!.headers["If-Match"]).toBe('"2"');
    await answer(["job_tags"], job("job_tags", { version: 3 }));
    await done;
  });
});

describe("the colours of selected jobs", () => {
  it("differ while one is free, also after others were selected before", () => {
    for (let first = 0; first < 12; first += 1) {
      const ids = [0, ...Array.from({ length: 3 }, (_, index) => 1 + first * 3 + index)].map((number) => `job_color${number}`);
      select(ids);
      expect(new Set(ids.map(colorOf)).size).toBe(4);
    }
  });
});

describe("a key that a subprotocol cannot hold", () => {
  it("opens the websocket with a ticket", async () => {
    key = "a/key+of=base64";
    followEvents(job("job_ticket"));
    await answer(["/tickets"], { ticket: "0123" });

    await vi.waitFor(() => expect(Socket.all.at(-1)!.address).toMatch(/job_ticket.*&ticket=0123$/));
    expect(Socket.all.at(-1)!.protocols).toEqual(["footplate"]);
    key = null;
  });
});

describe("summaries of metrics", () => {
  const summary = (id: string, last: number) => ({ data: [{ id }], summaries: { [id]: [{ name: "loss", last: { value: last }, min: { value: last }, max: { value: last } }] } });

  it("are read again for a job that moved meanwhile, and none stays awaited", async () => {
    needSummary(job("job_moves"));
    await vi.waitFor(() => expect(requests("include=summary")).not.toEqual([]));
    needSummary(job("job_moves", { state: "succeeded" }));

    await answer(["include=summary"], summary("job_moves", 2));
    await answer(["include=summary"], summary("job_moves", 1));

    await vi.waitFor(() => expect(summaryOf("job_moves")?.get("loss")?.last).toBe(1));
    expect(detailsPending.value).toBe(0);
  });

  it("are asked for again only some time after a request has failed", async () => {
    needSummary(job("job_fails"));
    await vi.waitFor(() => expect(requests("include=summary")).not.toEqual([]));
    vi.useFakeTimers({ toFake: ["setTimeout"] });
    const [request] = held.splice(0);
    request!.answer(new Response("{}", { status: 503, headers: { "Content-Type": "application/json" } }));
    await vi.advanceTimersByTimeAsync(1000);
    needSummary(job("job_fails"));
    await vi.advanceTimersByTimeAsync(0);
    expect(requests("include=summary")).toEqual([]);

    await vi.advanceTimersByTimeAsync(1500);
    needSummary(job("job_fails"));
    await vi.advanceTimersByTimeAsync(0);
    vi.useRealTimers();

    expect(requests("include=summary")).toHaveLength(1);
    await answer(["include=summary"], summary("job_fails", 1));
  });
});

describe("a table that needs all jobs", () => {
  const page = (ids: string[], next: string | null) => ({ data: ids.map((id) => job(id, { state: "succeeded" })), next_cursor: next, total_estimate: 4, project: "default" });

  async function poll(): Promise<void> {
    const done = refreshNow();
    reply(held.find((request) => request.path === "/jobs?limit=200")!, page(["job_4"], "after_4"));
    await answer(["state=starting"], page([], null));
    await done;
  }

  it("gets them also if the newest page is read again while older pages are on their way", async () => {
    jobs.value = new Map();
    await poll();
    const done = loadMore(true);
    await answer(["cursor=after_4"], page(["job_3"], "after_3"));
    await vi.waitFor(() => expect(requests("cursor=after_3")).toHaveLength(1));

    await poll();
    await answer(["cursor=after_3"], page(["job_2", "job_1"], null));
    await done;

    expect(listed.value).toEqual(["job_4", "job_3", "job_2", "job_1"]);
  });
});

describe("a deleted job", () => {
  it("does not come back with an answer that was sent before", async () => {
    keep([job("job_gone")]);
    const done = act(job("job_gone"), "delete");
    await answer(["job_gone"], {});
    await done;

    keep([job("job_gone")]);

    expect(jobs.value.has("job_gone")).toBe(false);
  });
});

describe("a service that does not answer", () => {
  it("is unreachable once a request has waited too long", async () => {
    const asked = refreshJob("job_silent").catch((error: Error) => error.name);
    const [request] = requests("job_silent");
    expect(request!.signal).not.toBeNull();

    request!.fail(new DOMException("too late", "TimeoutError"));
    await asked;

    expect(isOnline.value).toBe(false);
  });
});
