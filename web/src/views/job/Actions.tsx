/** What can be done with a job now, and what each verb does. */

import { useState } from "preact/hooks";
import { request, requestPages } from "../../api/client";
import type { Job, JobEvent } from "../../api/types";
import { orderText, rateBefore } from "../../lib/orders";
import { type Checkpoint, ELSEWHERE, LIVE, offersOf } from "../../lib/offers";
import { linesVersion, liveEvents } from "../../model/curves";
import { detailsVersion, partsOf } from "../../model/details";
import { act, attempt, jobs, readOnly } from "../../model/jobs";
import { href, replace, tableHref } from "../../model/route";
import { Confirm } from "../../ui/Confirm";
import { focused, useOpener } from "../../ui/keyboard";
import { Menu } from "../../ui/Menu";
import { type Once, useOnce } from "../../ui/once";
import { LinkIf } from "./LinkIf";
import { useList } from "./list";

export const MEANING: Record<string, string> = {
  pause: "Saves a checkpoint, then frees the node. Resume continues at the next step.",
  resume: "Continues from the newest checkpoint.",
  cancel: "Saves a checkpoint, then stops. A cancelled job can be resumed.",
  delete: "Deletes the job with its events, checkpoints and outputs. This cannot be undone.",
  fork: "Starts a new job from one of this job's checkpoints, with a changed spec.",
  copy: "Opens the form with this job's spec, for a new job that starts where this one did.",
  "save now": "Saves a checkpoint after the present step.",
  "evaluate now": "Runs an evaluation after the present step.",
  try: "Asks a checkpoint of this job questions. It needs a free slot.",
  "learning rate": "Changes the learning rate at the next step, and of later attempts. The schedule multiplies it by its factor, as before.",
};

export function Actions({ job }: { job: Job }) {
  const [asking, setAsking] = useState<string | null>(null);
  const [isBusy, once] = useOnce();
  const run = (action: string) => once(async () => {
    setAsking(null);
    await act(job, action);
    if (action === "delete" && !jobs.value.has(job.id)) {
      replace(tableHref());
    }
  });
  void detailsVersion.value;
  const saved = useList<Checkpoint>(job, "checkpoints", `${job.version} ${job.progress?.step}`).rows;
  const offers = offersOf(job, partsOf(job.id), saved, readOnly.value).filter(({ name }) => name in MEANING);
  const ofName = (name: string) => offers.find((offer) => offer.name === name);
  const buttons = (isLast: boolean) => offers.filter(({ name }) => !["fork", "copy", "try", ...LIVE].includes(name) && isLast === ["cancel", "delete"].includes(name)).map(({ name, why }) => (
    <button key={name} type="button" disabled={why !== null} title={why ?? MEANING[name]} aria-disabled={isBusy} onClick={() => (isLast ? setAsking(name) : void run(name))}>{name}</button>
  ));
  return (
    <div class="actions">
      {buttons(false)}
      <LinkIf text="fork…" to={href("submit", { fork: job.id })} meaning={MEANING.fork!} offer={ofName("fork")} />
      <LinkIf text="copy…" to={href("submit", { copy: job.id })} meaning={MEANING.copy!} offer={ofName("copy")} />
      <LinkIf text="try…" to={href("try", { a: job.id })} meaning={MEANING.try!} offer={ofName("try")} />
      {ofName("save now") && <Live job={job} whyNot={(name) => ofName(name)?.why ?? null} isBusy={isBusy} once={once} />}
      {buttons(true)}
      <Menu label="?" name="What these do">
        <dl class="meanings">{offers.map(({ name, why }) => <><dt>{name}</dt><dd>{MEANING[name]}{why && <em> Not now: {why}</em>}</dd></>)}</dl>
      </Menu>
      <Answer job={job} />
      {job.external && <small>{ELSEWHERE}</small>}
      {asking && (
        <Confirm key={asking} name={asking} yes={`Yes, ${asking}`} isBusy={isBusy} onYes={() => void run(asking)} onNo={() => setAsking(null)}>{MEANING[asking]}</Confirm>
      )}
    </div>
  );
}

/** The newest order to the running loop, and what came of it. */
function Answer({ job }: { job: Job }) {
  void linesVersion.value;
  const order = liveEvents(job.id).findLast((event) => event.kind === "do");
  return <p class="answered" role="status">{order && orderText(order)}</p>;
}

/** Orders that act on the running loop at its next step. */
function Live({ job, whyNot, isBusy, once }: { job: Job; whyNot: (name: string) => string | null; isBusy: boolean; once: Once }) {
  const [rate, setRate] = useState<string | null>(null);
  const opener = useOpener(rate !== null);
  const send = (body: object) => once(() => attempt(() => request(`/jobs/${job.id}/do`, { method: "POST", body })));
  const ask = async () => {
    const orders = await attempt(() => requestPages<JobEvent>(`/jobs/${job.id}/events?kinds=do`, 10));
    setRate(rateBefore(orders ?? [], partsOf(job.id)));
  };
  return (
    <>
      <button type="button" disabled={whyNot("save now") !== null} aria-disabled={isBusy} title={whyNot("save now") ?? MEANING["save now"]} onClick={() => void send({ save: true })}>save now</button>
      <button type="button" disabled={whyNot("evaluate now") !== null} aria-disabled={isBusy} title={whyNot("evaluate now") ?? MEANING["evaluate now"]} onClick={() => void send({ evaluate: true })}>evaluate now</button>
      <button type="button" ref={opener} hidden={rate !== null} disabled={whyNot("learning rate") !== null} title={whyNot("learning rate") ?? MEANING["learning rate"]} onClick={() => void ask()}>learning rate…</button>
      {rate !== null && <RateForm before={rate} set={(value) => (setRate(null), void send({ set: { learning_rate: value } }))} close={() => setRate(null)} />}
    </>
  );
}

function RateForm({ before, set, close }: { before: string; set: (value: number) => void; close: () => void }) {
  const [rate, setRate] = useState(before);
  const [problem, setProblem] = useState<string | null>(null);
  const apply = (event: Event) => {
    event.preventDefault();
    const value = Number(rate);
    if (!rate.trim() || !(value >= 0 && value < Infinity)) return setProblem(`“${rate}” is not a learning rate. Write a number that is not negative, such as 1e-5.`);
    set(value);
  };
  return (
    <form class="confirm" onSubmit={apply}>
      <label>Learning rate <input class="short" ref={focused} inputMode="decimal" placeholder="1e-5" aria-invalid={problem !== null} value={rate} onInput={(event) => setRate(event.currentTarget.value)} /></label>
      <button>Set</button>
      <button type="button" onClick={close}>Close</button>
      <small>{problem ? <span class="error" role="alert">{problem}</span> : "The schedule multiplies this rate by its factor."}</small>
    </form>
  );
}
