/** One job: where it stands, what can be done now, its curves, history, log, spec, checkpoints and outputs. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, download, explain, inProject, recentRequests, request, storedKey } from "../api/client";
import type { Job, JobEvent, JobList } from "../api/types";
import { asCommand, asCurl, asPython } from "../lib/commands";
import { formatAge, formatBytes, formatDuration, formatNumber, jobTitle, sentence } from "../lib/format";
import { groupMetrics, isFigure } from "../lib/groups";
import { type Checkpoint, ELSEWHERE, LIVE, type SpecParts, checkpointOffers, offersOf } from "../lib/offers";
import { followAgain, linesVersion, liveEvents } from "../model/curves";
import { detailsVersion, needSpec, rawSpecOf } from "../model/details";
import { act, attempt, forget, isFinal, jobs, refreshJob } from "../model/jobs";
import { go, href, param, setParams } from "../model/route";
import { Copy } from "../ui/Copy";
import { JsonText } from "../ui/Json";
import { Menu } from "../ui/Menu";
import { Waiting } from "../ui/Waiting";
import { Charts } from "./Charts";

const TABS = ["curves", "attempts", "events", "log", "spec", "checkpoints", "outputs", "api"] as const;
type Tab = (typeof TABS)[number];

export function JobView({ id }: { id: string }) {
  const job = jobs.value.get(id);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    setProblem(null);
    const failed = (error: unknown) => {
      // Somebody else may have deleted the job while this page shows it.
      if (error instanceof ApiError && error.status === 404) forget(id);
      setProblem(explain(error));
    };
    refreshJob(id).catch(failed);
    const timer = setInterval(() => document.hidden || refreshJob(id).then(() => setProblem(null), failed), 2000);
    return () => clearInterval(timer);
  }, [id]);
  if (problem && !job) return <Waiting title="No such job">{problem} <a href={href("jobs")}>All jobs</a></Waiting>;
  if (!job) return <Waiting title="Job" />;
  const tab = (TABS as readonly string[]).includes(param("tab")) ? (param("tab") as Tab) : "curves";
  return (
    <article class="job">
      <Header job={job} />
      <InSight id={`tab-${tab}`} />
      <div class="tabs" role="tablist" onKeyDown={moveAlongTabs}>
        {TABS.map((name) => (
          <button key={name} type="button" role="tab" id={`tab-${name}`} aria-selected={tab === name} aria-controls="panel" tabIndex={tab === name ? 0 : -1}
            onClick={() => setParams({ tab: name === "curves" ? null : name })}>{name === "api" ? "API" : name}</button>
        ))}
      </div>
      <div id="panel" role="tabpanel" aria-labelledby={`tab-${tab}`}>
        {tab === "curves" && <Charts jobs={[job]} />}
        {tab === "attempts" && <Attempts job={job} />}
        {tab === "events" && <Events job={job} />}
        {tab === "log" && <Log job={job} />}
        {tab === "spec" && <Spec job={job} />}
        {tab === "checkpoints" && <Checkpoints job={job} />}
        {tab === "outputs" && <Outputs job={job} />}
        {tab === "api" && <Api job={job} />}
      </div>
    </article>
  );
}

/** Scrolls the row of tabs to the chosen one, which a narrow screen may not show. */
function InSight({ id }: { id: string }) {
  useEffect(() => {
    const tab = document.getElementById(id);
    tab?.parentElement?.scrollTo({ left: tab.offsetLeft - tab.parentElement.offsetLeft - 60 });
  }, [id]);
  return null;
}

/** The arrow keys move along the tabs, as a tab list is used everywhere. */
function moveAlongTabs(event: KeyboardEvent): void {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by) return;
  const tabs = [...(event.currentTarget as HTMLElement).querySelectorAll("button")];
  const next = tabs[(tabs.indexOf(document.activeElement as HTMLButtonElement) + by + tabs.length) % tabs.length]!;
  next.click();
  next.focus();
}

const MOST_LATEST = 12;

