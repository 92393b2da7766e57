/** What can be done with several jobs at once. */

import { useState } from "preact/hooks";
import { request } from "../../api/client";
import type { Job } from "../../api/types";
import { actOnMany, attempt, keep, refreshNow } from "../../model/jobs";
import { href } from "../../model/route";
import { select } from "../../model/selection";
import { Confirm } from "../../ui/Confirm";
import { focused } from "../../ui/keyboard";
import { type Once, useOnce } from "../../ui/once";

const BULK = ["pause", "resume", "cancel", "delete"] as const;

/** What can be done with the jobs whose curves are shown. Always there, so that the page does not jump. */
export function Selection({ chosen, rows }: { chosen: Job[]; rows: Job[] }) {
  const [isBusy, once] = useOnce();
  const hidden = chosen.filter((job) => !rows.includes(job)).length;
  if (chosen.length === 0) return <div class="bulk">Choose jobs by their circle to see their curves, to compare them, or to steer several at once.</div>;
  return (
    <div class="bulk" role="group" aria-label="Selected jobs">
      <span>{chosen.length} selected{hidden > 0 && `, ${hidden} of them hidden by the filters`}</span>
      {chosen.length > 1 && <a class="button" href={href("compare", { sel: chosen.map((job) => job.id).join() })}>Compare</a>}
      {BULK.map((action) => <BulkButton key={action} action={action} chosen={chosen} isBusy={isBusy} once={once} />)}
      <TagButton chosen={chosen} />
      <button type="button" class="quiet" onClick={() => select([])}>Clear</button>
    </div>
  );
}

function BulkButton({ action, chosen, isBusy, once }: { action: (typeof BULK)[number]; chosen: Job[]; isBusy: boolean; once: Once }) {
  const able = chosen.filter((job) => job.actions.includes(action));
  const [isAsking, setAsking] = useState(false);
  if (able.length === 0) return null;
  const isSerious = action === "cancel" || action === "delete";
  const run = () => {
    setAsking(false);
    void once(() => actOnMany(able, action).then(refreshNow));
  };
  if (isAsking) {
    return <Confirm name={action} yes={`Yes, ${action}`} isBusy={isBusy} onYes={run} onNo={() => setAsking(false)}>{action} {able.length} {able.length === 1 ? "job" : "jobs"}?</Confirm>;
  }
  return <button type="button" aria-disabled={isBusy} onClick={() => (isSerious ? setAsking(true) : run())}>{action} {able.length}</button>;
}

function TagButton({ chosen }: { chosen: Job[] }) {
  const [tag, setTag] = useState<string | null>(null);
  if (tag === null) return <button type="button" onClick={() => setTag("")}>tag…</button>;
  const apply = (event: SubmitEvent) => {
    event.preventDefault();
    const name = tag.trim();
    const isRemoval = event.submitter?.getAttribute("value") === "remove";
    const meant = chosen.filter((job) => job.tags.includes(name) === isRemoval);
    setTag(null);
    if (!name) return;
    void attempt(async () => {
      for (const job of meant) {
        const tags = isRemoval ? job.tags.filter((other) => other !== name) : [...job.tags, name];
        keep([await request<Job>(`/jobs/${job.id}`, { method: "PATCH", body: { tags } })]);
      }
    }, `${meant.length} ${meant.length === 1 ? "job has" : "jobs have"} “${name}” ${isRemoval ? "no longer" : "now"}`);
  };
  const known = [...new Set(chosen.flatMap((job) => job.tags))].sort();
  return (
    <form class="confirm" onSubmit={apply}>
      <input class="short" aria-label="Tag" ref={focused} list="tags-of-chosen" value={tag} onInput={(event) => setTag(event.currentTarget.value)} />
      <datalist id="tags-of-chosen">{known.map((name) => <option key={name} value={name} />)}</datalist>
      <button>Add tag</button>
      {known.length > 0 && <button value="remove">Remove tag</button>}
    </form>
  );
}
