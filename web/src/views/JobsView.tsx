/** The table of jobs with search, filters and bulk actions; the curves of the selected jobs below. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { request } from "../api/client";
import { type Job, STATES } from "../api/types";
import { COLUMNS, DEFAULT_COLUMNS, type Column, columnOf, compareValues, matches } from "../lib/columns";
import { act, attempt, hasMore, isLoading, jobs, listed, loadMore, refreshNow, total } from "../model/jobs";
import { detailsVersion, metricNames, needSpec, needSummary, specOf, specPaths, summaryOf } from "../model/details";
import { go, href, param, setParams } from "../model/route";
import { colorOf } from "../ui/colors";
import { Charts } from "./Charts";

const ROW = 34;
const MOST_SELECTED = 20;
const BULK = ["pause", "resume", "cancel", "delete"] as const;

export function selectedIds(): string[] {
  return param("sel").split(",").filter(Boolean);
}

export function JobsView() {
  const now = Math.floor(Date.now() / 1000) * 1000;
  const ids = (param("cols") || DEFAULT_COLUMNS.join()).split(",");
  const columns = ids.map(columnOf).filter((column): column is Column => column !== null);
  const search = param("q");
  const sort = param("sort", "-created");
  const selected = new Set(selectedIds());
  const version = detailsVersion.value;
  const all = jobs.value;
  const order = listed.value;

  const rows = useMemo(() => {
    const isDescending = sort.startsWith("-");
    const column = columnOf(sort.replace(/^-/, "")) ?? COLUMNS[5]!;
    const extra = (job: Job) => ({ spec: specOf(job.id), summary: summaryOf(job.id), now });
    const states = new Set(param("state").split(",").filter(Boolean));
    return order
      .map((id) => all.get(id))
      .filter((job): job is Job => job !== undefined && (!search || matches(job, search)) && (states.size === 0 || states.has(job.state)))
      .map((job) => ({ job, key: column.value(job, extra(job)) }))
      .sort((a, b) => compareValues(a.key, b.key, isDescending) || (a.job.id < b.job.id ? 1 : -1))
      .map(({ job }) => job);
  }, [all, order, search, sort, version]);

  const chosen = rows.filter((job) => selected.has(job.id));
  useEffect(() => {
    // The first visit shows curves at once: the newest running jobs are selected.
    if (!param("sel") && !isLoading.value && rows.length && !param("none")) {
      const active = rows.filter((job) => job.attempt > 0);
      select(active.slice(0, 5).map((job) => job.id));
    }
  }, [isLoading.value]);
  useEffect(() => {
    const needsAll = !["-created", "created"].includes(sort) || search;
    if (needsAll && hasMore.value) void loadMore(true);
  }, [sort, search, order.length]);

  return (
    <>
      <h1 class="hidden">Jobs</h1>
      <section class="jobs" aria-label="Jobs">
        <Toolbar rows={rows} chosen={chosen} columns={ids} />
        {rows.length === 0 && !isLoading.value ? <NoJobs isFiltered={Boolean(search || param("state") || param("tag"))} /> : (
          <Table rows={rows} columns={columns} selected={selected} sort={sort} now={now} />
        )}
      </section>
      {chosen.length > 0 && <Charts jobs={chosen.slice(0, MOST_SELECTED)} />}
    </>
  );
}

export function select(ids: string[]): void {
  setParams({ sel: ids.slice(0, MOST_SELECTED).join(), none: ids.length ? null : "1" });
}

function toggle(id: string): void {
  const ids = selectedIds();
  select(ids.includes(id) ? ids.filter((other) => other !== id) : [...ids, id]);
}

function Toolbar({ rows, chosen, columns }: { rows: Job[]; chosen: Job[]; columns: string[] }) {
  const known = total.value;
  return (
    <div class="toolbar">
      <input id="search" type="search" placeholder="Search jobs ( / )" aria-label="Search jobs" value={param("q")}
        onInput={(event) => setParams({ q: event.currentTarget.value })} />
      <label>
        State <select aria-label="State" value={param("state")} onChange={(event) => setParams({ state: event.currentTarget.value })}>
          <option value="">any</option>
          {STATES.map((state) => <option key={state}>{state}</option>)}
          <option value="queued,starting,running,stopping,paused">not finished</option>
        </select>
      </label>
      <label>Tag <input class="short" value={param("tag")} onChange={(event) => setParams({ tag: event.currentTarget.value.trim() })} /></label>
      <ColumnMenu columns={columns} />
      <span class="count">{rows.length.toLocaleString("en-US")}{known > rows.length ? ` of ${known.toLocaleString("en-US")}` : ""} jobs</span>
      <span class="bulk" role="group" aria-label="Selected jobs">
        <span>{chosen.length} selected</span>
        {chosen.length > 1 && <a class="button" href={href("compare", { sel: chosen.map((job) => job.id).join() })}>Compare</a>}
        {BULK.map((action) => <BulkButton key={action} action={action} chosen={chosen} />)}
        {chosen.length > 0 && <TagButton chosen={chosen} />}
      </span>
      <a class="button primary" href={href("submit")}>New job</a>
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
    void attempt(async () => {
      for (const job of able) await act(job, action);
      await refreshNow();
    });
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
        await request(`/jobs/${job.id}`, { method: "PATCH", body: { tags: [...new Set([...job.tags, name])] } });
      }
      await refreshNow();
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
    ...metricNames().flatMap((name) => ["last", "min", "max"].map((which) => `metric:${name}:${which}`)),
    ...specPaths().map((path) => `spec:${path}`),
  ];
  return (
    <details class="menu">
      <summary>Columns</summary>
      <div>
        {[...COLUMNS.map((column) => column.id), ...columns.filter((id) => id.includes(":"))].map((id) => (
          <label key={id}><input type="checkbox" checked={columns.includes(id)} onChange={() => change(id)} /> {columnOf(id)?.title ?? id}</label>
        ))}
        <form onSubmit={add}>
          <label>Metric or spec value <input name="column" list="columns" placeholder="metric:loss:min or spec:training.seed" /></label>
          <datalist id="columns">{choices.map((id) => <option key={id} value={id} />)}</datalist>
          <button>Add column</button>
        </form>
      </div>
    </details>
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
  const height = Math.min(rows.length, 15) * ROW;
  const first = Math.max(0, Math.floor(top / ROW) - 5);
  const shown = rows.slice(first, first + Math.ceil(height / ROW) + 10);
  const width = columns.reduce((sum, column) => sum + column.width, 76);
  const template = `76px ${columns.map((column) => `minmax(${column.width}px, ${column.width}fr)`).join(" ")}`;

  const wantsSpec = columns.some((column) => column.id.startsWith("spec:"));
  const wantsSummary = columns.some((column) => /^metric:.*:(min|max)$/.test(column.id));
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
    <div class="table" role="table" aria-label="Jobs" aria-rowcount={rows.length + 1}>
      <div class="table-scroll" ref={box} onScroll={onScroll} style={{ maxHeight: `${height + ROW + 18}px` }} tabIndex={0} role="rowgroup">
        <div class="row head" role="row" aria-rowindex={1} style={{ gridTemplateColumns: template, minWidth: `${width}px` }}>
          <span role="columnheader">Curves</span>
          {columns.map((column) => {
            const isSorted = sort.replace(/^-/, "") === column.id;
            const direction = sort.startsWith("-") ? "descending" : "ascending";
            return (
              <span key={column.id} role="columnheader" aria-sort={isSorted ? direction : "none"} class={column.isNumber ? "number" : ""}>
                <button type="button" onClick={() => sortBy(column.id)}>{column.title}{isSorted ? (direction === "descending" ? " ↓" : " ↑") : ""}</button>
              </span>
            );
          })}
        </div>
        <div style={{ height: `${first * ROW}px` }} />
        {shown.map((job, index) => (
          <Row key={job.id} job={job} index={first + index + 2} columns={columns} isSelected={selected.has(job.id)} template={template} width={width} now={now} />
        ))}
        <div style={{ height: `${Math.max(0, rows.length - first - shown.length) * ROW}px` }} />
      </div>
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
}

function Row({ job, index, columns, isSelected, template, width, now }: RowProps) {
  const extra = { spec: specOf(job.id), summary: summaryOf(job.id), now };
  const open = (event: MouseEvent) => {
    if (!(event.target as HTMLElement).closest("a, button, input")) go(href(`jobs/${job.id}`));
  };
  return (
    <div class={`row ${isSelected ? "selected" : ""}`} role="row" aria-rowindex={index} data-job={job.id} onClick={open}
      style={{ gridTemplateColumns: template, minWidth: `${width}px` }}>
      <span role="cell">
        <button type="button" class="eye" aria-pressed={isSelected} aria-label={`Show curves of ${job.name ?? job.id}`} onClick={() => toggle(job.id)}>
          <i style={{ background: isSelected ? colorOf(job.id) : "transparent" }} />
        </button>
      </span>
      {columns.map((column) => (
        <span key={column.id} role="cell" class={column.isNumber ? "number" : ""} title={column.text(job, extra)}>
          <Cell column={column} job={job} text={column.text(job, extra)} />
        </span>
      ))}
    </div>
  );
}

function Cell({ column, job, text }: { column: Column; job: Job; text: string }) {
  if (column.id === "name") return <a href={href(`jobs/${job.id}`)}>{text}</a>;
  if (column.id === "state") return <span class={`state ${job.state}`}>{text}</span>;
  if (column.id === "progress" && job.progress?.max_steps) {
    return <><progress max={job.progress.max_steps} value={job.progress.step} aria-label={`Progress ${text}`} /> {text}</>;
  }
  return <>{text}</>;
}

function NoJobs({ isFiltered }: { isFiltered: boolean }) {
  if (isFiltered) {
    return <p class="empty">No job matches. <button type="button" onClick={() => setParams({ q: null, state: null, tag: null })}>Clear search and filters</button></p>;
  }
  const command = `curl -X POST ${location.origin}/jobs -H 'Content-Type: application/json' -d '{"model": "toy/mlp", "data": "toy/regression", "training": {"max_steps": 2000, "logging_steps": 20}}'`;
  return (
    <div class="empty">
      <h2>No job yet</h2>
      <p><a class="button primary" href={href("submit")}>Submit the first one</a> or paste this into a terminal:</p>
      <pre>{command}</pre>
    </div>
  );
}