function Header({ job }: { job: Job }) {
  const { step = 0, max_steps: steps = 0, epoch, eta_s: left } = job.progress ?? {};
  const facts = [
    job.attempt > 0 && !job.external && `attempt ${job.attempt}`,
    job.nodes.length ? `on ${job.nodes.join(", ")}` : job.node && `on ${job.node}`,
    steps ? `step ${formatNumber(step)} of ${formatNumber(steps)}` : null,
    epoch !== undefined && `epoch ${formatNumber(epoch, 3)}`,
    job.state === "running" && left ? `${formatDuration(left)} left` : null,
    job.tags.length ? `tags ${job.tags.join(", ")}` : null,
    `project ${job.project}`,
    job.external && "runs elsewhere",
  ];
  const latest = groupMetrics(Object.keys(job.metrics).filter((name) => !isFigure(name))).flatMap((group) => group.names).slice(0, MOST_LATEST);
  return (
    <header class="job-header">
      <p class="crumbs"><a href={href("jobs")}>Jobs</a> / <code>{job.id}</code></p>
      <h1>{jobTitle(job)} <span class={`state ${job.state}`}>{job.state}</span></h1>
      {!job.error && <p class="why">{job.message || sentence(job.reason)}</p>}
      {job.state === "queued" && <Place job={job} />}
      <Lineage job={job} />
      {steps > 0 && <progress max={steps} value={step} aria-label={`Step ${step} of ${steps}`} />}
      <p class="facts">{facts.filter(Boolean).join(" · ")}</p>
      <Actions job={job} />
      {job.error && (
        <section class="failure" aria-label="Error">
          <b>{job.error.message}</b>
          {job.error.hint && <p>{job.error.hint}</p>}
          {job.error.traceback && <pre tabIndex={0}>{job.error.traceback}</pre>}
        </section>
      )}
      {latest.length > 0 && (
        <dl class="latest">
          {latest.map((name) => <div key={name}><dt title={name}>{name}</dt><dd>{formatNumber(job.metrics[name])}</dd></div>)}
        </dl>
      )}
    </header>
  );
}

/** Where a waiting job stands in the queue. */
function Place({ job }: { job: Job }) {
  const [place, setPlace] = useState<{ place: number | null; ahead: { yours: number; others: number }; starts_after: string | null } | null>(null);
  useEffect(() => {
    const load = () => request<{ data: (typeof place)[] }>(`/queue?job=${job.id}`).then((answer) => setPlace(answer.data[0] ?? null)).catch(() => undefined);
    void load();
    const timer = setInterval(load, 3000);
    return () => clearInterval(timer);
  }, [job.id]);
  if (!place) return null;
  const before = place.ahead.yours + place.ahead.others;
  // A job that no node can take is first in line, and yet does not start.
  const next = job.reason === "no_such_shape" ? "first once a node can take it" : "next to start";
  return (
    <p class="why">
      {place.place === null ? `Not in the queue before ${place.starts_after ?? "later"}. ` : `Place ${formatNumber(place.place)} in the queue, ${before === 0 ? next : `${formatNumber(before)} before it`}. `}
      <a href={href("cluster")}>The whole queue</a>
    </p>
  );
}

/** The job whose checkpoint this one started from, and the jobs that started from its own. */
function Lineage({ job }: { job: Job }) {
  void detailsVersion.value;
  const [forks, setForks] = useState<Job[]>([]);
  // Sessions and exports start from a checkpoint, too, and train nothing.
  const isFork = (other: Job) => other.metadata.of !== job.id;
  useEffect(() => needSpec(job.id), [job.id]);
  useEffect(() => {
    let isShown = true;
    request<JobList>(`/jobs?forked_from=${job.id}&limit=20`).then((list) => isShown && setForks(list.data.filter(isFork)), () => undefined); // The page stays whole without them.
    return () => void (isShown = false);
  }, [job.id]);
  const from = partsOf(job.id)?.resume_from;
  if (!from?.job && forks.length === 0) return null;
  return (
    <p class="why">
      {from?.job && <>Forked from <a href={href(`jobs/${from.job}`)}>{from.job}</a>, checkpoint {from.checkpoint ?? "latest"}. <a href={href("compare", { sel: `${from.job},${job.id}` })}>Compare both</a>. </>}
      {forks.length > 0 && (
        <>
          Its forks: {forks.map((fork) => <><a key={fork.id} href={href(`jobs/${fork.id}`)}>{fork.name ?? fork.id}</a> ({fork.state}), </>)}
          <a href={href("compare", { sel: [job.id, ...forks.map((fork) => fork.id)].join(",") })}>compare with them</a>.
        </>
      )}
    </p>
  );
}

