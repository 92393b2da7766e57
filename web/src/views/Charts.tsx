/** All metrics of some jobs, grouped by prefix, with one row of settings. The settings stand in the address. */

import { memo } from "preact/compat";
import { useEffect, useMemo } from "preact/hooks";
import { reconnections } from "../api/connection";
import { FINAL, type Job } from "../api/types";
import { diff } from "../lib/flatten";
import { formatNumber, jobTitle } from "../lib/format";
import { familiesOf, groupMetrics, isFigure } from "../lib/groups";
import { type Axis, curvesPending, curvesProblem, curvesVersion, followJobs, forgetFiner, isMeasured, namesOf } from "../model/curves";
import { detailsVersion, needSpec, specOf } from "../model/details";
import { param, setParams } from "../model/route";
import { Chart } from "../ui/Chart";
import type { Look, Settings } from "../ui/chart/lines";
import { COLORS, colorOf } from "../ui/colors";
import { rangeOf } from "../ui/zoom";

const AXES: [Axis, string][] = [["step", "Step"], ["epoch", "Epoch"], ["relative", "Relative time"], ["time", "Wall time"]];

export function Charts({ jobs }: { jobs: Job[] }) {
  const ids = jobs.map((job) => job.id).join();
  const version = curvesVersion.value;
  const axis = param("x", "step") as Axis;
  const search = param("metric");
  const by = jobs.length > 1 ? param("group") : "";
  const settings = useSame<Settings>({
    axis,
    isLog: param("log") === "1",
    isLogX: param("logx") === "1" && axis !== "time",
    smoothing: Number(param("smooth", "0")) || 0,
    withoutOutliers: param("outliers") === "0",
  });
  // What a node measures has a time, and no step or epoch.
  const axisOfMeasured = axis === "step" || axis === "epoch" ? "relative" : axis;
  const settingsOfMeasured = useSame<Settings>({ ...settings, axis: axisOfMeasured });
  const ranges = [...new Set([rangeOf(axis), rangeOf(axisOfMeasured)])];
  const isZoomed = ranges.some((range) => range.value !== null);
  useEffect(() => followJobs(jobs, axis), [ids, axis, reconnections.value]);
  useEffect(() => {
    if (!isZoomed) forgetFiner();
  }, [isZoomed]);
  useEffect(() => {
    if (jobs.length > 1) jobs.forEach((job) => needSpec(job.id));
  }, [ids]);
  const { groups, figures } = useMemo(() => {
    const names = namesOf(jobs.map((job) => job.id)).filter((name) => name.includes(search));
    return { groups: groupMetrics(names.filter((name) => !isFigure(name))), figures: names.filter(isFigure).sort() };
  }, [version, ids, search]);
  const families = useMemo(() => (by ? familiesOf(jobs, by, specOf) : []), [ids, by, detailsVersion.value]);
  const ofFamily = new Map(families.flatMap((family, index) => family.jobs.map((job) => [job.id, { family: family.title, color: COLORS[index % COLORS.length]! }])));
  const looks = useSame<Look[]>(jobs.map((job) => ({ id: job.id, label: jobTitle(job), color: colorOf(job.id), startedAt: Date.parse(job.started_at ?? job.created_at), ...ofFamily.get(job.id) })));
  return (
    <section class="charts" aria-label="Curves">
      <div class="toolbar">
        <input type="search" placeholder="Find a metric" aria-label="Filter metrics" value={search}
          onInput={(event) => setParams({ metric: event.currentTarget.value }, true)} />
        <label>
          x <select aria-label="x axis" value={axis} onChange={(event) => setParams({ x: event.currentTarget.value })}>
            {AXES.map(([value, text]) => <option key={value} value={value}>{text}</option>)}
          </select>
        </label>
        {jobs.length > 1 && <GroupBy jobs={jobs} by={by} />}
        <label class="toggle">
          Smoothing <input type="range" min="0" max="0.99" step="0.01" value={settings.smoothing}
            onInput={(event) => setParams({ smooth: event.currentTarget.value === "0" ? null : event.currentTarget.value }, true)} />
          <output>{settings.smoothing.toFixed(2)}</output>
        </label>
        <Toggle name="log" on="1" text="Log y" />
        {axis !== "time" && <Toggle name="logx" on="1" text="Log x" />}
        <Toggle name="outliers" on="0" text="Ignore outliers" />
        {isZoomed && <button type="button" onClick={() => ranges.forEach((range) => (range.value = null))}>Show all of x</button>}
        {curvesPending.value > 0 && <span class="count">Loading curves…</span>}
      </div>
      {curvesProblem.value && <p class="empty" role="alert">Some curves could not be read: {curvesProblem.value} <button type="button" onClick={() => followJobs(jobs, axis)}>Try again</button></p>}
      {groups.length === 0 && curvesPending.value === 0 && !curvesProblem.value && <p class="empty">{search ? `No metric with “${search}”.` : jobs.every((job) => FINAL.has(job.state)) ? "No metric was logged." : <>No metric yet. Metrics appear with the first log of a job, every <code>logging_steps</code> steps.</>}</p>}
      {groups.map((group) => (
        <details class="metric-group" open key={group.title}>
          <summary>{group.title} <small>{group.names.length}</small></summary>
          <div class="chart-grid">
            {group.names.map((name) => (
              <Drawn key={name} title={name} settings={isMeasured(name) ? settingsOfMeasured : settings} isOwnAxis={isMeasured(name) && axis !== axisOfMeasured} looks={looks} />
            ))}
          </div>
        </details>
      ))}
      {figures.length > 0 && <Figures jobs={jobs} names={figures} />}
    </section>
  );
}

/** A chart of which nothing has changed is not worked out again. */
const Drawn = memo(Chart);

/** Returns the value of an earlier turn while its content is the same, so that what depends on it is kept, too. */
function useSame<T>(value: T): T {
  const key = JSON.stringify(value);
  return useMemo(() => value, [key]);
}

/** Which jobs are drawn as one band: those that differ by their seeds only, by tags, or by a value of the spec. */
function GroupBy({ jobs, by }: { jobs: Job[]; by: string }) {
  const known = jobs.map((job) => specOf(job.id)).filter((spec) => spec !== undefined);
  const paths = diff(known, new Set(["name"])).map((row) => row.path);
  return (
    <label>
      Group <select value={by} onChange={(event) => setParams({ group: event.currentTarget.value })}>
        <option value="">no</option>
        <option value="seeds">seeds together</option>
        <option value="tags">by tags</option>
        <option value="all">all together</option>
        {paths.map((path) => <option key={path} value={path}>by {path}</option>)}
      </select>
    </label>
  );
}

/** What a run says once, at its end. */
function Figures({ jobs, names }: { jobs: Job[]; names: string[] }) {
  return (
    <details class="metric-group" open>
      <summary>at the end <small>{names.length}</small></summary>
      <div class="wide" tabIndex={0}>
        <table class="plain">
          <thead><tr><th scope="col">Job</th>{names.map((name) => <th key={name} scope="col" class="number">{name}</th>)}</tr></thead>
          <tbody>
            {jobs.map((job) => (
              <tr key={job.id}>
                <th scope="row"><i class="dot" style={{ background: colorOf(job.id) }} /> {jobTitle(job)}</th>
                {names.map((name) => <td key={name} class="number">{formatNumber(job.metrics[name])}</td>)}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}

function Toggle({ name, on, text }: { name: string; on: string; text: string }) {
  const isOn = param(name) === on;
  return (
    <label class="toggle">
      <input type="checkbox" checked={isOn} onChange={() => setParams({ [name]: isOn ? null : on })} /> {text}
    </label>
  );
}
