/** The rows of the jobs table. Only those that can be seen are in the document. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Job } from "../../api/types";
import { type Column, columnOf, needsSpec, needsSummary, reasonOf } from "../../lib/columns";
import { formatNumber, jobTitle } from "../../lib/format";
import { needSpec, needSummary, specOf, summaryOf } from "../../model/details";
import { loadMore } from "../../model/jobs";
import { go, href, setParams, tableHref } from "../../model/route";
import { toggle } from "../../model/selection";
import { colorOf } from "../../ui/colors";
import { isNarrow } from "../../ui/theme";

const ROW = 36;
const CARD = 62;
const VISIBLE_ROWS = 10;
const EYE = 44;

interface TableProps {
  rows: Job[];
  columns: Column[];
  selected: Set<string>;
  sort: string;
  now: number;
}

/** Where the table was when it was left. It is there again after a look at a job. */
let lastTop = 0;

/** Only the rows that can be seen are in the document, so that a hundred thousand jobs scroll like fifty. */
export function Table({ rows, columns, selected, sort, now }: TableProps) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const isCards = isNarrow.value;
  const rowHeight = isCards ? CARD : ROW;
  const height = Math.min(rows.length, isCards ? 6 : VISIBLE_ROWS) * rowHeight;
  const first = Math.max(0, Math.floor(top / rowHeight) - 5);
  const shown = rows.slice(first, first + Math.ceil(height / rowHeight) + 10);
  const width = columns.reduce((sum, column) => sum + column.width, EYE);
  const template = `${EYE}px ${columns.map((column) => `minmax(${column.width}px, ${column.width}fr)`).join(" ")}`;

  const wantsSpec = columns.some((column) => needsSpec(column.id));
  const wantsSummary = columns.some((column) => needsSummary(column.id));
  useEffect(() => {
    for (const job of shown) {
      if (wantsSpec) needSpec(job.id);
      if (wantsSummary && job.attempt > 0) needSummary(job);
    }
    if (first + shown.length > rows.length - 20) void loadMore();
  });

  const sortBy = (id: string) => {
    const isSame = sort.replace(/^-/, "") === id;
    setParams({ sort: isSame && sort.startsWith("-") ? id : `-${id}` });
  };
  const onScroll = () => setTop((lastTop = box.current!.scrollTop));
  useLayoutEffect(() => {
    if (location.hash === tableHref()) box.current!.scrollTop = lastTop;
  }, []);
  return (
    <div class="table-scroll" role="table" aria-label="Jobs" aria-rowcount={rows.length + 1} ref={box} onScroll={onScroll} style={{ maxHeight: `${height + ROW + 16}px` }} tabIndex={0}>
      {!isCards && (
        <div class="row head" role="row" aria-rowindex={1} style={{ gridTemplateColumns: template, minWidth: `${width}px` }}>
          <span role="columnheader"><span class="hidden">Curves</span></span>
          {columns.map((column) => {
            const isSorted = sort.replace(/^-/, "") === column.id;
            const direction = sort.startsWith("-") ? "descending" : "ascending";
            return (
              <span key={column.id} role="columnheader" aria-sort={isSorted ? direction : "none"} class={column.isNumber ? "number" : ""} title={column.id}>
                <button type="button" onClick={() => sortBy(column.id)}>{column.title}{isSorted ? (direction === "descending" ? " ↓" : " ↑") : ""}</button>
              </span>
            );
          })}
        </div>
      )}
      <div style={{ height: `${first * rowHeight}px` }} />
      {shown.map((job, index) => (
        <Row key={job.id} job={job} index={first + index + 2} columns={columns} isSelected={selected.has(job.id)} template={template} width={width} now={now} isCard={isCards} />
      ))}
      <div style={{ height: `${Math.max(0, rows.length - first - shown.length) * rowHeight}px` }} />
    </div>
  );
}

interface RowProps {
  job: Job;
  index: number;
  columns: Column[];
  isSelected: boolean;
  template: string;
  width: number;
  now: number;
  isCard: boolean;
}

function Row({ job, index, columns, isSelected, template, width, now, isCard }: RowProps) {
  const extra = { spec: specOf(job.id), summary: summaryOf(job.id), now };
  const open = (event: MouseEvent) => {
    if (!(event.target as HTMLElement).closest("a, button, input")) go(href(`jobs/${job.id}`));
  };
  const eye = (
    <span role="cell">
      <button type="button" class="eye" aria-pressed={isSelected} aria-label={`Show curves of ${job.name ?? job.id}`} onClick={() => toggle(job.id)}>
        <i style={{ background: isSelected ? colorOf(job.id) : "transparent" }} />
      </button>
    </span>
  );
  const kind = `row ${isSelected ? "selected" : ""} ${isCard ? "card" : ""}`;
  if (isCard) return <Card job={job} index={index} kind={kind} eye={eye} open={open} />;
  return (
    <div class={kind} role="row" aria-rowindex={index} data-job={job.id} onClick={open} style={{ gridTemplateColumns: template, minWidth: `${width}px` }}>
      {eye}
      {columns.map((column) => {
        const text = column.text(job, extra);
        return <span key={column.id} role="cell" class={`${column.isNumber ? "number" : ""} ${kindOf(column.id, text)}`} title={text}><Cell column={column} job={job} text={text} /></span>;
      })}
    </div>
  );
}

const DIVERGED = /^-?(NaN|Infinity)$/;

function kindOf(id: string, text: string): string {
  if (id.startsWith("metric:") && DIVERGED.test(text)) return "error";
  return ["why", "created", "started", "finished", "running", "tags", "project", "node", "id"].includes(id) ? "muted" : "";
}

/** A job on a narrow screen: name and newest loss above, state and reason below. */
function Card({ job, index, kind, eye, open }: { job: Job; index: number; kind: string; eye: preact.JSX.Element; open: (event: MouseEvent) => void }) {
  const value = job.metrics.eval_loss ?? job.metrics.loss;
  const percent = columnOf("progress")!.text(job, { spec: undefined, summary: undefined, now: 0 });
  return (
    <div class={kind} role="row" aria-rowindex={index} data-job={job.id} onClick={open}>
      {eye}
      <span role="cell" style={{ gridArea: "name" }}><a href={href(`jobs/${job.id}`)}>{jobTitle(job)}</a></span>
      <span role="cell" style={{ gridArea: "value" }} class="number">{formatNumber(value)}</span>
      <span role="cell" style={{ gridArea: "state" }}><span class={`state ${job.state}`}>{job.state}</span> <span class="muted">{reasonOf(job)}</span></span>
      <span role="cell" style={{ gridArea: "why" }} class="number muted">{percent}</span>
    </div>
  );
}

function Cell({ column, job, text }: { column: Column; job: Job; text: string }) {
  if (column.id === "name") return <a href={href(`jobs/${job.id}`)}>{text}</a>;
  if (column.id === "state") return <span class={`state ${job.state}`}>{text}</span>;
  if (column.id === "progress" && job.progress?.max_steps) {
    return <span class={job.state === "succeeded" ? "done" : ""}><progress max={job.progress.max_steps} value={job.progress.step} aria-label={`Progress ${text}`} /><span class="percent">{text}</span></span>;
  }
  return <>{text}</>;
}
