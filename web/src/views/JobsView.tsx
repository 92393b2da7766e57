/** The table of jobs with search, filters and bulk actions; the curves of the selected jobs below. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Job, STATES } from "../api/types";
import { COLUMNS, DEFAULT_COLUMNS, type Column, columnOf, compareValues, matches, reasonOf } from "../lib/columns";
import { type Condition, OPERATORS, type Operator, SPOKEN, fieldOf, meets, problemOf, showCondition, writeConditions } from "../lib/filters";
import { formatNumber, jobTitle } from "../lib/format";
import { actOnMany, attempt, conditions, hasMore, isLoading, jobs, keep, listed, loadMore, refreshNow, total } from "../model/jobs";
import { request } from "../api/client";
import { detailsPending, detailsVersion, metricNames, needSpec, needSummary, specOf, specPaths, summaryOf } from "../model/details";
import { go, href, param, setParams } from "../model/route";
import { colorOf } from "../ui/colors";
import { Copy } from "../ui/Copy";
import { Menu, closeMenu } from "../ui/Menu";
import { isNarrow } from "../ui/theme";
import { Charts } from "./Charts";

const ROW = 36;
const CARD = 62;
const VISIBLE_ROWS = 10;
const EYE = 44;
const MOST_SELECTED = 20;
const BULK = ["pause", "resume", "cancel", "delete"] as const;
/** Jobs of which the filter menu reads the spec, to know which values there are. */
const SAMPLED = 20;

export function selectedIds(): string[] {
  return param("sel").split(",").filter(Boolean);
}

const needsSpec = (id: string) => id.startsWith("spec:");
const needsSummary = (id: string) => /^metric:.*:(min|max|best)$/.test(id);
const readsByServer = (condition: Condition) => (condition.field === "tags" && condition.operator === "=") || condition.field === "created";

export function JobsView() {
  const now = useNow();
  const ids = (param("cols") || DEFAULT_COLUMNS.join()).split(",");
  const columns = ids.map(columnOf).filter((column): column is Column => column !== null);
  const search = param("q");
  const sort = param("sort", "-created");
  const sorted = sort.replace(/^-/, "");
  const filters = conditions.value;
  const selected = new Set(selectedIds());
  const version = detailsVersion.value;
  const all = jobs.value;
  const order = listed.value;
  const isOfEvery = (needs: (id: string) => boolean) => needs(sorted) || filters.some(({ field }) => needs(field));
  const [everySpec, everySummary] = [isOfEvery(needsSpec), isOfEvery(needsSummary)];

  const rows = useMemo(() => {
    const column = columnOf(sorted) ?? columnOf("created")!;
    const states = new Set(param("state").split(",").filter(Boolean));
    return order
      .map((id) => all.get(id))
      .filter((job): job is Job => job !== undefined && (!search || matches(job, search)) && (states.size === 0 || states.has(job.state)))
      .map((job) => ({ job, extra: { spec: specOf(job.id), summary: summaryOf(job.id), now } }))
      .filter(({ job, extra }) => filters.every((condition) => readsByServer(condition) || meets(job, condition, extra)))
      .map(({ job, extra }) => ({ job, key: column.value(job, extra) }))
      .sort((a, b) => compareValues(a.key, b.key, sort.startsWith("-")) || (a.job.id < b.job.id ? 1 : -1))
      .map(({ job }) => job);
  }, [all, order, search, sort, param("state"), param("where"), version]);

  useEffect(() => {
    // What is sorted or filtered by must be known of every job, not of the visible ones only.
    if (everySpec || everySummary) {
      for (const id of order) {
        if (everySpec) needSpec(id);
        if (everySummary && all.get(id)!.attempt > 0) needSummary(all.get(id)!);
      }
    }
  }, [everySpec, everySummary, order]);
  useEffect(() => {
    const needsAll = sorted !== "created" || search || filters.some((condition) => !readsByServer(condition));
    if (needsAll && hasMore.value) void loadMore(true);
  }, [sort, search, param("where"), order.length]);
  useEffect(() => {
    // The first visit shows curves at once: the newest jobs that have some are selected.
    const drawable = rows.filter((job) => job.attempt > 0).slice(0, 5);
    if (!param("sel") && !param("none") && drawable.length) select(drawable.map((job) => job.id));
  }, [rows.some((job) => job.attempt > 0)]);

  const chosen = selectedIds().map((id) => all.get(id)).filter((job): job is Job => job !== undefined);
  const isFiltered = Boolean(search || param("state") || filters.length);
  return (
    <>
      <h1 class="hidden">Jobs</h1>
      <section class="jobs" aria-label="Jobs">
        <Toolbar rows={rows} columns={ids} />
        <div class="table">
          {rows.length > 0 && <Table rows={rows} columns={columns} selected={selected} sort={sort} now={now} />}
          {rows.length > 0 && <Selection chosen={chosen} />}
          {rows.length === 0 && <div style={{ padding: "4px 20px" }}>{isLoading.value || detailsPending.value > 0 ? <p class="empty">Loading jobs…</p> : <NoJobs isFiltered={isFiltered} />}</div>}
        </div>
      </section>
      {chosen.length > 0 && <Charts jobs={chosen.slice(0, MOST_SELECTED)} />}
    </>
  );
}