const MEANING: Record<string, string> = {
  pause: "Saves a checkpoint, then frees the node. Resume continues at the next step.",
  resume: "Continues from the newest checkpoint.",
  cancel: "Saves a checkpoint, then stops. A cancelled job can be resumed.",
  delete: "Deletes the job with its events, checkpoints and outputs. This cannot be undone.",
  fork: "Starts a new job from one of this job's checkpoints, with a changed spec.",
  "save now": "Saves a checkpoint after the present step.",
  "evaluate now": "Runs an evaluation after the present step.",
  try: "Asks a checkpoint of this job questions. It needs a free slot.",
  "learning rate": "Changes the learning rate of the running loop at its next step, and of later attempts.",
};

function Actions({ job }: { job: Job }) {
  const [asking, setAsking] = useState<string | null>(null);
  const run = async (action: string) => {
    setAsking(null);
    await act(job, action);
    if (action === "delete" && !jobs.value.has(job.id)) {
      forget(job.id);
      go(href("jobs"));
    }
    if (action === "resume") followAgain(job.id);
  };
  void detailsVersion.value;
  const saved = useList<Checkpoint>(job, "checkpoints", job.version + (job.progress?.step ?? 0)).rows;
  const offers = offersOf(job, partsOf(job.id), saved).filter(({ name }) => name in MEANING);
  const ofName = (name: string) => offers.find((offer) => offer.name === name);
  const buttons = (isLast: boolean) => offers.filter(({ name }) => !["fork", "try", ...LIVE].includes(name) && isLast === ["cancel", "delete"].includes(name)).map(({ name }) => (
    <button key={name} type="button" title={MEANING[name]} onClick={() => (isLast ? setAsking(name) : void run(name))}>{name}</button>
  ));
  return (
    <div class="actions">
      {buttons(false)}
      <LinkIf text="fork…" to={href("submit", { fork: job.id })} meaning={MEANING.fork!} offer={ofName("fork")} />
      <LinkIf text="try…" to={href("try", { a: job.id })} meaning={MEANING.try!} offer={ofName("try")} />
      {ofName("save now") && <Live job={job} whyNot={(name) => ofName(name)?.why ?? null} />}
      {buttons(true)}
      <Menu label="?" name="What these do">
        <dl class="meanings">{offers.map(({ name, why }) => <><dt>{name}</dt><dd>{MEANING[name]}{why && <em> Not now: {why}</em>}</dd></>)}</dl>
      </Menu>
      {job.external && <small>{ELSEWHERE}</small>}
      {asking && (
        <span class="confirm" role="alertdialog" aria-label={`Confirm ${asking}`}>
          {MEANING[asking]} <button type="button" class="danger" onClick={() => void run(asking)}>Yes, {asking}</button>{" "}
          <button type="button" onClick={() => setAsking(null)}>No</button>
        </span>
      )}
    </div>
  );
}

/** A link that looks like a button, or a button that cannot be used and says why. */
function LinkIf({ text, to, meaning, offer }: { text: string; to: string; meaning: string; offer: { why: string | null } | undefined }) {
  if (!offer) return null;
  if (offer.why) return <button type="button" disabled title={offer.why}>{text}</button>;
  return <a class="button" title={meaning} href={to}>{text}</a>;
}

const partsOf = (id: string) => rawSpecOf(id) as SpecParts | undefined;

/** Orders that act on the running loop at its next step. */
function Live({ job, whyNot }: { job: Job; whyNot: (name: string) => string | null }) {
  const [rate, setRate] = useState<string | null>(null);
  const send = (body: object, done: string) =>
    attempt(() => request(`/jobs/${job.id}/do`, { method: "POST", body }), `${done}: takes effect at the next step`);
  const apply = (event: Event) => {
    event.preventDefault();
    const value = Number(rate);
    setRate(null);
    if (Number.isFinite(value) && value > 0) void send({ set: { learning_rate: value } }, `learning rate ${value}`);
  };
  return (
    <>
      <button type="button" disabled={whyNot("save now") !== null} title={whyNot("save now") ?? MEANING["save now"]} onClick={() => send({ save: true }, "save")}>save now</button>
      <button type="button" disabled={whyNot("evaluate now") !== null} title={whyNot("evaluate now") ?? MEANING["evaluate now"]} onClick={() => send({ evaluate: true }, "evaluate")}>evaluate now</button>
      {rate === null ? (
        <button type="button" disabled={whyNot("learning rate") !== null} title={whyNot("learning rate") ?? MEANING["learning rate"]} onClick={() => setRate(formatNumber(job.metrics.learning_rate ?? ""))}>learning rate…</button>
      ) : (
        <form class="confirm" onSubmit={apply}>
          <label>Learning rate <input class="short" autofocus inputMode="decimal" value={rate} onInput={(event) => setRate(event.currentTarget.value)} /></label>
          <button>Set</button>
        </form>
      )}
    </>
  );
}

