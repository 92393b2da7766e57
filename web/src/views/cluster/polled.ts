/** A list of the service that is asked for again while the page shows it. */

import { useEffect, useState } from "preact/hooks";
import { explain, request } from "../../api/client";

export function usePolled<T>(path: string, seconds: number): { rows: T[] | null; problem: string | null; reload: () => void } {
  const [rows, setRows] = useState<T[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const load = () =>
    request<{ data: T[] }>(path).then((answer) => (setRows(answer.data), setProblem(null))).catch((error) => setProblem(explain(error)));
  useEffect(() => {
    void load();
    const timer = setInterval(() => document.hidden || void load(), seconds * 1000);
    return () => clearInterval(timer);
  }, [path]);
  return { rows, problem, reload: load };
}
