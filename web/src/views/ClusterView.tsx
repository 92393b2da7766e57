/** Nodes, the queue, and for an administrator keys and webhooks. */

import { useEffect, useState } from "preact/hooks";
import { explain, request } from "../api/client";
import { formatAge, formatBytes, formatDuration } from "../lib/format";
import { attempt } from "../model/jobs";
import { href } from "../model/route";

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
  gpus: { uuid?: string; name?: string; memory_bytes?: number; memory?: number }[];
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
  events?: string[];
  state?: string;
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
    attempt(() => request(`/nodes/${node.id}/drain`, { method: "POST", body: { drain: node.actions.includes("drain") } })).then(reload);
  return (
    <section aria-label="Nodes">
      <h2>Nodes</h2>
      {problem && <p class="empty" role="alert">{problem}</p>}
      {rows?.length === 0 && <p class="empty">No node is connected. `python -m worker` starts one; `make up` starts one by itself.</p>}
      <div class="cards">
        {rows?.map((node) => (
          <div class="card" key={node.id}>
            <h3>{node.name} <span class={`state ${node.state}`}>{node.state}</span></h3>
            <meter min={0} max={node.slots} value={node.slots_used} aria-label={`${node.slots_used} of ${node.slots} slots used`} />
            <p>{node.slots_used} of {node.slots} slots used · pool {node.pool} · seen {formatAge(node.seen_at, Date.now())}</p>
            {node.gpus.length > 0 && <p>{node.gpus.map((gpu) => `${gpu.name ?? "GPU"}${gpu.memory_bytes ? ` ${formatBytes(gpu.memory_bytes)}` : ""}`).join(", ")}</p>}
            {[node.message, node.refused, node.exposed].filter(Boolean).map((text) => <p class="warning" key={text}>{text}</p>)}
            {node.jobs.length > 0 && <p>Runs {node.jobs.map((id) => <a key={id} href={href(`jobs/${id}`)}>{id.slice(-8)} </a>)}</p>}
            <p><small>{Object.entries(node.versions).map(([name, version]) => `${name} ${version}`).join(", ")}</small></p>
            {node.actions.map((action) => <button key={action} type="button" onClick={() => void drain(node)} title="A drained node finishes nothing new: its jobs are checkpointed and go elsewhere.">{action}</button>)}
          </div>
        ))}
      </div>
    </section>
  );
}

function Queue() {
  const { rows, problem } = usePolled<Queued>("/queue?limit=100", 3);
  return (
    <section aria-label="Queue">
      <h2>Queue</h2>
      {problem && <p class="empty" role="alert">{problem}</p>}
      {rows?.length === 0 && <p class="empty">No job waits.</p>}
      {rows !== null && rows.length > 0 && (
        <div class="wide" tabIndex={0}><table class="plain">
          <thead><tr><th>Place</th><th>Job</th><th>Needs</th><th>Waits for</th><th>Waited</th></tr></thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.job}>
                <td class="number">{row.place ?? "later"}</td>
                <td><a href={href(`jobs/${row.job}`)}>{row.name ?? row.job.slice(-8)}</a></td>
                <td>{row.needs}</td>
                <td>{row.message ?? row.reason}</td>
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
          <thead><tr><th>Name</th><th>Begins with</th><th>Project</th><th>Scopes</th><th>Last used</th><th>Actions</th></tr></thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.id}>
                <td>{row.name}</td><td><code>{row.prefix}</code></td><td>{row.project}</td><td>{row.scopes.join(", ")}</td>
                <td>{row.last_used_at ? formatAge(row.last_used_at, Date.now()) : "never"}</td>
                <td><button type="button" onClick={() => void attempt(() => request(`/keys/${row.id}`, { method: "DELETE" }), `key ${row.name} is deleted`).then(reload)}>delete</button></td>
              </tr>
            ))}
          </tbody>
        </table></div>
      )}
      {secret && <p class="good" role="status">The new key, shown once: <code>{secret}</code></p>}
      <form class="toolbar" onSubmit={make}>
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
  if (problem || !rows?.length) return null;
  return (
    <section aria-label="Webhooks">
      <h2>Webhooks</h2>
      <ul>
        {rows.map((row) => (
          <li key={row.id}>
            <code>{row.url}</code> {row.events?.join(", ")}{" "}
            <button type="button" onClick={() => void attempt(() => request(`/webhooks/${row.id}/test`, { method: "POST" }), "a test delivery is under way").then(reload)}>test</button>{" "}
            <button type="button" onClick={() => void attempt(() => request(`/webhooks/${row.id}`, { method: "DELETE" }), "deleted").then(reload)}>delete</button>
          </li>
        ))}
      </ul>
    </section>
  );
}
