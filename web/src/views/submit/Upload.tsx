/** Files become data, zips become code. Both by a click, or by a drop anywhere on the form. */

import { request } from "../../api/client";
import type { UploadedFile } from "../../api/types";
import { attempt } from "../../model/jobs";

export const upload = (file: File, onFile: (file: UploadedFile) => void, onBundle: (sha256: string) => void) =>
  attempt(async () => {
    if (file.name.endsWith(".zip")) {
      const bundle = await request<{ sha256: string }>("/bundles", { method: "POST", body: file, headers: { "Content-Type": "application/zip" } });
      onBundle(bundle.sha256);
    } else {
      const stored = await request<UploadedFile>(`/files?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } });
      onFile(stored);
    }
  }, `${file.name} is uploaded`);

export function Upload({ isOver, send }: { isOver: boolean; send: (file: File) => void }) {
  return (
    <label title=".jsonl, .csv, .tsv, .parquet and .txt become training data, .zip becomes code" class={`drop ${isOver ? "over" : ""}`}>
      Drop data or code here, or choose a file
      <input type="file" class="hidden" accept=".jsonl,.ndjson,.csv,.tsv,.parquet,.txt,.zip" onChange={(event) => { const file = event.currentTarget.files?.[0]; if (file) send(file); }} />
    </label>
  );
}
