/** The attempts of a job as a timeline, each with the reason of its end. */

import type { Job } from "../../api/types";
import { formatDuration, sentence } from "../../lib/format";
import { Missing, useList } from "./list";

interface Attempt {
  attempt: number;
  ending: string | null;
  reason: string | null;
  placed_at: string;
  running_at: string | null;
  ended_at: string | null;
  running_s: number;
  error: { message: string } | null;
  nodes: { name: string }[];
}

export function Attempts({ job }: { job: Job }) {
  const { rows, problem } = useList<Attempt>(job, "attempts", job.version);
  if (!rows?.length) return <Missing rows={rows} problem={problem} text="No attempt yet: the job has not been placed on a node." />;
  const start = Math.min(...rows.map((row) => Date.parse(row.placed_at)));
  const end = Math.max(...rows.map((row) => (row.ended_at ? Date.parse(row.ended_at) : Date.now())), start + 1);
  const percent = (at: number) => `${((at - start) / (end - start)) * 100}%`;
  return (
    <ol class="timeline">
      {rows.map((row) => {
        const from = Date.parse(row.placed_at);
        const to = row.ended_at ? Date.parse(row.ended_at) : Date.now();
        return (
          <li key={row.attempt}>
            <b>Attempt {row.attempt}</b> {row.nodes.length ? `on ${row.nodes.map((node) => node.name).join(", ")}` : "elsewhere"}:{" "}
            {row.ending ? `${sentence(row.ending)}${row.reason ? ` (${sentence(row.reason)})` : ""}` : "running"}, {formatDuration((to - from) / 1000)}
            <div class="bar"><i class={row.ending ?? "open"} style={{ marginLeft: percent(from), width: percent(start + Math.max(to - from, (end - start) / 200)) }} /></div>
            {row.error && <p class="error">{row.error.message}</p>}
          </li>
        );
      })}
    </ol>
  );
}