/** Loads a list below the job's path, and loads it again when the job's version or last event moves. */
function useList<T>(job: Job, path: string, moves: unknown): { rows: T[] | null; problem: string | null; reload: () => void } {
  const [rows, setRows] = useState<T[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    request<{ data: T[] }>(`/jobs/${job.id}/${path}`, { signal: stop.signal })
      .then((answer) => (setRows(answer.data), setProblem(null)))
      .catch((error) => stop.signal.aborted || setProblem(explain(error)));
    return () => stop.abort();
  }, [job.id, path, moves, turn]);
  return { rows, problem, reload: () => setTurn(turn + 1) };
}

function Missing({ rows, problem, text }: { rows: unknown[] | null; problem: string | null; text: string }) {
  if (problem) return <p class="empty" role="alert">{problem}</p>;
  if (rows === null) return <p class="empty">Loading…</p>;
  return rows.length === 0 ? <p class="empty">{text}</p> : null;
}

interface Attempt {
  attempt: number;
  ending: string | null;
  reason: string | null;
  placed_at: string;
  running_at: string | null;
  ended_at: string | null;
  running_s: number;
  error: { message: string } | null;
  nodes: { name: string }[];
}

function Attempts({ job }: { job: Job }) {
  const { rows, problem } = useList<Attempt>(job, "attempts", job.version);
  if (!rows?.length) return <Missing rows={rows} problem={problem} text="No attempt yet: the job has not been placed on a node." />;
  const start = Math.min(...rows.map((row) => Date.parse(row.placed_at)));
  const end = Math.max(...rows.map((row) => (row.ended_at ? Date.parse(row.ended_at) : Date.now())), start + 1);
  const percent = (at: number) => `${((at - start) / (end - start)) * 100}%`;
  return (
    <ol class="timeline">
      {rows.map((row) => {
        const from = Date.parse(row.placed_at);
        const to = row.ended_at ? Date.parse(row.ended_at) : Date.now();
        return (
          <li key={row.attempt}>
            <b>Attempt {row.attempt}</b> {row.nodes.length ? `on ${row.nodes.map((node) => node.name).join(", ")}` : "elsewhere"}:{" "}
            {row.ending ? `${sentence(row.ending)}${row.reason ? ` (${sentence(row.reason)})` : ""}` : "running"}, {formatDuration((to - from) / 1000)}
            <div class="bar"><i class={row.ending ?? "open"} style={{ marginLeft: percent(from), width: percent(start + Math.max(to - from, (end - start) / 200)) }} /></div>
            {row.error && <p class="error">{row.error.message}</p>}
          </li>
        );
      })}
    </ol>
  );
}

function Events({ job }: { job: Job }) {
  const { rows, problem } = useList<JobEvent>(job, "events?kinds=state,note,checkpoint,do,gap,done&limit=500", null);
  void linesVersion.value;
  const known = new Set(rows?.map((event) => event.no));
  const live = liveEvents(job.id).filter((event) => !["line", "progress"].includes(event.kind) && !known.has(event.no));
  const all = [...(rows ?? []), ...live].reverse();
  if (!all.length) return <Missing rows={rows} problem={problem} text="No event yet." />;
  return (
    <div class="wide" tabIndex={0}><table class="plain">
      <thead><tr><th class="number">No.</th><th>When</th><th class="number">Step</th><th>Kind</th><th>What</th></tr></thead>
      <tbody>
        {all.map((event) => (
          <tr key={event.no}>
            <td class="number">{event.no}</td>
            <td class="when" title={event.at}>{formatAge(event.at, Date.now())}</td>
            <td class="number">{event.step ?? ""}</td>
            <td>{event.kind}</td>
            <td>{eventText(event)}</td>
          </tr>
        ))}
      </tbody>
    </table></div>
  );
}

export function eventText({ kind, data }: JobEvent): string {
  const { state, reason, message } = data as Record<string, string | null>;
  if (kind === "state") return [state, reason && sentence(reason), message].filter(Boolean).join(", ");
  if (typeof message === "string") return message;
  return Object.entries(data)
    .filter(([, value]) => value !== null && typeof value !== "object")
    .map(([name, value]) => `${name} ${formatNumber(value)}`)
    .join(", ");
}

interface LogLine {
  no: number;
  at: string;
  rank: number;
  stream?: string;
  text?: string;
  data?: { stream?: string; text?: string };
}

