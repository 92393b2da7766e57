/** Where a job stands: state, reason, place in the queue, forks, progress, newest metrics and error. */

import { useEffect, useState } from "preact/hooks";
import { request } from "../../api/client";
import { reconnections } from "../../api/connection";
import type { Job, JobList } from "../../api/types";
import { formatDuration, formatMoment, formatNumber, jobTitle, sentence } from "../../lib/format";
import { groupMetrics, isFigure } from "../../lib/groups";
import { detailsVersion, needSpec, partsOf } from "../../model/details";
import { jobs, refreshJob } from "../../model/jobs";
import { href, tableHref } from "../../model/route";
import { Actions } from "./Actions";

const MOST_LATEST = 12;

export function Header({ job }: { job: Job }) {
  const { step = 0, max_steps: steps = 0, epoch, eta_s: left } = job.progress ?? {};
  const facts = [
    job.attempt > 0 && !job.external && `attempt ${job.attempt}`,
    job.nodes.length ? `on ${job.nodes.join(", ")}` : job.node && `on ${job.node}`,
    step || steps ? `step ${formatNumber(step)}${steps ? ` of ${formatNumber(steps)}` : ""}` : null,
    epoch ? `epoch ${formatNumber(epoch, 3)}` : null,
    job.state === "running" && left ? `${formatDuration(left)} left` : null,
    job.tags.length ? `tags ${job.tags.join(", ")}` : null,
    `project ${job.project}`,
    job.external && "runs elsewhere",
  ];
  const latest = groupMetrics(Object.keys(job.metrics).filter((name) => !isFigure(name))).flatMap((group) => group.names).slice(0, MOST_LATEST);
  return (
    <header class={`job-header ${job.state === "succeeded" ? "done" : ""}`}>
      <p class="crumbs"><a href={tableHref()}>Jobs</a> / <code>{job.id}</code></p>
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
    const timer = setInterval(() => document.hidden || void load(), 3000);
    return () => clearInterval(timer);
  }, [job.id]);
  if (!place) return null;
  const before = place.ahead.yours + place.ahead.others;
  // A job that no node can take is first in line, and yet does not start.
  const next = job.reason === "no_such_shape" ? "first once a node can take it" : "next to start";
  return (
    <p class="why">
      {place.place === null ? `Not in the queue ${place.starts_after ? `before ${formatMoment(place.starts_after, Date.now())}` : "yet"}. ` : `Place ${formatNumber(place.place)} in the queue, ${before === 0 ? next : `${formatNumber(before)} before it`}. `}
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
  useEffect(() => needSpec(job.id), [job.id, reconnections.value]);
  useEffect(() => {
    let isShown = true;
    request<JobList>(`/jobs?forked_from=${job.id}&limit=20`).then((list) => isShown && setForks(list.data.filter(isFork)), () => undefined); // The page stays whole without them.
    return () => void (isShown = false);
  }, [job.id, reconnections.value]);
  const from = partsOf(job.id)?.resume_from;
  const source = from?.job ? jobs.value.get(from.job) : undefined;
  useEffect(() => {
    if (from?.job && !source) refreshJob(from.job).catch(() => undefined); // A deleted job is shown by its id.
  }, [from?.job]);
  if (!from?.job && forks.length === 0) return null;
  return (
    <p class="why">
      {from?.job && <>Forked from <a href={href(`jobs/${from.job}`)}>{source?.name ?? from.job}</a>, checkpoint {from.checkpoint ?? "latest"}. <a href={href("compare", { sel: `${from.job},${job.id}` })}>Compare both</a>. </>}
      {forks.length > 0 && (
        <>
          Its forks: {forks.map((fork) => <><a key={fork.id} href={href(`jobs/${fork.id}`)}>{fork.name ?? fork.id}</a> ({fork.state}), </>)}
          <a href={href("compare", { sel: [job.id, ...forks.map((fork) => fork.id)].join(",") })}>compare with them</a>.
        </>
      )}
    </p>
  );
}
