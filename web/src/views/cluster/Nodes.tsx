/** The nodes with their slots, GPUs and jobs. */

import { useEffect, useState } from "preact/hooks";
import { jobPath, request } from "../../api/client";
import type { Job, JobEvent } from "../../api/types";
import { formatAge, formatDuration, formatNumber, jobTitle } from "../../lib/format";
import { type Gpu, gpuUse } from "../../lib/system";
import { attempt, jobs } from "../../model/jobs";
import { href } from "../../model/route";
import { Sure } from "../../ui/Sure";
import { usePolled } from "./polled";

interface Node {
  id: string;
  name: string;
  state: string;
  takes_work: boolean;
  message: string | null;
  refused: string | null;
  exposed: string | null;
  pool: string;
  slots: number;
  slots_used: number;
  gpus: { uuid: string; name: string; memory_mb: number }[];
  jobs: string[];
  versions: Record<string, string>;
  actions: string[];
  seen_at: string;
}

export function Nodes() {
  const { rows, problem, reload } = usePolled<Node>("/nodes", 3);
  const drain = (node: Node) =>
    attempt(() => request(`/nodes/${node.id}/drain`, { method: "POST", body: { drain: node.state !== "draining" } })).then(reload);
  const remove = (node: Node) => attempt(() => request(`/nodes/${node.id}`, { method: "DELETE" })).then(reload);
  return (
    <section aria-label="Nodes">
      <h2>Nodes</h2>
      {problem && <p class="empty" role="alert">{problem}</p>}
      {rows?.length === 0 && <p class="empty">No node is connected. <code>make up</code> starts one by itself; on another machine <code>python -m worker</code> starts one.</p>}
      <div class="cards">
        {rows?.map((node) => (
          <div class="card-box" key={node.id}>
            <h3>{node.name} <span class={`state ${node.state}`}>{node.state}</span></h3>
            <div class="slots" role="img" aria-label={`${node.slots_used} of ${node.slots} slots used`}>
              {Array.from({ length: Math.min(node.slots, 64) }, (_, index) => <i key={index} class={index < node.slots_used ? "used" : ""} />)}
            </div>
            <p>{node.slots_used} of {node.slots} {node.slots === 1 ? "slot" : "slots"} used · pool {node.pool} · seen {formatAge(node.seen_at, Date.now())}</p>
            {node.gpus.length > 0 && <Gpus node={node} />}
            {node.jobs.map((id) => <NodeJob key={id} id={id} />)}
            {[node.message, node.refused].filter(Boolean).map((text) => <p class="warning" key={text}>{text}</p>)}
            {node.exposed && <details><summary class="warning">Training is not confined here</summary><p>{node.exposed}</p></details>}
            <p class="facts">{Object.entries(node.versions).map(([name, version]) => `${name} ${version}`).join(" · ")}</p>
            {node.actions.includes("undrain") && <button type="button" onClick={() => void drain(node)}>undrain</button>}
            {node.actions.includes("drain") && <Sure action="drain" run={() => void drain(node)}>Its jobs save a checkpoint and continue on other nodes. It gets no more work.</Sure>}
            {node.actions.includes("remove") && <Sure action="remove" run={() => void remove(node)}>It leaves the list until it sends a heartbeat.</Sure>}
          </div>
        ))}
      </div>
    </section>
  );
}

/** Events of a job among which the newest report of its GPUs is looked for. */
const NEWEST_EVENTS = 1000;

/** The GPUs of a node, and how the node's jobs use them. */
function Gpus({ node }: { node: Node }) {
  const [use, setUse] = useState<Record<string, Gpu>>({});
  useEffect(() => {
    const load = async () => {
      const reports = await Promise.all(node.jobs.map(async (id) => {
        const { last_no } = jobs.value.get(id) ?? (await request<Job>(jobPath(id)));
        const after = Math.max(0, last_no - NEWEST_EVENTS);
        return (await request<{ data: JobEvent[] }>(`${jobPath(id)}/events?kinds=system&after=${after}&limit=${NEWEST_EVENTS}`)).data;
      }));
      setUse(gpuUse(reports.flat()));
    };
    const quietly = () => void load().catch(() => undefined); // The page says elsewhere that the service is unreachable.
    quietly();
    const timer = setInterval(() => document.hidden || quietly(), 10_000);
    return () => clearInterval(timer);
  }, [node.jobs.join()]);
  return (
    <ul class="gpus" aria-label="GPUs">
      {node.gpus.map((gpu) => {
        const { percent, memory_mb: taken = 0 } = use[gpu.uuid] ?? {};
        const gib = (mb: number) => formatNumber(mb / 1024, 3);
        // The jobs of another project are not listed here, so the use of their GPUs is not known.
        const idle = node.slots_used === 0 ? "idle · " : "";
        return (
          <li key={gpu.uuid} title={gpu.uuid}>
            <span>{gpu.name}</span> <span>{percent === undefined ? idle : `${formatNumber(percent, 3)} % · `}{taken ? `${gib(taken)} of ` : ""}{gib(gpu.memory_mb)} GiB</span>
            <progress max={gpu.memory_mb || 1} value={taken} aria-label={`Memory of ${gpu.name} in use`} />
          </li>
        );
      })}
    </ul>
  );
}

/** A job on a node, with how long it will take the node's slots. */
function NodeJob({ id }: { id: string }) {
  const job = jobs.value.get(id);
  const left = job?.state === "running" && job.progress?.eta_s ? `, ${formatDuration(job.progress.eta_s)} left` : "";
  return (
    <p>
      <a class="link" href={href(`jobs/${id}`)}>{job ? jobTitle(job) : id.slice(-8)}</a>
      {job?.progress?.max_steps ? ` ${Math.floor((job.progress.step / job.progress.max_steps) * 100)} %${left}` : ""}
    </p>
  );
}
