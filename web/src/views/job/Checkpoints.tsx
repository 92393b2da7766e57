/** The checkpoints of a job, and what can be done with each. */

import { useState } from "preact/hooks";
import { download, request } from "../../api/client";
import type { Job } from "../../api/types";
import { formatAge, formatBytes, formatNumber } from "../../lib/format";
import { type Checkpoint, checkpointOffers, newerThan } from "../../lib/offers";
import { partsOf } from "../../model/details";
import { act, attempt, isFinal } from "../../model/jobs";
import { href } from "../../model/route";
import { Confirm } from "../../ui/Confirm";
import { useOnce } from "../../ui/once";
import { MEANING } from "./Actions";
import { LinkIf } from "./LinkIf";
import { Missing, useList } from "./list";

function noCheckpoint(job: Job): string {
  if (job.external) return "A run elsewhere keeps its checkpoints there.";
  if (isFinal(job)) return "This job saved no checkpoint. `save_steps` in the spec says how often one is saved.";
  return "No checkpoint yet. `save_steps` says how often one is saved; “save now” saves one at once.";
}

const RESUME_FROM = "Continues the job from this checkpoint, and deletes its newer ones.";

export function Checkpoints({ job }: { job: Job }) {
  const [asking, setAsking] = useState<{ id: string; verb: "delete" | "resume" } | null>(null);
  const [isBusy, once] = useOnce();
  const { rows, problem, reload } = useList<Checkpoint>(job, "checkpoints", `${job.version} ${job.progress?.step}`);
  if (!rows?.length) return <Missing rows={rows} problem={problem} text={noCheckpoint(job)} />;
  const isAsked = (row: Checkpoint, verb: string) => asking?.id === row.id && asking.verb === verb;
  const resumeFrom = (row: Checkpoint) => {
    setAsking(null);
    void once(() => act(job, "resume", newerThan(row, rows).length ? { checkpoint: row.id } : undefined).then(reload));
  };
  const change = (work: () => Promise<unknown>, done: string) => void once(() => attempt(work, done).then(reload));
  return (
    <div class="wide" tabIndex={0}><table class="plain stack">
      <thead><tr><th class="number">Step</th><th class="number">Attempt</th><th>Status</th><th class="number">Size</th><th class="number">Loss</th><th>Saved</th><th>Actions</th></tr></thead>
      <tbody>
        {rows.map((row) => {
          const path = `/jobs/${job.id}/checkpoints/${row.id}`;
          const whyNot = checkpointOffers(job, row, rows, partsOf(job.id));
          return (
            <tr key={row.id}>
              <td class="number" data-title="step">{formatNumber(row.step)}</td>
              <td class="number" data-title="attempt">{row.attempt}</td>
              <td>{row.status}{row.is_best && <b> best</b>}{row.pinned && <b> pinned</b>}</td>
              <td class="number">{formatBytes(row.bytes)}</td>
              <td class="number" data-title="loss">{formatNumber(row.metrics.eval_loss ?? row.metrics.loss)}</td>
              <td title={row.created_at}>{formatAge(row.created_at, Date.now())}</td>
              <td class="row-actions">
                <button type="button" disabled={whyNot.download !== null} title={whyNot.download ?? "The whole folder, as a tar"} onClick={() => void attempt(() => download(`${path}/archive`, `${row.id}.tar`))}>download</button>
                <button type="button" disabled={whyNot.pin !== null} aria-disabled={isBusy} title={whyNot.pin ?? "Rotation does not remove a pinned checkpoint"} onClick={() => change(() => request(path, { method: "PATCH", body: { pinned: !row.pinned } }), row.pinned ? "unpinned" : "pinned: it is not removed by rotation")}>{row.pinned ? "unpin" : "pin"}</button>
                {isAsked(row, "resume") ? (
                  <Confirm name={`resume from step ${row.step}`} yes={`Yes, resume from step ${row.step}`} onYes={() => resumeFrom(row)} onNo={() => setAsking(null)}>
                    Continues from step {row.step}, as if the job had never got further. Deletes the newer checkpoints, of step {newerThan(row, rows).map(({ step }) => step).reverse().join(", ")}. A fork keeps them.
                  </Confirm>
                ) : job.actions.includes("resume") && <button type="button" disabled={whyNot.resume !== null} title={whyNot.resume ?? RESUME_FROM} onClick={() => (newerThan(row, rows).length ? setAsking({ id: row.id, verb: "resume" }) : resumeFrom(row))}>resume from</button>}
                <LinkIf text="fork from" to={href("submit", { fork: job.id, checkpoint: row.id })} meaning={MEANING.fork!} offer={{ why: whyNot.fork }} />
                <LinkIf text="try" to={href("try", { a: `${job.id}:${row.id}` })} meaning={MEANING.try!} offer={{ why: whyNot.try }} />
                {isAsked(row, "delete") ? (
                  <Confirm name={`delete of step ${row.step}`} yes="Yes, delete" onYes={() => change(() => request(path, { method: "DELETE" }), "checkpoint deleted")} onNo={() => setAsking(null)} />
                ) : <button type="button" disabled={whyNot.delete !== null} title={whyNot.delete ?? "Frees its space on the disk"} onClick={() => setAsking({ id: row.id, verb: "delete" })}>delete</button>}
              </td>
            </tr>
          );
        })}
      </tbody>
    </table></div>
  );
}
