/** Nodes, the queue, and for an administrator keys and webhooks. */

import { useEffect, useState } from "preact/hooks";
import { explain, jobPath, request } from "../api/client";
import type { Job, JobEvent } from "../api/types";
import { formatAge, formatBytes, formatDuration, formatNumber, jobTitle } from "../lib/format";
import { type Gpu, gpuUse } from "../lib/system";
import { attempt, jobs } from "../model/jobs";
import { href } from "../model/route";
import { Copy } from "../ui/Copy";

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
interface Queued {
  job: string;
  name: string | null;
  pool: string;
  needs: string;
  place: number | null;
  message: string | null;
  reason: string;
  waited_s: number;
  priority: number;
  ahead: { yours: number; others: number };
  starts_after: string | null;
}
interface Key {
  id: string;
  prefix: string;
  name: string;
  project: string;
  scopes: string[];
  last_used_at: string | null;
}
interface Webhook {
  id: string;
  url: string;
  states: string[] | null;
  tags: string[] | null;
  enabled: boolean;
  disabled_why: string | null;
  failing_since: string | null;
}

function usePolled<T>(path: string, seconds: number): { rows: T[] | null; problem: string | null; reload: () => void } {
  const [rows, setRows] = useState<T[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const load = () =>
    request<{ data: T[] }>(path).then((answer) => (setRows(answer.data), setProblem(null))).catch((error) => setProblem(explain(error)));
  useEffect(() => {
    void load();
    const timer = setInterval(() => document.hidden || void load(), seconds * 1000);
    return () => clearInterval(timer);
  }, [path]);
  return { rows, problem, reload: load };
}

export function ClusterView() {
  return (
    <article class="cluster">
      <h1 class="hidden">Cluster</h1>
      <Nodes />
      <Queue />
      <Keys />
      <Webhooks />
    </article>
  );
}

function Nodes() {
  const { rows, problem, reload } = usePolled<Node>("/nodes", 3);
  const drain = (node: Node) =>
    attempt(() => request(`/nodes/${node.id}/drain`, { method: "POST", body: { drain: node.state !== "draining" } })).then(reload);
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
            {node.state === "draining" && <button type="button" onClick={() => void drain(node)}>take it back</button>}
            {node.actions.map((action) => <Sure key={action} action={action} meaning="Its jobs save a checkpoint and continue on other nodes. It gets no more work." run={() => void drain(node)} />)}
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
        return (
          <li key={gpu.uuid} title={gpu.uuid}>
            <span>{gpu.name}</span> <span>{percent === undefined ? "idle" : `${formatNumber(percent, 3)} %`} · {taken ? `${formatBytes(taken * 1e6)} of ` : ""}{formatBytes(gpu.memory_mb * 1e6)}</span>
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

/** A button that says what it does before it does it. */
function Sure({ action, meaning, run }: { action: string; meaning: string; run: () => void }) {
  const [isAsking, setAsking] = useState(false);
  if (!isAsking) return <button type="button" onClick={() => setAsking(true)}>{action}</button>;
  return (
    <span class="confirm" role="alertdialog" aria-label={`Confirm ${action}`}>
      {meaning} <button type="button" class="danger" onClick={() => (setAsking(false), run())}>Yes, {action}</button> <button type="button" onClick={() => setAsking(false)}>No</button>
    </span>
  );
}

const SHOWN_WAITING = 100;

function Queue() {
  const [answer, setAnswer] = useState<{ data: Queued[]; waiting: { yours: number; others: number } } | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    const load = () => request<NonNullable<typeof answer>>(`/queue?limit=${SHOWN_WAITING}`).then((found) => (setAnswer(found), setProblem(null))).catch((error) => setProblem(explain(error)));
    void load();
    const timer = setInterval(() => document.hidden || void load(), 3000);
    return () => clearInterval(timer);
  }, []);
  const rows = answer?.data;
  const { yours = 0, others = 0 } = answer?.waiting ?? {};
  return (
    <section aria-label="Queue">
      <h2>Queue</h2>
      {problem && <p class="empty" role="alert">{problem}</p>}
      {rows?.length === 0 && others === 0 && <p class="empty">No job waits.</p>}
      {(yours > SHOWN_WAITING || others > 0) && <p class="facts">{yours.toLocaleString("en-US")} wait here{others > 0 && `, ${others.toLocaleString("en-US")} in other projects`}{yours > SHOWN_WAITING && `; the first ${SHOWN_WAITING} are shown`}.</p>}
      {rows !== undefined && rows.length > 0 && (
        <div class="wide" tabIndex={0}><table class="plain">
          <thead><tr><th scope="col" class="number" title="Of its pool">Order</th><th scope="col">Pool</th><th scope="col">Job</th><th scope="col" class="number">Priority</th><th scope="col">Needs</th><th scope="col">Waits for</th><th scope="col" class="number">Waited</th></tr></thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.job}>
                <td class="number">{row.place ?? "later"}</td>
                <td>{row.pool}</td>
                <td><a href={href(`jobs/${row.job}`)}>{row.name ?? row.job.slice(-8)}</a></td>
                <td class="number">{row.priority}</td>
                <td>{row.needs}</td>
                <td>{row.starts_after ? `not before ${new Date(row.starts_after).toLocaleTimeString()}: ` : ""}{row.message ?? row.reason}</td>
                <td class="number">{formatDuration(row.waited_s)}</td>
              </tr>
            ))}
          </tbody>
        </table></div>
      )}
    </section>
  );
}

