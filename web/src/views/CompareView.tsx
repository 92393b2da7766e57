/** Several jobs side by side: what their specs say differently, what they reached, how values and results go together. */

import { useEffect, useState } from "preact/hooks";
import { request } from "../api/client";
import { reconnections } from "../api/connection";
import type { Job } from "../api/types";
import { type Flat, diff, showValue } from "../lib/flatten";
import { type Catalogue, type SpecSchema, withDefaults } from "../lib/form";
import { formatNumber, jobTitle } from "../lib/format";
import { bestOf, groupMetrics, hasBest, isFigure, lowerIsBetter } from "../lib/groups";
import { detailsVersion, needSpec, needSummary, specOf, summaryOf } from "../model/details";
import { isGone, jobs, refreshJob } from "../model/jobs";
import { href, param, setParams } from "../model/route";
import { colorOf } from "../ui/colors";
import { Waiting } from "../ui/Waiting";
import { Charts } from "./Charts";

const NEVER_COMPARED = new Set(["name"]);

export function CompareView() {
  const ids = param("sel").split(",").filter(Boolean);
  const [missing, setMissing] = useState<string[]>([]);
  void detailsVersion.value;
  useEffect(() => {
    setMissing([]);
    for (const id of ids) {
      needSpec(id);
      refreshJob(id).catch((error) => isGone(error) && setMissing((others) => [...new Set([...others, id])]));
    }
  }, [ids.join(), reconnections.value]);
  const chosen = ids.map((id) => jobs.value.get(id)).filter((job): job is Job => job !== undefined);
  // Jobs that run move while they are compared.
  useEffect(() => chosen.forEach(needSummary));
  const fill = useDefaults();
  if (ids.length < 2) return <Waiting title="Compare">Select two or more jobs in <a href={href("jobs")}>the table</a>, then “Compare”.</Waiting>;
  const gone = missing.length > 0 && `Not in this project, or deleted: ${missing.join(", ")}. `;
  if (chosen.length < 2) return <Waiting title="Compare">{gone && <>{gone}<a href={href("jobs")}>All jobs</a></>}</Waiting>;
  return (
    <article>
      <p class="crumbs"><a href={href("jobs", { sel: ids.join() })}>Jobs</a> / compare</p>
      <h1>{chosen.length} jobs side by side</h1>
      {gone && <p class="warning">{gone}</p>}
      <SpecDiff jobs={chosen} fill={fill} />
      <MetricsTable jobs={chosen} />
      <Parallel jobs={chosen} fill={fill} />
      <Charts jobs={chosen} />
    </article>
  );
}

function Heads({ jobs: shown, isNumber = false }: { jobs: Job[]; isNumber?: boolean }) {
  return (
    <>
      {shown.map((job) => (
        <th key={job.id} scope="col" class={isNumber ? "number" : ""}><i class="dot" style={{ background: colorOf(job.id) }} /> <a href={href(`jobs/${job.id}`)} title={jobTitle(job)}>{jobTitle(job)}</a></th>
      ))}
    </>
  );
}

type Fill = (specs: Flat[]) => Flat[];

/** Returns a function that adds the service's defaults to specs. Until the service has answered, it adds nothing. */
function useDefaults(): Fill {
  const [known, setKnown] = useState<[SpecSchema, Catalogue] | null>(null);
  useEffect(() => {
    Promise.all([request<SpecSchema>("/schema/job"), request<Catalogue>("/components")]).then(setKnown).catch(() => undefined);
  }, [reconnections.value]);
  return (specs) => (known ? withDefaults(specs, ...known) : specs);
}

function SpecDiff({ jobs: shown, fill }: { jobs: Job[]; fill: Fill }) {
  const versions = useVersions(shown);
  const specs = shown.map((job) => new Map([...(specOf(job.id) ?? []), ...(versions.get(job.id) ?? [])]));
  const rows = diff(fill(specs), NEVER_COMPARED);
  const isDefault = (value: unknown, path: string, index: number) => value !== undefined && !specs[index]!.has(path);
  return (
    <section aria-label="Differences">
      <h2>What differs</h2>
      {rows.length === 0 ? <p class="empty">These specs are equal but for their names.</p> : (
        <div class="wide" tabIndex={0}><table class="plain">
          <thead><tr><th scope="col">Spec</th><Heads jobs={shown} /></tr></thead>
          <tbody>{rows.map((row) => <tr key={row.path}><th scope="row"><code>{row.path}</code></th>{row.values.map((value, index) => <td key={index}>{showValue(value)}{isDefault(value, row.path, index) && <small> default</small>}</td>)}</tr>)}</tbody>
        </table></div>
      )}
    </section>
  );
}

/** The software on the node where each job ran last. */
function useVersions(shown: Job[]): Map<string, Flat> {
  const [nodes, setNodes] = useState<{ id: string; name: string; versions: Record<string, string> }[]>([]);
  useEffect(() => void request<{ data: typeof nodes }>("/nodes").then((answer) => setNodes(answer.data)).catch(() => undefined), []);
  return new Map(shown.map((job) => {
    const node = nodes.find((other) => other.name === job.node || other.id === job.node);
    return [job.id, new Map(Object.entries(node?.versions ?? {}).map(([name, version]) => [`environment.${name}`, version]))];
  }));
}

