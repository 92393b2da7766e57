/** What can be done with several jobs at once. */

import { useState } from "preact/hooks";
import type { Job } from "../../api/types";
import { actOnMany, attempt, changeTags, jobs, readOnly, refreshNow } from "../../model/jobs";
import { href } from "../../model/route";
import { select, selectedIds } from "../../model/selection";
import { focused, useOpener } from "../../ui/keyboard";
import { type Once, useOnce } from "../../ui/once";
import { Sure } from "../../ui/Sure";

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
      {readOnly.value ? <small>{readOnly.value}</small> : (
        <>
          {BULK.map((action) => <BulkButton key={action} action={action} chosen={chosen} isBusy={isBusy} once={once} />)}
          <TagButton chosen={chosen} />
        </>
      )}
      <button type="button" class="quiet" onClick={() => select([])}>Clear</button>
    </div>
  );
}

function BulkButton({ action, chosen, isBusy, once }: { action: (typeof BULK)[number]; chosen: Job[]; isBusy: boolean; once: Once }) {
  const able = chosen.filter((job) => job.actions.includes(action));
  if (able.length === 0) return null;
  const label = `${action} ${able.length}`;
  const run = () => void once(async () => {
    await actOnMany(able, action);
    // A deleted job cannot be selected, and the address would ask for it again with each visit.
    if (action === "delete") select(selectedIds().filter((id) => jobs.value.has(id)));
    await refreshNow();
  });
  if (action === "cancel" || action === "delete") {
    return <Sure action={action} label={label} isBusy={isBusy} run={run}>{label} {able.length === 1 ? "job" : "jobs"}{action === "delete" && " with events, checkpoints and outputs, for ever"}?</Sure>;
  }
  return <button type="button" aria-disabled={isBusy} onClick={run}>{label}</button>;
}

/** The button stays in the page while its form is shown, so that it gets the focus back. */
function TagButton({ chosen }: { chosen: Job[] }) {
  const [isOpen, setOpen] = useState(false);
  const opener = useOpener(isOpen);
  return (
    <>
      <button type="button" ref={opener} hidden={isOpen} onClick={() => setOpen(true)}>tag…</button>
      {isOpen && <TagForm chosen={chosen} close={() => setOpen(false)} />}
    </>
  );
}

function TagForm({ chosen, close }: { chosen: Job[]; close: () => void }) {
  const [tag, setTag] = useState("");
  const apply = (event: SubmitEvent) => {
    event.preventDefault();
    const name = tag.trim();
    const isRemoval = event.submitter?.getAttribute("value") === "remove";
    const meant = chosen.filter((job) => job.tags.includes(name) === isRemoval);
    close();
    if (!name) return;
    void attempt(async () => {
      for (const job of meant) {
        await changeTags(job, (tags) => [...tags.filter((other) => other !== name), ...(isRemoval ? [] : [name])]);
      }
    }, `${meant.length} ${meant.length === 1 ? "job has" : "jobs have"} “${name}” ${isRemoval ? "no longer" : "now"}`);
  };
  const known = [...new Set(chosen.flatMap((job) => job.tags))].sort();
  const onKey = (event: KeyboardEvent) => event.key === "Escape" && (event.stopPropagation(), close());
  return (
    <form class="confirm" onSubmit={apply} onKeyDown={onKey}>
      <input class="short" aria-label="Tag" ref={focused} list="tags-of-chosen" value={tag} onInput={(event) => setTag(event.currentTarget.value)} />
      <datalist id="tags-of-chosen">{known.map((name) => <option key={name} value={name} />)}</datalist>
      <button>Add tag</button>
      {known.length > 0 && <button value="remove">Remove tag</button>}
    </form>
  );
}