/** The present time, every five seconds: ages move although no job has changed. */
function useNow(): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 5000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

export function select(ids: string[]): void {
  setParams({ sel: ids.slice(-MOST_SELECTED).join(), none: ids.length ? null : "1" });
}

function toggle(id: string): void {
  const ids = selectedIds();
  select(ids.includes(id) ? ids.filter((other) => other !== id) : [...ids, id]);
}

const UNFINISHED = "queued,starting,running,stopping,paused";

function Toolbar({ rows, columns }: { rows: Job[]; columns: string[] }) {
  const known = total.value;
  const filters = conditions.value;
  const without = (index: number) => setParams({ where: writeConditions(filters.filter((_, other) => other !== index)) });
  return (
    <div class="toolbar">
      <input id="search" type="search" placeholder="Search jobs  /" aria-label="Search jobs" value={param("q")}
        onInput={(event) => setParams({ q: event.currentTarget.value }, true)} />
      <select aria-label="State" value={param("state")} onChange={(event) => setParams({ state: event.currentTarget.value })}>
        <option value="">Any state</option>
        <option value={UNFINISHED}>not finished</option>
        {STATES.map((state) => <option key={state}>{state}</option>)}
      </select>
      <FilterMenu rows={rows} />
      {filters.map((condition, index) => (
        <button key={showCondition(condition)} type="button" class="chip" aria-label={`Remove the filter ${showCondition(condition)}`} onClick={() => without(index)}>{showCondition(condition)} ×</button>
      ))}
      <ColumnMenu columns={columns} />
      <span class="count" role="status">
        {rows.length.toLocaleString("en-US")}{known > rows.length ? ` of ${known.toLocaleString("en-US")}` : ""} jobs
        {detailsPending.value > 20 && `, reading ${detailsPending.value.toLocaleString("en-US")} more`}
      </span>
      <span class="end"><a class="button primary" href={href("submit")}>New job</a></span>
    </div>
  );
}

const RECENT: [string, string][] = [["1h", "Last hour"], ["24h", "Last 24 hours"], ["7d", "Last 7 days"]];

