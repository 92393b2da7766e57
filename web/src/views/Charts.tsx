/** All metrics of some jobs, grouped by prefix, with one row of settings. The settings stand in the address. */

import { useEffect, useMemo } from "preact/hooks";
import type { Job } from "../api/types";
import { jobTitle } from "../lib/format";
import { groupMetrics } from "../lib/groups";
import { type Axis, curveOf, curvesVersion, followJobs, namesOf } from "../model/curves";
import { param, setParams } from "../model/route";
import { Chart, type Settings } from "../ui/Chart";
import { colorOf } from "../ui/colors";

const AXES: [Axis, string][] = [["step", "Step"], ["epoch", "Epoch"], ["relative", "Relative time"], ["time", "Wall time"]];

/** Jobs with equal names (or equal but for a trailing number or seed) can be drawn as one band. */
export function Charts({ jobs }: { jobs: Job[] }) {
  const ids = jobs.map((job) => job.id).join();
  useEffect(() => followJobs(jobs), [ids]);
  const version = curvesVersion.value;
  const axis = param("x", "step") as Axis;
  const search = param("metric");
  const settings: Settings = {
    xLabel: axis,
    isTime: axis === "time",
    isDuration: axis === "relative",
    isLog: param("log") === "1",
    smoothing: Number(param("smooth", "0")) || 0,
    withoutOutliers: param("outliers") === "0",
    asBand: param("band") === "1",
  };
  const groups = useMemo(() => {
    const names = namesOf(jobs.map((job) => job.id)).filter((name) => name.includes(search));
    return groupMetrics(names);
  }, [version, ids, search]);
  return (
    <section class="charts" aria-label="Curves">
      <div class="toolbar">
        <label>
          x <select value={axis} onChange={(event) => setParams({ x: event.currentTarget.value })}>
            {AXES.map(([value, text]) => <option key={value} value={value}>{text}</option>)}
          </select>
        </label>
        <label>
          Smoothing <input type="range" min="0" max="0.99" step="0.01" value={settings.smoothing}
            onInput={(event) => setParams({ smooth: event.currentTarget.value === "0" ? null : event.currentTarget.value })} />
          <output>{settings.smoothing.toFixed(2)}</output>
        </label>
        <Toggle name="log" on="1" text="Log y" />
        <Toggle name="outliers" on="0" text="Ignore outliers" />
        {jobs.length > 1 && <Toggle name="band" on="1" text="Mean and range" />}
        <input type="search" placeholder="Metric" aria-label="Filter metrics" value={search}
          onInput={(event) => setParams({ metric: event.currentTarget.value })} />
      </div>
      {groups.length === 0 && <p class="empty">No metric{search && ` with “${search}”`} yet. Metrics appear with the first log of a job (`logging_steps`).</p>}
      {groups.map((group) => (
        <details class="metric-group" open key={group.title}>
          <summary>{group.title} <small>{group.names.length}</small></summary>
          <div class="chart-grid">
            {group.names.map((name) => (
              <Chart
                key={name}
                title={name}
                sync={`x-${axis}`}
                settings={settings}
                lines={jobs.map((job) => ({
                  label: jobTitle(job),
                  color: colorOf(job.id),
                  curve: curveOf(job.id, name, axis, Date.parse(job.started_at ?? job.created_at)),
                }))}
              />
            ))}
          </div>
        </details>
      ))}
    </section>
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
