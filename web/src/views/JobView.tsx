/** One job: where it stands, what can be done now, its curves, history, log, spec, checkpoints and outputs. */

import { useEffect, useState } from "preact/hooks";
import { explain } from "../api/client";
import { reconnections } from "../api/connection";
import type { Job } from "../api/types";
import { followEvents } from "../model/curves";
import { detailsVersion, needSpec, rawSpecOf } from "../model/details";
import { forget, isGone, jobs, refreshJob } from "../model/jobs";
import { href, param, setParams } from "../model/route";
import { JsonText } from "../ui/Json";
import { Waiting } from "../ui/Waiting";
import { Charts } from "./Charts";
import { Api } from "./job/Api";
import { Attempts } from "./job/Attempts";
import { Checkpoints } from "./job/Checkpoints";
import { Events } from "./job/Events";
import { Header } from "./job/Header";
import { Log } from "./job/Log";
import { Outputs } from "./job/Outputs";

const TABS = ["curves", "attempts", "events", "log", "spec", "checkpoints", "outputs", "api"] as const;
type Tab = (typeof TABS)[number];

export function JobView({ id }: { id: string }) {
  const job = jobs.value.get(id);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    setProblem(null);
    const failed = (error: unknown) => {
      // Somebody else may have deleted the job while this page shows it.
      if (isGone(error)) forget(id);
      setProblem(explain(error));
    };
    refreshJob(id).catch(failed);
    const timer = setInterval(() => document.hidden || refreshJob(id).then(() => setProblem(null), failed), 2000);
    return () => clearInterval(timer);
  }, [id]);
  const tab = (TABS as readonly string[]).includes(param("tab")) ? (param("tab") as Tab) : "curves";
  // The curves follow the job by themselves, once their history is on its way.
  useEffect(() => {
    if (job && tab !== "curves") followEvents(job);
  }, [id, tab, job !== undefined]);
  if (problem && !job) return <Waiting title="No such job">{problem} <a href={href("jobs")}>All jobs</a></Waiting>;
  if (!job) return <Waiting title="Job" />;
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

function Spec({ job }: { job: Job }) {
  void detailsVersion.value;
  useEffect(() => needSpec(job.id), [job.id, reconnections.value]);
  const spec = rawSpecOf(job.id);
  return spec === undefined ? <p class="empty">Loading…</p> : <JsonText value={spec} />;
}