/** Adds a condition on any column: node, time, tags, a spec value or a metric. */
function FilterMenu({ rows }: { rows: Job[] }) {
  const [field, setField] = useState("");
  const [operator, setOperator] = useState<Operator>("=");
  const [value, setValue] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const id = fieldOf(field, specPaths(), metricNames());
  const add = (event: Event, condition: Condition) => {
    const rest = conditions.value.filter((other) => other.field !== condition.field || other.operator !== condition.operator);
    setParams({ where: writeConditions([...rest, condition]) });
    setValue("");
    setProblem(null);
    closeMenu(event);
  };
  const apply = (event: Event) => {
    event.preventDefault();
    if (!id) return setProblem(`No job here has “${field}”. Use a column such as node, a metric such as loss, or a path in the spec such as training.seed.`);
    const condition = { field: id, operator, value };
    const wrong = problemOf(condition, Date.now());
    if (wrong) setProblem(wrong);
    else add(event, condition);
  };
  const names = [...COLUMNS.map((column) => column.id), ...specPaths(), ...metricNames().flatMap((name) => [name, `metric:${name}:best`, `metric:${name}:min`, `metric:${name}:max`])];
  const column = id ? columnOf(id) : null;
  const values = column && !["created", "started", "finished"].includes(column.id)
    ? [...new Set(rows.slice(0, 500).flatMap((job) => column.id === "tags" ? job.tags : [String(column.value(job, { spec: specOf(job.id), summary: summaryOf(job.id), now: 0 }) ?? "")]))].filter(Boolean).slice(0, 50)
    : [];
  const readSome = () => {
    for (const job of rows.slice(0, SAMPLED)) {
      needSpec(job.id);
      if (job.attempt > 0) needSummary(job);
    }
  };
  return (
    <Menu label="Filter" onOpen={readSome}>
      <div class="choices">{RECENT.map(([ago, text]) => <button key={ago} type="button" class="chip" onClick={(event) => add(event, { field: "created", operator: ">", value: ago })}>{text}</button>)}</div>
      <form onSubmit={apply}>
        <label>Field <input list="filter-fields" required placeholder="node, seed, loss, created…" value={field} onInput={(event) => setField(event.currentTarget.value)} /></label>
        <datalist id="filter-fields">{[...new Set(names)].map((name) => <option key={name} value={name} />)}</datalist>
        <label>Condition <select value={operator} onChange={(event) => setOperator(event.currentTarget.value as Operator)}>{OPERATORS.map((one) => <option key={one} value={one}>{SPOKEN[one]}</option>)}</select></label>
        <label>Value <input list="filter-values" required value={value} onInput={(event) => setValue(event.currentTarget.value)} /></label>
        <datalist id="filter-values">{values.map((one) => <option key={one} value={one} />)}</datalist>
        {problem && <p class="error" role="alert">{problem}</p>}
        <button class="primary">Add filter</button>
      </form>
      <p><small>Times are a date, or how long ago: 30min, 24h, 7d.</small></p>
    </Menu>
  );
}

/** What can be done with the jobs whose curves are shown. Always there, so that the page does not jump. */
function Selection({ chosen }: { chosen: Job[] }) {
  if (chosen.length === 0) return <div class="bulk">Choose jobs by their circle to see their curves, to compare them, or to steer several at once.</div>;
  return (
    <div class="bulk" role="group" aria-label="Selected jobs">
      <span>{chosen.length} selected</span>
      {chosen.length > 1 && <a class="button" href={href("compare", { sel: chosen.map((job) => job.id).join() })}>Compare</a>}
      {BULK.map((action) => <BulkButton key={action} action={action} chosen={chosen} />)}
      <TagButton chosen={chosen} />
      <button type="button" class="quiet" onClick={() => select([])}>Clear</button>
    </div>
  );
}

function BulkButton({ action, chosen }: { action: (typeof BULK)[number]; chosen: Job[] }) {
  const able = chosen.filter((job) => job.actions.includes(action));
  const [isAsking, setAsking] = useState(false);
  if (able.length === 0) return null;
  const isSerious = action === "cancel" || action === "delete";
  const run = () => {
    setAsking(false);
    void actOnMany(able, action).then(refreshNow);
  };
  if (isAsking) {
    return (
      <span class="confirm" role="alertdialog" aria-label={`Confirm ${action}`}>
        {action} {able.length} {able.length === 1 ? "job" : "jobs"}?{" "}
        <button type="button" class="danger" onClick={run}>Yes, {action}</button>
        <button type="button" onClick={() => setAsking(false)}>No</button>
      </span>
    );
  }
  return <button type="button" onClick={() => (isSerious ? setAsking(true) : run())}>{action} {able.length}</button>;
}

function TagButton({ chosen }: { chosen: Job[] }) {
  const [tag, setTag] = useState<string | null>(null);
  if (tag === null) return <button type="button" onClick={() => setTag("")}>tag…</button>;
  const apply = (event: Event) => {
    event.preventDefault();
    const name = tag.trim();
    setTag(null);
    if (!name) return;
    void attempt(async () => {
      for (const job of chosen) {
        keep([await request<Job>(`/jobs/${job.id}`, { method: "PATCH", body: { tags: [...new Set([...job.tags, name])] } })]);
      }
    }, `tagged ${chosen.length} jobs with “${name}”`);
  };
  return (
    <form class="confirm" onSubmit={apply}>
      <input class="short" aria-label="Tag" autofocus value={tag} onInput={(event) => setTag(event.currentTarget.value)} />
      <button>Add tag</button>
    </form>
  );
}