function Keys() {
  const { rows, problem, reload } = usePolled<Key>("/keys", 30);
  const [secret, setSecret] = useState<string | null>(null);
  // A key without the scope `admin` may not see keys: this part is then left out.
  if (problem || rows === null) return null;
  const make = (event: Event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const body = { name: String(form.get("name")), project: String(form.get("project") || "default"), scopes: form.getAll("scope").map(String) };
    void attempt(async () => setSecret((await request<{ key: string }>("/keys", { method: "POST", body })).key)).then(reload);
  };
  return (
    <section aria-label="Keys">
      <h2>Keys</h2>
      {rows.length === 0 ? <p class="empty">No key has been made.</p> : (
        <div class="wide" tabIndex={0}><table class="plain">
          <thead><tr><th scope="col">Name</th><th scope="col">Begins with</th><th scope="col">Project</th><th scope="col">Scopes</th><th scope="col">Last used</th><th scope="col">Actions</th></tr></thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.id}>
                <td>{row.name}</td><td><code>{row.prefix}</code></td><td>{row.project}</td><td>{row.scopes.join(", ")}</td>
                <td>{row.last_used_at ? formatAge(row.last_used_at, Date.now()) : "never"}</td>
                <td><Sure action="delete" meaning="Whoever uses this key is refused from now on." run={() => void attempt(() => request(`/keys/${row.id}`, { method: "DELETE" }), `key ${row.name} is deleted`).then(reload)} /></td>
              </tr>
            ))}
          </tbody>
        </table></div>
      )}
      {secret && <div role="status"><p class="good">The new key, shown once:</p><Copy text={secret} what="the key" /></div>}
      <form class="toolbar" onSubmit={make} style={{ marginTop: "10px" }}>
        <label>Name <input name="name" required /></label>
        <label>Project <input name="project" placeholder="default" class="short" /></label>
        {["read", "submit", "code", "admin"].map((scope) => <label class="toggle" key={scope}><input type="checkbox" name="scope" value={scope} checked={scope === "read" || scope === "submit"} /> {scope}</label>)}
        <button>Make a key</button>
      </form>
    </section>
  );
}

function Webhooks() {
  const { rows, problem, reload } = usePolled<Webhook>("/webhooks", 30);
  const [secret, setSecret] = useState<string | null>(null);
  if (problem || rows === null) return null;
  const make = (event: Event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const list = (name: string) => String(form.get(name)).split(/[,\s]+/).filter(Boolean);
    const body = { url: String(form.get("url")), ...(list("states").length ? { states: list("states") } : {}), ...(list("tags").length ? { tags: list("tags") } : {}) };
    void attempt(async () => setSecret((await request<{ secret: string }>("/webhooks", { method: "POST", body })).secret)).then(reload);
  };
  return (
    <section aria-label="Webhooks">
      <h2>Webhooks</h2>
      {rows.length === 0 ? <p class="empty">No webhook. Every change of state of this project's jobs is sent to the addresses that you add here.</p> : (
        <div class="wide" tabIndex={0}><table class="plain">
          <thead><tr><th scope="col">Address</th><th scope="col">States</th><th scope="col">Tags</th><th scope="col">Works</th><th scope="col">Actions</th></tr></thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.id}>
                <td><code>{row.url}</code></td><td>{row.states?.join(", ") ?? "all"}</td><td>{row.tags?.join(", ") ?? "all"}</td>
                <td>{!row.enabled ? `off: ${row.disabled_why}` : row.failing_since ? `fails for ${formatAge(row.failing_since, Date.now()).replace(" ago", "")}` : "yes"}</td>
                <td class="row-actions">
                  <button type="button" onClick={() => void attempt(() => request(`/webhooks/${row.id}/test`, { method: "POST" }), "a test delivery is under way").then(reload)}>test</button>
                  <Sure action="delete" meaning="Nothing is sent to this address any more." run={() => void attempt(() => request(`/webhooks/${row.id}`, { method: "DELETE" }), "deleted").then(reload)} />
                </td>
              </tr>
            ))}
          </tbody>
        </table></div>
      )}
      {secret && <div role="status"><p class="good">Deliveries are signed with this secret, shown once:</p><Copy text={secret} what="the secret" /></div>}
      <form class="toolbar" onSubmit={make} style={{ marginTop: "10px" }}>
        <label>Address <input name="url" type="url" required placeholder="the URL that gets a POST" /></label>
        <label>States <input name="states" placeholder="all, or succeeded, failed" /></label>
        <label>Tags <input name="tags" placeholder="all" class="short" /></label>
        <button>Add a webhook</button>
      </form>
    </section>
  );
}
