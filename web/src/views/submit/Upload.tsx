/** Files become data, zips become code. Both by a click or by drag and drop. */

import { useState } from "preact/hooks";
import { request } from "../../api/client";
import type { UploadedFile } from "../../api/types";
import { attempt } from "../../model/jobs";

export function Upload({ onFile, onBundle }: { onFile: (file: UploadedFile) => void; onBundle: (sha: string) => void }) {
  const [isOver, setOver] = useState(false);
  const send = (file: File) =>
    attempt(async () => {
      if (file.name.endsWith(".zip")) {
        const bundle = await request<{ sha256: string }>("/bundles", { method: "POST", body: file, headers: { "Content-Type": "application/zip" } });
        onBundle(bundle.sha256);
      } else {
        const stored = await request<UploadedFile>(`/files?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } });
        onFile(stored);
      }
    }, `${file.name} is uploaded`);
  return (
    <label title=".jsonl, .csv, .tsv, .parquet and .txt become training data, .zip becomes code" class={`drop ${isOver ? "over" : ""}`} onDragOver={(event) => (event.preventDefault(), setOver(true))} onDragLeave={() => setOver(false)}
      onDrop={(event) => { event.preventDefault(); setOver(false); const file = event.dataTransfer?.files[0]; if (file) void send(file); }}>
      Drop data or code here, or choose a file
      <input type="file" class="hidden" accept=".jsonl,.ndjson,.csv,.tsv,.parquet,.txt,.zip" onChange={(event) => { const file = event.currentTarget.files?.[0]; if (file) void send(file); }} />
    </label>
  );
}