function ColumnMenu({ columns }: { columns: string[] }) {
  const change = (id: string) => {
    const next = columns.includes(id) ? columns.filter((other) => other !== id) : [...columns, id];
    setParams({ cols: next.join() === DEFAULT_COLUMNS.join() ? null : next.join() });
  };
  const add = (event: Event) => {
    event.preventDefault();
    const input = (event.currentTarget as HTMLFormElement).elements.namedItem("column") as HTMLInputElement;
    const id = input.value.trim();
    if (columnOf(id)) change(id);
    input.value = "";
  };
  const choices = [
    ...metricNames().flatMap((name) => ["last", "best", "min", "max"].map((which) => `metric:${name}:${which}`)),
    ...specPaths().map((path) => `spec:${path}`),
  ];
  return (
    <Menu label="Columns">
        {[...COLUMNS.map((column) => column.id), ...columns.filter((id) => id.includes(":"))].map((id) => (
          <label key={id}><input type="checkbox" checked={columns.includes(id)} onChange={() => change(id)} /> {columnOf(id)?.title ?? id}</label>
        ))}
        <form onSubmit={add}>
          <label>Metric or spec value <input name="column" list="columns" placeholder="metric:loss:min or spec:training.seed" /></label>
          <datalist id="columns">{choices.map((id) => <option key={id} value={id} />)}</datalist>
          <button>Add column</button>
        </form>
    </Menu>
  );
}

interface TableProps {
  rows: Job[];
  columns: Column[];
  selected: Set<string>;
  sort: string;
  now: number;
}

/** Only the rows that can be seen are in the document, so that a hundred thousand jobs scroll like fifty. */
function Table({ rows, columns, selected, sort, now }: TableProps) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const isCards = isNarrow.value;
  const rowHeight = isCards ? CARD : ROW;
  const height = Math.min(rows.length, isCards ? 6 : VISIBLE_ROWS) * rowHeight;
  const first = Math.max(0, Math.floor(top / rowHeight) - 5);
  const shown = rows.slice(first, first + Math.ceil(height / rowHeight) + 10);
  const width = columns.reduce((sum, column) => sum + column.width, EYE);
  const template = `${EYE}px ${columns.map((column) => `minmax(${column.width}px, ${column.width}fr)`).join(" ")}`;

  const wantsSpec = columns.some((column) => needsSpec(column.id));
  const wantsSummary = columns.some((column) => needsSummary(column.id));
  useEffect(() => {
    for (const job of shown) {
      if (wantsSpec) needSpec(job.id);
      if (wantsSummary && job.attempt > 0) needSummary(job);
    }
    if (first + shown.length > rows.length - 20) void loadMore();
  });

  const sortBy = (id: string) => {
    const isSame = sort.replace(/^-/, "") === id;
    setParams({ sort: isSame && sort.startsWith("-") ? id : `-${id}` });
  };
  const onScroll = () => setTop(box.current!.scrollTop);
  return (
    <div class="table-scroll" role="table" aria-label="Jobs" aria-rowcount={rows.length + 1} ref={box} onScroll={onScroll} style={{ maxHeight: `${height + ROW + 16}px` }} tabIndex={0}>
      {!isCards && (
        <div class="row head" role="row" aria-rowindex={1} style={{ gridTemplateColumns: template, minWidth: `${width}px` }}>
          <span role="columnheader"><span class="hidden">Curves</span></span>
          {columns.map((column) => {
            const isSorted = sort.replace(/^-/, "") === column.id;
            const direction = sort.startsWith("-") ? "descending" : "ascending";
            return (
              <span key={column.id} role="columnheader" aria-sort={isSorted ? direction : "none"} class={column.isNumber ? "number" : ""} title={column.id}>
                <button type="button" onClick={() => sortBy(column.id)}>{column.title}{isSorted ? (direction === "descending" ? " ↓" : " ↑") : ""}</button>
              </span>
            );
          })}
        </div>
      )}
      <div style={{ height: `${first * rowHeight}px` }} />
      {shown.map((job, index) => (
        <Row key={job.id} job={job} index={first + index + 2} columns={columns} isSelected={selected.has(job.id)} template={template} width={width} now={now} isCard={isCards} />
      ))}
      <div style={{ height: `${Math.max(0, rows.length - first - shown.length) * rowHeight}px` }} />
    </div>
  );
}

