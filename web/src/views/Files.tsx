/** Uploaded files: the list to choose from, and the report of the rows of one. */

import { useEffect, useState } from "preact/hooks";
import { request } from "../api/client";
import type { UploadedFile } from "../api/types";
import { formatAge, formatBytes, formatNumber } from "../lib/format";
import { attempt } from "../model/jobs";

/** The newest files. A click shows one's rows and takes the file as training data. */
export function FileChoice({ newest, onFile }: { newest: UploadedFile | null; onFile: (id: string) => void }) {
  const [files, setFiles] = useState<UploadedFile[]>([]);
  const [chosen, setChosen] = useState<UploadedFile | null>(null);
  useEffect(() => {
    request<{ data: UploadedFile[] }>("/files").then((list) => setFiles(list.data)).catch(() => undefined);
    setChosen(newest);
  }, [newest]);
  const choose = (id: string) => attempt(async () => (setChosen(await request<UploadedFile>(`/files/${id}`)), onFile(id)));
  if (files.length === 0) return null;
  return (
    <>
      {chosen?.report && <Report file={chosen} />}
      <details class="files">
        <summary>Uploaded files</summary>
        <table class="plain" aria-label="Uploaded files">
          <thead><tr><th>Name</th><th class="number">Rows</th><th class="number">Bad</th><th class="number">Size</th><th>Uploaded</th><th /></tr></thead>
          <tbody>
            {files.map((file) => (
              <tr key={file.id} aria-current={file.id === chosen?.id}>
                <td title={file.id}>{file.name}</td>
                <td class="number">{formatNumber(file.rows)}</td>
                <td class={`number ${file.bad_rows ? "error" : ""}`}>{formatNumber(file.bad_rows)}</td>
                <td class="number">{formatBytes(file.bytes)}</td>
                <td>{formatAge(file.created_at, Date.now())}</td>
                <td><button type="button" aria-label={`train on ${file.name}`} onClick={() => void choose(file.id)}>train on this</button></td>
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </>
  );
}

/** The columns of a file, its first bad rows with their numbers, and what was not checked. */
function Report({ file }: { file: UploadedFile }) {
  const report = file.report!;
  const hasTokens = report.columns.some((column) => column.tokens);
  return (
    <section aria-label={`Rows of ${file.name}`}>
      <p>
        <strong>{file.name}</strong>: {formatNumber(report.rows)} {report.rows === 1 ? "row" : "rows"}, {report.bad_rows ? `${formatNumber(report.bad_rows)} bad` : "none bad"}
      </p>
      <table class="plain" aria-label="Columns">
        <thead><tr><th>Column</th><th>Type</th><th>Missing</th><th class="number">Longest</th>{hasTokens && <th>Tokens: median, 95 %, most</th>}</tr></thead>
        <tbody>
          {report.columns.map((column) => (
            <tr key={column.name}>
              <td>{column.name}</td>
              <td>{column.types.map((count, index) => (index ? `${formatNumber(count.rows)} ${count.type} (first: row ${count.first})` : count.type)).join(", ")}</td>
              <td>{column.missing ? `${formatNumber(column.missing)} (first: row ${column.first_missing})` : ""}</td>
              <td class="number">{formatNumber(column.longest)}</td>
              {hasTokens && <td>{column.tokens && [column.tokens.median, column.tokens.p95, column.tokens.most].map((count) => formatNumber(count)).join(", ")}</td>}
            </tr>
          ))}
        </tbody>
      </table>
      {report.first_bad.length > 0 && <ul class="error">{report.first_bad.map((bad) => <li key={bad.number}>row {bad.number}: {bad.problem}</li>)}</ul>}
      {report.notes.map((note) => <p key={note} class="warning">{note}</p>)}
    </section>
  );
}
