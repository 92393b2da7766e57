/** The table of jobs with search, filters and bulk actions; the curves of the selected jobs below. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { inProject, storedKey } from "../api/client";
import { reconnections } from "../api/connection";
import { type Job, STATES } from "../api/types";
import { DEFAULT_COLUMNS, type Column, columnOf, compareValues, matches, needsSpec, needsSummary } from "../lib/columns";
import { isOfServer, meets, showCondition, writeConditions } from "../lib/filters";
import { splitNames } from "../lib/names";
import { conditions, hasMore, isLoading, jobs, listed, loadMore, message, readOnly, refreshJob, total } from "../model/jobs";
import { detailsPending, detailsVersion, needSpec, needSummary, specOf, summaryOf } from "../model/details";
import { href, param, setParams } from "../model/route";
import { MOST_SELECTED, select, selectedIds } from "../model/selection";
import { Copy } from "../ui/Copy";
import { Charts } from "./Charts";
import { ColumnMenu } from "./jobs/ColumnMenu";
import { FilterMenu } from "./jobs/FilterMenu";
import { Selection } from "./jobs/Selection";
import { Table } from "./jobs/Table";

export function JobsView() {
  const now = useNow();
  const ids = param("cols") ? splitNames(param("cols")) : DEFAULT_COLUMNS;
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
      .filter(({ job, extra }) => filters.every((condition) => (condition.field === "created" && isOfServer(condition, now)) || meets(job, condition, extra)))
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
    const needsAll = sort !== "-created" || search || filters.some((condition) => !isOfServer(condition, now));
    if (needsAll && hasMore.value) void loadMore(true);
  }, [sort, search, param("where"), order.length, hasMore.value]);
  useEffect(() => {
    // The first visit shows curves at once: the newest jobs that have some are selected.
    const drawable = rows.filter(hasCurves).slice(0, 5);
    if (!param("sel") && !param("none") && drawable.length) select(drawable.map((job) => job.id));
  }, [rows.some(hasCurves)]);

  const unknown = selectedIds().filter((id) => !all.has(id)).join();
  useEffect(() => {
    // A saved address may select jobs that are older than those of the newest page.
    for (const id of unknown.split(",").filter(Boolean)) refreshJob(id).catch(() => undefined);
  }, [unknown, reconnections.value]);

  const chosen = selectedIds().map((id) => all.get(id)).filter((job): job is Job => job !== undefined);
  const isFiltered = Boolean(search || param("state") || filters.length);
  return (
    <>
      <h1 class="hidden">Jobs</h1>
      <section class="jobs" aria-label="Jobs">
        <Toolbar rows={rows} columns={ids} />
        <div class="table">
          {rows.length > 0 && <Table rows={rows} columns={columns} selected={selected} sort={sort} now={now} />}
          {rows.length > 0 && <Selection chosen={chosen} rows={rows} />}
          {rows.length === 0 && <div style={{ padding: "4px 20px" }}>{isLoading.value || detailsPending.value > 0 ? <p class="empty">{message.value?.isOfList ? "The jobs cannot be shown." : "Loading jobs…"}</p> : <NoJobs isFiltered={isFiltered} />}</div>}
        </div>
      </section>
      {chosen.length > 0 && <Charts jobs={chosen.slice(0, MOST_SELECTED)} />}
    </>
  );
}

/** Sessions and exports of a checkpoint, which name its job in their metadata, train nothing. */
const hasCurves = (job: Job) => job.attempt > 0 && job.metadata.of === undefined;

/** The present time, every five seconds: ages move although no job has changed. */
function useNow(): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 5000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

const UNFINISHED = "queued,starting,running,stopping,paused";

function Toolbar({ rows, columns }: { rows: Job[]; columns: string[] }) {
  const known = total.value;
  // Above 1,000, the service says only that there are more.
  const isOpen = hasMore.value && known > 1000;
  const ofAll = isOpen ? ` of more than ${Math.max(1000, listed.value.length).toLocaleString("en-US")}` : known > rows.length ? ` of ${known.toLocaleString("en-US")}` : "";
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
        {rows.length.toLocaleString("en-US")}{ofAll} {known === 1 ? "job" : "jobs"}
        {detailsPending.value > 20 && `, reading ${detailsPending.value.toLocaleString("en-US")} more`}
      </span>
      {!readOnly.value && <span class="end"><a class="button primary" href={href("submit")}>New job</a></span>}
    </div>
  );
}

function NoJobs({ isFiltered }: { isFiltered: boolean }) {
  if (isFiltered) {
    return <p class="empty">No job matches. <button type="button" onClick={() => setParams({ q: null, state: null, where: null })}>Clear search and filters</button></p>;
  }
  const spec = '{"model": "toy/mlp", "data": "toy/regression", "training": {"max_steps": 2000, "logging_steps": 20}}';
  const key = storedKey() ? ' -H "Authorization: Bearer $FOOTPLATE_API_KEY"' : "";
  const command = `curl -X POST '${location.origin}${inProject("/jobs")}'${key} -H 'Content-Type: application/json' -d '${spec}'`;
  return (
    <div class="empty">
      <h2>No job yet</h2>
      {readOnly.value ?? (
        <>
          <p><a class="button primary" href={href("submit")}>Submit the first one</a> or paste this into a terminal:</p>
          <Copy text={command} what="the command" />
        </>
      )}
    </div>
  );
}