interface RowProps {
  job: Job;
  index: number;
  columns: Column[];
  isSelected: boolean;
  template: string;
  width: number;
  now: number;
  isCard: boolean;
}

function Row({ job, index, columns, isSelected, template, width, now, isCard }: RowProps) {
  const extra = { spec: specOf(job.id), summary: summaryOf(job.id), now };
  const open = (event: MouseEvent) => {
    if (!(event.target as HTMLElement).closest("a, button, input")) go(href(`jobs/${job.id}`));
  };
  const eye = (
    <span role="cell">
      <button type="button" class="eye" aria-pressed={isSelected} aria-label={`Show curves of ${job.name ?? job.id}`} onClick={() => toggle(job.id)}>
        <i style={{ background: isSelected ? colorOf(job.id) : "transparent" }} />
      </button>
    </span>
  );
  const kind = `row ${isSelected ? "selected" : ""} ${isCard ? "card" : ""}`;
  if (isCard) return <Card job={job} index={index} kind={kind} eye={eye} open={open} />;
  return (
    <div class={kind} role="row" aria-rowindex={index} data-job={job.id} onClick={open} style={{ gridTemplateColumns: template, minWidth: `${width}px` }}>
      {eye}
      {columns.map((column) => {
        const text = column.text(job, extra);
        return <span key={column.id} role="cell" class={`${column.isNumber ? "number" : ""} ${kindOf(column.id, text)}`} title={text}><Cell column={column} job={job} text={text} /></span>;
      })}
    </div>
  );
}

const DIVERGED = /^-?(NaN|Infinity)$/;

function kindOf(id: string, text: string): string {
  if (id.startsWith("metric:") && DIVERGED.test(text)) return "error";
  return ["why", "created", "started", "finished", "running", "tags", "project", "node", "id"].includes(id) ? "muted" : "";
}

/** A job on a narrow screen: name and newest loss above, state and reason below. */
function Card({ job, index, kind, eye, open }: { job: Job; index: number; kind: string; eye: preact.JSX.Element; open: (event: MouseEvent) => void }) {
  const value = job.metrics.eval_loss ?? job.metrics.loss;
  const percent = columnOf("progress")!.text(job, { spec: undefined, summary: undefined, now: 0 });
  return (
    <div class={kind} role="row" aria-rowindex={index} data-job={job.id} onClick={open}>
      {eye}
      <span role="cell" style={{ gridArea: "name" }}><a href={href(`jobs/${job.id}`)}>{jobTitle(job)}</a></span>
      <span role="cell" style={{ gridArea: "value" }} class="number">{formatNumber(value)}</span>
      <span role="cell" style={{ gridArea: "state" }}><span class={`state ${job.state}`}>{job.state}</span> <span class="muted">{reasonOf(job)}</span></span>
      <span role="cell" style={{ gridArea: "why" }} class="number muted">{percent}</span>
    </div>
  );
}

function Cell({ column, job, text }: { column: Column; job: Job; text: string }) {
  if (column.id === "name") return <a href={href(`jobs/${job.id}`)}>{text}</a>;
  if (column.id === "state") return <span class={`state ${job.state}`}>{text}</span>;
  if (column.id === "progress" && job.progress?.max_steps) {
    return <span class={job.state === "succeeded" ? "done" : ""}><progress max={job.progress.max_steps} value={job.progress.step} aria-label={`Progress ${text}`} />{text}</span>;
  }
  return <>{text}</>;
}

function NoJobs({ isFiltered }: { isFiltered: boolean }) {
  if (isFiltered) {
    return <p class="empty">No job matches. <button type="button" onClick={() => setParams({ q: null, state: null, where: null })}>Clear search and filters</button></p>;
  }
  const command = `curl -X POST ${location.origin}/jobs -H 'Content-Type: application/json' -d '{"model": "toy/mlp", "data": "toy/regression", "training": {"max_steps": 2000, "logging_steps": 20}}'`;
  return (
    <div class="empty">
      <h2>No job yet</h2>
      <p><a class="button primary" href={href("submit")}>Submit the first one</a> or paste this into a terminal:</p>
      <Copy text={command} what="the command" />
    </div>
  );
}
