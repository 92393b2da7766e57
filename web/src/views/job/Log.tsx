/** The lines that a job printed, with a search, by rank, followed live. */

import { useEffect, useState } from "preact/hooks";
import { explain, request } from "../../api/client";
import type { Job } from "../../api/types";
import { linesVersion, liveEvents } from "../../model/curves";
import { param, setParams } from "../../model/route";
import { Missing } from "./list";

interface LogLine {
  no: number;
  at: string;
  rank: number;
  stream?: string;
  text?: string;
  data?: { stream?: string; text?: string };
}

export function Log({ job }: { job: Job }) {
  const [lines, setLines] = useState<LogLine[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [isFollowing, setFollowing] = useState(true);
  const grep = param("grep");
  const rank = param("rank");
  void linesVersion.value;
  useEffect(() => {
    // A search reads the log from its beginning; without one the newest lines are enough.
    const query = new URLSearchParams({ limit: "1000", after: String(grep ? 0 : Math.max(0, job.last_no - 5000)) });
    if (grep) query.set("grep", grep);
    if (rank) query.set("rank", rank);
    request<{ data: LogLine[] }>(`/jobs/${job.id}/logs?${query}`)
      .then((answer) => (setLines(answer.data), setProblem(null)))
      .catch((error) => setProblem(explain(error)));
  }, [job.id, grep, rank]);
  const known = lines?.at(-1)?.no ?? 0;
  const live = liveEvents(job.id)
    .filter((event) => event.kind === "line" && event.no > known && (!rank || String(event.rank) === rank))
    .map((event) => ({ no: event.no, at: event.at, rank: event.rank, text: String(event.data.text ?? "") }))
    .filter((line) => !grep || line.text.includes(grep));
  const shown: LogLine[] = [...(lines ?? []), ...live].slice(-2000);
  return (
    <section>
      <div class="toolbar">
        <input type="search" placeholder="Search in the log" aria-label="Search in the log" value={grep}
          onChange={(event) => setParams({ grep: event.currentTarget.value })} />
        <label>Rank <input class="short" inputMode="numeric" value={rank} onChange={(event) => setParams({ rank: event.currentTarget.value })} /></label>
        <label class="toggle"><input type="checkbox" checked={isFollowing} onChange={() => setFollowing(!isFollowing)} /> Follow</label>
      </div>
      {shown.length === 0 ? <Missing rows={lines} problem={problem} text={job.external ? "A run elsewhere sends no printed lines." : grep || rank ? "No line matches." : "Nothing printed yet."} /> : (
        <pre class="log" tabIndex={0} ref={(element) => { if (element && isFollowing) element.scrollTop = element.scrollHeight; }}>
          {shown.map((line) => {
            const text = line.text ?? line.data?.text ?? "";
            const stream = line.stream ?? line.data?.stream;
            return <div key={line.no} class={stream === "stderr" ? "stderr" : ""}><small>{line.rank}</small> {text}</div>;
          })}
        </pre>
      )}
    </section>
  );
}
