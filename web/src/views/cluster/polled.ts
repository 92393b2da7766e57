/** A list of the service that is asked for again while the page shows it. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, explain, request } from "../../api/client";

export function usePolled<T>(path: string, seconds: number): { rows: T[] | null; problem: string | null; reload: () => void } {
  const [rows, setRows] = useState<T[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const timer = useRef(0);
  const load = () =>
    request<{ data: T[] }>(path).then((answer) => (setRows(answer.data), setProblem(null))).catch((error) => {
      // What this key may not see is not asked for again.
      if (error instanceof ApiError && error.status === 403) clearInterval(timer.current);
      setProblem(explain(error));
    });
  useEffect(() => {
    void load();
    timer.current = window.setInterval(() => document.hidden || void load(), seconds * 1000);
    return () => clearInterval(timer.current);
  }, [path]);
  return { rows, problem, reload: load };
}