function MetricsTable({ jobs: shown }: { jobs: Job[] }) {
  const known = [...new Set(shown.flatMap((job) => [...(summaryOf(job.id)?.keys() ?? [])]))];
  const names = [...groupMetrics(known.filter((name) => !isFigure(name))).flatMap((group) => group.names), ...known.filter(isFigure).sort()];
  if (names.length === 0) return null;
  return (
    <section aria-label="Metrics">
      <h2>Metrics</h2>
      <div class="wide" tabIndex={0}><table class="plain">
        <thead><tr><th scope="col">Metric (last, best)</th><Heads jobs={shown} isNumber /></tr></thead>
        <tbody>
          {names.map((name) => {
            const isLow = lowerIsBetter(name);
            const best = shown.map((job) => summaryOf(job.id)?.get(name)).map((row) => (row ? (isLow ? row.min : row.max) : NaN));
            // Nobody wins by a schedule or a speed, or if all are equal.
            const hasOne = hasBest(name) && !isFigure(name);
            const isContest = hasOne && new Set(best).size > 1;
            const winner = isContest ? bestOf(best, name) : undefined;
            return (
              <tr key={name}>
                <th scope="row">{name}</th>
                {shown.map((job, index) => {
                  const row = summaryOf(job.id)?.get(name);
                  return <td key={job.id} class={`number ${winner !== undefined && best[index] === winner ? "winner" : ""}`}>{row ? [row.last, ...(hasOne ? [best[index]] : [])].map((value) => formatNumber(value)).join(" · ") : "—"}</td>;
                })}
              </tr>
            );
          })}
        </tbody>
      </table></div>
    </section>
  );
}

/** An axis whose highest value is so many times its lowest one is logarithmic. Learning rates would meet at its end otherwise. */
const LOG_FROM = 100;

/** Parallel coordinates: one axis for each numeric spec value that differs, and one for the result. */
function Parallel({ jobs: shown, fill }: { jobs: Job[]; fill: Fill }) {
  const specs = fill(shown.map((job) => specOf(job.id) ?? new Map<string, unknown>()));
  const paths = diff(specs, NEVER_COMPARED).filter((row) => row.values.every((value) => typeof value === "number")).map((row) => row.path).slice(0, 8);
  const results = [...new Set(shown.flatMap((job) => [...(summaryOf(job.id)?.keys() ?? [])]))].sort();
  const result = param("result") || (results.includes("eval_loss") ? "eval_loss" : results.includes("loss") ? "loss" : results[0]);
  if (paths.length === 0 || !result) return null;
  const axes = [
    ...paths.map((path) => ({ title: path, values: specs.map((spec) => spec.get(path) as number) })),
    { title: result, values: shown.map((job) => { const row = summaryOf(job.id)?.get(result); return row ? (lowerIsBetter(result) ? row.min : row.max) : NaN; }) },
  ];
  const [width, height] = [900, 260];
  const x = (index: number) => 60 + (index * (width - 140)) / (axes.length - 1);
  const ranges = axes.map(({ values }) => { const finite = values.filter(Number.isFinite); return [Math.min(...finite), Math.max(...finite)] as const; });
  const isLog = ranges.map(([low, high]) => low > 0 && high / low >= LOG_FROM);
  const y = (index: number, value: number) => {
    const place = (number: number) => (isLog[index] ? Math.log(number) : number);
    const [low, high] = ranges[index]!.map(place) as [number, number];
    return height - 30 - ((place(value) - low) / (high - low || 1)) * (height - 70);
  };
  const title = (index: number) => `${axes[index]!.title}${isLog[index] ? " (log)" : ""}`;
  return (
    <section aria-label="Parallel coordinates">
      <h2>Values and results</h2>
      <label>Result <select value={result} onChange={(event) => setParams({ result: event.currentTarget.value })}>{results.map((name) => <option key={name}>{name}</option>)}</select></label>
      <div class="wide" tabIndex={0}>
        <svg class="parallel" viewBox={`0 0 ${width} ${height}`} role="img" aria-label={`Numeric spec values of ${shown.length} jobs and their ${result}`}>
          {axes.map((axis, index) => (
            <g key={axis.title}>
              <line x1={x(index)} x2={x(index)} y1={40} y2={height - 30} />
              {/* The outer titles begin and end at the edges, where a centred one would be cut off. */}
              {index === 0 && <text x={4} y={20}>{title(index)}</text>}
              {index > 0 && index < axes.length - 1 && <text x={x(index)} y={20} text-anchor="middle">{title(index)}</text>}
              {index === axes.length - 1 && <text x={width - 4} y={20} text-anchor="end">{title(index)}</text>}
              <text x={x(index) + 4} y={38}>{formatNumber(ranges[index]![1], 3)}</text>
              <text x={x(index) + 4} y={height - 14}>{formatNumber(ranges[index]![0], 3)}</text>
            </g>
          ))}
          {shown.map((job, which) => {
            const points = axes.map((axis, index) => [x(index), y(index, axis.values[which]!)] as const).filter(([, place]) => Number.isFinite(place));
            return <polyline key={job.id} points={points.map((point) => point.join()).join(" ")} stroke={colorOf(job.id)}><title>{jobTitle(job)}</title></polyline>;
          })}
        </svg>
      </div>
    </section>
  );
}
