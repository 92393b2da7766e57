/** The events of a job, newest first. */

import { useEffect, useState } from "preact/hooks";
import { explain, requestPages } from "../../api/client";
import { reconnections } from "../../api/connection";
import type { Job, JobEvent } from "../../api/types";
import { eventText } from "../../lib/events";
import { formatAge, formatNumber } from "../../lib/format";
import { linesVersion, liveEvents } from "../../model/curves";
import { Missing } from "./list";

const KINDS = ["state", "note", "checkpoint", "do", "gap", "done"];
/** A thousand events each. A job has hundreds of them, one with a checkpoint at each step more. */
const MOST_PAGES = 50;
const SHOWN = 500;

export function Events({ job }: { job: Job }) {
  const [rows, setRows] = useState<JobEvent[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [isWhole, setWhole] = useState(false);
  useEffect(() => {
    requestPages<JobEvent>(`/jobs/${job.id}/events?kinds=${KINDS.join()}`, MOST_PAGES)
      .then((found) => (setRows(found), setProblem(null)))
      .catch((error) => setProblem(explain(error)));
  }, [job.id, reconnections.value]);
  void linesVersion.value;
  const known = new Set(rows?.map((event) => event.no));
  const live = liveEvents(job.id).filter((event) => KINDS.includes(event.kind) && !known.has(event.no));
  const all = [...(rows ?? []), ...live].reverse();
  if (!all.length) return <Missing rows={rows} problem={problem} text="No event yet." />;
  const shown = isWhole ? all : all.slice(0, SHOWN);
  return (
    <div class="wide" tabIndex={0}><table class="plain stack">
      <thead><tr><th class="number">No.</th><th>When</th><th class="number">Step</th><th>Kind</th><th>What</th></tr></thead>
      <tbody>
        {shown.map((event) => (
          <tr key={event.no}>
            <td class="number" data-title="no.">{event.no}</td>
            <td class="when" title={event.at}>{formatAge(event.at, Date.now())}</td>
            <td class="number" data-title="step">{event.step ?? ""}</td>
            <td>{event.kind}</td>
            <td class="sentence">{eventText(event)}</td>
          </tr>
        ))}
      </tbody>
    </table>
    {shown.length < all.length && <p class="bulk"><button type="button" onClick={() => setWhole(true)}>Show all {formatNumber(all.length)} events</button></p>}
    </div>
  );
}
