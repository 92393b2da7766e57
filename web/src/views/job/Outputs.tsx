/** The files that a job left, to download. */

import { download } from "../../api/client";
import type { Job } from "../../api/types";
import { formatAge, formatBytes } from "../../lib/format";
import { attempt, isFinal } from "../../model/jobs";
import { Missing, useList } from "./list";

export function Outputs({ job }: { job: Job }) {
  const { rows, problem } = useList<{ path: string; bytes: number; modified_at: string }>(job, "outputs", job.version);
  if (!rows?.length) return <Missing rows={rows} problem={problem} text={job.external ? "A run elsewhere keeps its outputs there." : isFinal(job) ? "This job left no outputs." : "Outputs are here when the job has ended."} />;
  return (
    <div class="wide" tabIndex={0}><table class="plain">
      <thead><tr><th>File</th><th class="number">Size</th><th>Changed</th></tr></thead>
      <tbody>
        {rows.map((row) => (
          <tr key={row.path}>
            <td><button type="button" class="link" onClick={() => void attempt(() => download(`/jobs/${job.id}/outputs/${row.path.split("/").map(encodeURIComponent).join("/")}`, row.path.split("/").at(-1)!))}>{row.path}</button></td>
            <td class="number">{formatBytes(row.bytes)}</td>
            <td title={row.modified_at}>{formatAge(row.modified_at, Date.now())}</td>
          </tr>
        ))}
      </tbody>
    </table></div>
  );
}
