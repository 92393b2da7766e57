/** The events of a job, newest first. */

import type { Job, JobEvent } from "../../api/types";
import { formatAge, formatNumber, sentence } from "../../lib/format";
import { linesVersion, liveEvents } from "../../model/curves";
import { Missing, useList } from "./list";

export function Events({ job }: { job: Job }) {
  const { rows, problem } = useList<JobEvent>(job, "events?kinds=state,note,checkpoint,do,gap,done&limit=500", null);
  void linesVersion.value;
  const known = new Set(rows?.map((event) => event.no));
  const live = liveEvents(job.id).filter((event) => !["line", "progress"].includes(event.kind) && !known.has(event.no));
  const all = [...(rows ?? []), ...live].reverse();
  if (!all.length) return <Missing rows={rows} problem={problem} text="No event yet." />;
  return (
    <div class="wide" tabIndex={0}><table class="plain">
      <thead><tr><th class="number">No.</th><th>When</th><th class="number">Step</th><th>Kind</th><th>What</th></tr></thead>
      <tbody>
        {all.map((event) => (
          <tr key={event.no}>
            <td class="number">{event.no}</td>
            <td class="when" title={event.at}>{formatAge(event.at, Date.now())}</td>
            <td class="number">{event.step ?? ""}</td>
            <td>{event.kind}</td>
            <td>{eventText(event)}</td>
          </tr>
        ))}
      </tbody>
    </table></div>
  );
}

export function eventText({ kind, data }: JobEvent): string {
  const { state, reason, message } = data as Record<string, string | null>;
  if (kind === "state") return [state, reason && sentence(reason), message].filter(Boolean).join(", ");
  if (typeof message === "string") return message;
  return Object.entries(data)
    .filter(([, value]) => value !== null && typeof value !== "object")
    .map(([name, value]) => `${name} ${formatNumber(value)}`)
    .join(", ");
}
