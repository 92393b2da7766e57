/** The lines that a job printed, with a search, by rank, followed live. */

import { useEffect, useState } from "preact/hooks";
import { explain, request } from "../../api/client";
import { reconnections } from "../../api/connection";
import type { Job } from "../../api/types";
import { type Ask, MOST_FOUND, type Printed, type Read, levelOf, linesUntil, linesWith, withLive } from "../../lib/printed";
import { linesVersion, liveLines } from "../../model/curves";
import { attempt } from "../../model/jobs";
import { param, setParams } from "../../model/route";
import { Missing } from "./list";

/** Live lines are joined with what was read when so many have arrived, before the oldest of them are dropped. */
const JOINED_AT = 500;
const MOST_SHOWN = 10_000;

export function Log({ job }: { job: Job }) {
  const [read, setRead] = useState<Read | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [isFollowing, setFollowing] = useState(true);
  const grep = param("grep");
  const rank = param("rank");
  const ask: Ask = (query) => request(`/jobs/${job.id}/logs?${query}`);
  void linesVersion.value;
  useEffect(() => {
    let isShown = true;
    // A search reads the log from its beginning; without one the newest lines are enough.
    const reading: Promise<Read> = grep
      ? linesWith(ask, grep, rank).then((found) => ({ ...found, from: 0 }))
      : linesUntil(ask, job.last_no, rank).then((found) => ({ ...found, isWhole: true }));
    reading
      .then((found) => isShown && (setRead(found), setProblem(null)))
      .catch((error) => isShown && (setRead(null), setProblem(explain(error))));
    return () => void (isShown = false);
  }, [job.id, grep, rank, reconnections.value]);
  const earlier = () => attempt(async () => {
    const until = read!.from;
    const { lines, from } = await linesUntil(ask, until, rank);
    setFollowing(false);
    // Another rank, another search or the end of an outage may have replaced what was read.
    setRead((now) => (now?.from === until && rank === param("rank") ? { ...now, lines: [...lines, ...now.lines], from } : now));
  });
  const last = read?.lines.at(-1)?.no ?? 0;
  const live = liveLines(job.id)
    .filter((event) => event.no > last && (!rank || String(event.rank) === rank))
    .map((event): Printed => ({ no: event.no, at: event.at, rank: event.rank, stream: String(event.data.stream ?? ""), text: String(event.data.text ?? "") }))
    .filter((line) => !grep || line.text.includes(grep));
  useEffect(() => {
    if (read?.isWhole && live.length >= JOINED_AT) setRead(withLive(read, live, isFollowing ? MOST_SHOWN : Infinity));
  }, [live.length]);
  const shown = [...(read?.lines ?? []), ...(read?.isWhole ? live : [])];
  const nothing = job.external ? "A run elsewhere sends no printed lines." : grep || rank ? "No line matches." : "Nothing printed yet.";
  return (
    <section>
      <div class="toolbar">
        <input type="search" placeholder="Search in the log" aria-label="Search in the log" value={grep}
          onChange={(event) => setParams({ grep: event.currentTarget.value })} />
        <label>Rank <input class="short" inputMode="numeric" placeholder="all" value={rank} onChange={(event) => setParams({ rank: event.currentTarget.value })} /></label>
        <label class="toggle"><input type="checkbox" checked={isFollowing} onChange={() => setFollowing(!isFollowing)} /> Follow</label>
        {read && read.from > 0 && <button type="button" onClick={() => void earlier()}>Earlier lines</button>}
        {read && !read.isWhole && <span class="count">The first {MOST_FOUND.toLocaleString("en-US")} matches</span>}
      </div>
      {shown.length === 0 ? <Missing rows={read && read.lines} problem={problem} text={nothing} /> : (
        <pre class="log" tabIndex={0} ref={(element) => { if (element && isFollowing) element.scrollTop = element.scrollHeight; }}>
          {shown.map((line) => <div key={line.no} class={levelOf(line.text)} title={`${line.at} ${line.stream}`}><small>{line.rank}</small> {line.text}</div>)}
        </pre>
      )}
    </section>
  );
}
