/** A list below a job's path, and what stands there while it is empty. */

import { useEffect, useRef, useState } from "preact/hooks";
import { explain, request } from "../../api/client";
import { reconnections } from "../../api/connection";
import type { Job } from "../../api/types";

/** Loads a list below the job's path, and loads it again when the job's version or last event moves. */
export function useList<T>(job: Job, path: string, moves: unknown): { rows: T[] | null; problem: string | null; reload: () => void } {
  const [rows, setRows] = useState<T[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [turn, setTurn] = useState(0);
  const asked = useRef(0);
  const answered = useRef(0);
  useEffect(() => {
    const mine = ++asked.current;
    // A job may move again before a busy service has answered. An answer counts unless a newer one was there before it.
    const isNewest = () => mine > answered.current && Boolean((answered.current = mine));
    request<{ data: T[] }>(`/jobs/${job.id}/${path}`)
      .then((answer) => isNewest() && (setRows(answer.data), setProblem(null)))
      .catch((error) => isNewest() && setProblem(explain(error)));
  }, [job.id, path, moves, turn, reconnections.value]);
  return { rows, problem, reload: () => setTurn(turn + 1) };
}

export function Missing({ rows, problem, text }: { rows: unknown[] | null; problem: string | null; text: string }) {
  if (problem) return <p class="empty" role="alert">{problem}</p>;
  if (rows === null) return <p class="empty">Loading…</p>;
  return rows.length === 0 ? <p class="empty">{text}</p> : null;
}