function Log({ job }: { job: Job }) {
  const [lines, setLines] = useState<LogLine[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [isFollowing, setFollowing] = useState(true);
  const grep = param("grep");
  const rank = param("rank");
  void linesVersion.value;
  useEffect(() => {
    // A search reads the log from its beginning; without one the newest lines are enough.
    const query = new URLSearchParams({ limit: "1000", after: String(grep ? 0 : Math.max(0, job.last_no - 5000)) });
    if (grep) query.set("grep", grep);
    if (rank) query.set("rank", rank);
    request<{ data: LogLine[] }>(`/jobs/${job.id}/logs?${query}`)
      .then((answer) => (setLines(answer.data), setProblem(null)))
      .catch((error) => setProblem(explain(error)));
  }, [job.id, grep, rank]);
  const known = lines?.at(-1)?.no ?? 0;
  const live = liveEvents(job.id)
    .filter((event) => event.kind === "line" && event.no > known && (!rank || String(event.rank) === rank))
    .map((event) => ({ no: event.no, at: event.at, rank: event.rank, text: String(event.data.text ?? "") }))
    .filter((line) => !grep || line.text.includes(grep));
  const shown: LogLine[] = [...(lines ?? []), ...live].slice(-2000);
  return (
    <section>
      <div class="toolbar">
        <input type="search" placeholder="Search in the log" aria-label="Search in the log" value={grep}
          onChange={(event) => setParams({ grep: event.currentTarget.value })} />
        <label>Rank <input class="short" inputMode="numeric" value={rank} onChange={(event) => setParams({ rank: event.currentTarget.value })} /></label>
        <label class="toggle"><input type="checkbox" checked={isFollowing} onChange={() => setFollowing(!isFollowing)} /> Follow</label>
      </div>
      {shown.length === 0 ? <Missing rows={lines} problem={problem} text={job.external ? "A run elsewhere sends no printed lines." : grep || rank ? "No line matches." : "Nothing printed yet."} /> : (
        <pre class="log" tabIndex={0} ref={(element) => { if (element && isFollowing) element.scrollTop = element.scrollHeight; }}>
          {shown.map((line) => {
            const text = line.text ?? line.data?.text ?? "";
            const stream = line.stream ?? line.data?.stream;
            return <div key={line.no} class={stream === "stderr" ? "stderr" : ""}><small>{line.rank}</small> {text}</div>;
          })}
        </pre>
      )}
    </section>
  );
}

function Spec({ job }: { job: Job }) {
  void detailsVersion.value;
  useEffect(() => needSpec(job.id), [job.id]);
  const spec = rawSpecOf(job.id);
  return spec === undefined ? <p class="empty">Loading…</p> : <JsonText value={spec} />;
}

function noCheckpoint(job: Job): string {
  if (job.external) return "A run elsewhere keeps its checkpoints there.";
  if (isFinal(job)) return "This job saved no checkpoint. `save_steps` in the spec says how often one is saved.";
  return "No checkpoint yet. `save_steps` says how often one is saved; “save now” saves one at once.";
}

function Checkpoints({ job }: { job: Job }) {
  const [doomed, setDoomed] = useState<string | null>(null);
  const { rows, problem, reload } = useList<Checkpoint>(job, "checkpoints", job.version + (job.progress?.step ?? 0));
  if (!rows?.length) return <Missing rows={rows} problem={problem} text={noCheckpoint(job)} />;
  const change = (work: () => Promise<unknown>, done: string) => void attempt(work, done).then(reload);
  return (
    <div class="wide" tabIndex={0}><table class="plain">
      <thead><tr><th class="number">Step</th><th class="number">Attempt</th><th>Status</th><th class="number">Size</th><th class="number">Loss</th><th>Saved</th><th>Actions</th></tr></thead>
      <tbody>
        {rows.map((row) => {
          const path = `/jobs/${job.id}/checkpoints/${row.id}`;
          const whyNot = checkpointOffers(job, row, rows, partsOf(job.id));
          return (
            <tr key={row.id}>
              <td class="number">{formatNumber(row.step)}</td>
              <td class="number">{row.attempt}</td>
              <td>{row.status}{row.is_best && <b> best</b>}{row.pinned && <b> pinned</b>}</td>
              <td class="number">{formatBytes(row.bytes)}</td>
              <td class="number">{formatNumber(row.metrics.eval_loss ?? row.metrics.loss)}</td>
              <td title={row.created_at}>{formatAge(row.created_at, Date.now())}</td>
              <td class="row-actions">
                <button type="button" disabled={whyNot.download !== null} title={whyNot.download ?? "The whole folder, as a zip"} onClick={() => void attempt(() => download(`${path}/archive`, `${row.id}.zip`))}>download</button>
                <button type="button" disabled={whyNot.pin !== null} title={whyNot.pin ?? "Rotation does not remove a pinned checkpoint"} onClick={() => change(() => request(path, { method: "PATCH", body: { pinned: !row.pinned } }), row.pinned ? "unpinned" : "pinned: it is not removed by rotation")}>{row.pinned ? "unpin" : "pin"}</button>
                <LinkIf text="fork from" to={href("submit", { fork: job.id, checkpoint: row.id })} meaning={MEANING.fork!} offer={{ why: whyNot.fork }} />
                <LinkIf text="try" to={href("try", { a: `${job.id}:${row.id}` })} meaning={MEANING.try!} offer={{ why: whyNot.try }} />
                {doomed === row.id ? (
                  <span class="confirm" role="alertdialog" aria-label={`Confirm delete of step ${row.step}`}>
                    <button type="button" class="danger" onClick={() => change(() => request(path, { method: "DELETE" }), "checkpoint deleted")}>Yes, delete</button>
                    <button type="button" onClick={() => setDoomed(null)}>No</button>
                  </span>
                ) : <button type="button" disabled={whyNot.delete !== null} title={whyNot.delete ?? "Frees its space on the disk"} onClick={() => setDoomed(row.id)}>delete</button>}
              </td>
            </tr>
          );
        })}
      </tbody>
    </table></div>
  );
}

function Outputs({ job }: { job: Job }) {
  const { rows, problem } = useList<{ path: string; bytes: number; modified_at: string }>(job, "outputs", job.version);
  if (!rows?.length) return <Missing rows={rows} problem={problem} text={job.external ? "A run elsewhere keeps its outputs there." : isFinal(job) ? "This job left no outputs." : "Outputs are here when the job has ended."} />;
  return (
    <div class="wide" tabIndex={0}><table class="plain">
      <thead><tr><th>File</th><th class="number">Size</th><th>Changed</th></tr></thead>
      <tbody>
        {rows.map((row) => (
          <tr key={row.path}>
            <td><button type="button" class="link" onClick={() => void attempt(() => download(`/jobs/${job.id}/outputs/${row.path.split("/").map(encodeURIComponent).join("/")}`, row.path.split("/").at(-1)!))}>{row.path}</button></td>
            <td class="number">{formatBytes(row.bytes)}</td>
            <td title={row.modified_at}>{formatAge(row.modified_at, Date.now())}</td>
          </tr>
        ))}
      </tbody>
    </table></div>
  );
}

/** The requests behind this page, to paste into a terminal or a program. */
function Api({ job }: { job: Job }) {
  const sent = [
    { method: "GET", path: `/jobs/${job.id}` },
    { method: "GET", path: `/jobs/${job.id}/spec` },
    { method: "GET", path: `/jobs/${job.id}/metrics/series?names=loss` },
    { method: "GET", path: `/jobs/${job.id}/events?kinds=state,checkpoint` },
    { method: "GET", path: `/jobs/${job.id}/logs` },
    { method: "GET", path: `/jobs/${job.id}/checkpoints` },
    ...job.actions.filter((action) => ["pause", "resume", "cancel"].includes(action)).map((action) => ({ method: "POST", path: `/jobs/${job.id}/${action}` })),
  ];
  return (
    <div class="api">
      {sent.map((one) => <Request key={one.method + one.path} sent={one} />)}
      <h2>What this page changed</h2>
      {recentRequests.value.length === 0 && <p class="empty">Nothing yet. What you do here stands below as a request, to do it again from a script.</p>}
      {recentRequests.value.map((one) => <Request key={one.at + one.path} sent={one} />)}
    </div>
  );
}

function Request({ sent: bare }: { sent: { method: string; path: string; body?: string | undefined } }) {
  const sent = { ...bare, path: inProject(bare.path) };
  const command = asCommand(sent);
  return (
    <details>
      <summary><code>{sent.method} {sent.path}</code></summary>
      <Copy what="as curl" text={asCurl(sent, location.origin, storedKey() !== null)} />
      <Copy what="as Python" text={asPython(sent, location.origin)} />
      {command && <Copy what="as a command" text={command} />}
    </details>
  );
}
