/** The jobs that wait, in the order in which they start, each with its reason. */

import { useEffect, useState } from "preact/hooks";
import { explain, request } from "../../api/client";
import { formatDuration, formatMoment } from "../../lib/format";
import { href } from "../../model/route";

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

const SHOWN_WAITING = 100;

export function Queue() {
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
      {(yours > SHOWN_WAITING || others > 0) && <p class="facts">{yours === 0 ? "No job waits here" : `${yours.toLocaleString("en-US")} ${yours === 1 ? "waits" : "wait"} here`}{others > 0 && `, ${others.toLocaleString("en-US")} in other projects`}{yours > SHOWN_WAITING && `; the first ${SHOWN_WAITING} are shown`}.</p>}
      {rows !== undefined && rows.length > 0 && (
        <div class="wide" tabIndex={0}><table class="plain stack">
          <thead><tr><th scope="col" class="number" title="Of its pool">Order</th><th scope="col">Pool</th><th scope="col">Job</th><th scope="col" class="number">Priority</th><th scope="col">Needs</th><th scope="col">Waits for</th><th scope="col" class="number">Waited</th></tr></thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.job}>
                <td class="number" data-title="place">{row.place ?? "later"}</td>
                <td data-title="pool">{row.pool}</td>
                <td><a href={href(`jobs/${row.job}`)} title={row.name ?? ""}>{row.name ?? row.job.slice(-8)}</a></td>
                <td class="number" data-title="priority">{row.priority}</td>
                <td data-title="needs">{row.needs}</td>
                <td class="sentence">{row.starts_after ? `not before ${formatMoment(row.starts_after, Date.now())}: ` : ""}{row.message ?? row.reason}</td>
                <td class="number" data-title="waited">{formatDuration(row.waited_s)}</td>
              </tr>
            ))}
          </tbody>
        </table></div>
      )}
    </section>
  );
}
