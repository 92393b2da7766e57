/** Files become data, zips become code. Both by a click, or by a drop anywhere on the page. */

import { explain, request } from "../../api/client";
import { Unreachable } from "../../api/connection";
import type { UploadedFile } from "../../api/types";
import { attempt } from "../../model/jobs";

/** Uploads a file. Returns undefined if that failed. */
export const upload = (file: File, onFile: (file: UploadedFile) => void, onBundle: (sha256: string) => void) =>
  attempt(async () => {
    try {
      if (file.name.endsWith(".zip")) {
        const bundle = await request<{ sha256: string }>("/bundles", { method: "POST", body: file, headers: { "Content-Type": "application/zip" } });
        onBundle(bundle.sha256);
      } else {
        const stored = await request<UploadedFile>(`/files?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } });
        onFile(stored);
      }
      return true;
    } catch (error) {
      throw error instanceof Unreachable ? error : new Error(`${file.name} cannot be uploaded: ${explain(error)}`);
    }
  }, `${file.name} is uploaded`);

/** Returns the name of the first folder among what is dropped. A browser cannot send a folder, and fails as if the service were unreachable. */
export const folderIn = (dropped: DataTransfer): string | undefined =>
  [...dropped.items].map((item) => item.webkitGetAsEntry()).find((entry) => entry?.isDirectory)?.name;

export function Upload({ isOver, send }: { isOver: boolean; send: (files: FileList) => void }) {
  return (
    <label title=".jsonl, .csv, .tsv, .parquet and .txt become training data, .zip becomes code" class={`drop ${isOver ? "over" : ""}`}>
      Drop data or code here, or choose files
      <input type="file" class="hidden" multiple accept=".jsonl,.ndjson,.csv,.tsv,.parquet,.txt,.zip" onChange={(event) => send(event.currentTarget.files!)} />
    </label>
  );
}
