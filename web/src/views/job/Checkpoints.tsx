/** The checkpoints of a job, and what can be done with each. */

import { download, request } from "../../api/client";
import type { Job } from "../../api/types";
import { formatAge, formatBytes, formatNumber } from "../../lib/format";
import { type Checkpoint, checkpointOffers, newerThan } from "../../lib/offers";
import { partsOf } from "../../model/details";
import { act, attempt, isFinal, readOnly } from "../../model/jobs";
import { href } from "../../model/route";
import { useOnce } from "../../ui/once";
import { Sure } from "../../ui/Sure";
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
  const [isBusy, once] = useOnce();
  const { rows, problem, reload } = useList<Checkpoint>(job, "checkpoints", `${job.version} ${job.progress?.step}`);
  if (!rows?.length) return <Missing rows={rows} problem={problem} text={noCheckpoint(job)} />;
  const resumeFrom = (row: Checkpoint) => void once(() => act(job, "resume", newerThan(row, rows).length ? { checkpoint: row.id } : undefined).then(reload));
  const change = (work: () => Promise<unknown>, done: string) => void once(() => attempt(work, done).then(reload));
  return (
    <div class="wide" tabIndex={0}><table class="plain stack">
      <thead><tr><th class="number">Step</th><th class="number">Attempt</th><th>Status</th><th class="number">Size</th><th class="number">Loss</th><th>Saved</th><th>Actions</th></tr></thead>
      <tbody>
        {rows.map((row) => {
          const path = `/jobs/${job.id}/checkpoints/${row.id}`;
          const whyNot = checkpointOffers(job, row, rows, partsOf(job.id), readOnly.value);
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
                {job.actions.includes("resume") && (newerThan(row, rows).length > 0 ? (
                  <Sure action={`resume from step ${row.step}`} label="resume from" disabled={whyNot.resume !== null} title={whyNot.resume ?? RESUME_FROM} run={() => resumeFrom(row)}>
                    Continues from step {row.step}, as if the job had never got further. Deletes the newer checkpoints, of step {newerThan(row, rows).map(({ step }) => step).reverse().join(", ")}. A fork keeps them.
                  </Sure>
                ) : <button type="button" disabled={whyNot.resume !== null} title={whyNot.resume ?? RESUME_FROM} onClick={() => resumeFrom(row)}>resume from</button>)}
                <LinkIf text="fork from" to={href("submit", { fork: job.id, checkpoint: row.id })} meaning={MEANING.fork!} offer={{ why: whyNot.fork }} />
                <LinkIf text="try" to={href("try", { a: `${job.id}:${row.id}` })} meaning={MEANING.try!} offer={{ why: whyNot.try }} />
                <Sure action="delete" name={`delete of step ${row.step}`} disabled={whyNot.delete !== null} title={whyNot.delete ?? "Frees its space on the disk"} run={() => change(() => request(path, { method: "DELETE" }), "checkpoint deleted")} />
              </td>
            </tr>
          );
        })}
      </tbody>
    </table></div>
  );
}
