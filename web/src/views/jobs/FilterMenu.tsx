/** The menu that adds a condition on jobs, such as `loss < 0.5`. */

import { useState } from "preact/hooks";
import type { Job } from "../../api/types";
import { COLUMNS, columnOf } from "../../lib/columns";
import { type Condition, OPERATORS, type Operator, SPOKEN, fieldOf, problemOf, writeConditions } from "../../lib/filters";
import { metricNames, needSpec, needSummary, specOf, specPaths, summaryOf } from "../../model/details";
import { conditions } from "../../model/jobs";
import { setParams } from "../../model/route";
import { Menu, closeMenu } from "../../ui/Menu";

/** Jobs of which the menu reads the spec, to know which values there are. */
const SAMPLED = 20;

const RECENT: [string, string][] = [["1h", "Last hour"], ["24h", "Last 24 hours"], ["7d", "Last 7 days"]];

/** Adds a condition on any column: node, time, tags, a spec value or a metric. */
export function FilterMenu({ rows }: { rows: Job[] }) {
  const [field, setField] = useState("");
  const [operator, setOperator] = useState<Operator>("=");
  const [value, setValue] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const id = fieldOf(field, specPaths(), metricNames());
  const add = (event: Event, condition: Condition) => {
    const rest = conditions.value.filter((other) => other.field !== condition.field || other.operator !== condition.operator);
    setParams({ where: writeConditions([...rest, condition]) });
    setValue("");
    setProblem(null);
    closeMenu(event);
  };
  const apply = (event: Event) => {
    event.preventDefault();
    if (!id) return setProblem(`No job here has “${field}”. Use a column such as node, a metric such as loss, or a path in the spec such as training.seed.`);
    const condition = { field: id, operator, value };
    const wrong = problemOf(condition, Date.now());
    if (wrong) setProblem(wrong);
    else add(event, condition);
  };
  const names = [...COLUMNS.map((column) => column.id), ...specPaths(), ...metricNames().flatMap((name) => [name, `metric:${name}:best`, `metric:${name}:min`, `metric:${name}:max`])];
  const column = id ? columnOf(id) : null;
  const values = column && !["created", "started", "finished"].includes(column.id)
    ? [...new Set(rows.slice(0, 500).flatMap((job) => column.id === "tags" ? job.tags : [String(column.value(job, { spec: specOf(job.id), summary: summaryOf(job.id), now: 0 }) ?? "")]))].filter(Boolean).slice(0, 50)
    : [];
  const readSome = () => {
    for (const job of rows.slice(0, SAMPLED)) {
      needSpec(job.id);
      if (job.attempt > 0) needSummary(job);
    }
  };
  return (
    <Menu label="Filter" onOpen={readSome}>
      <div class="choices">{RECENT.map(([ago, text]) => <button key={ago} type="button" class="chip" onClick={(event) => add(event, { field: "created", operator: ">", value: ago })}>{text}</button>)}</div>
      <form onSubmit={apply}>
        <label>Field <input list="filter-fields" required placeholder="node, seed, loss, created…" value={field} onInput={(event) => setField(event.currentTarget.value)} /></label>
        <datalist id="filter-fields">{[...new Set(names)].map((name) => <option key={name} value={name} />)}</datalist>
        <label>Condition <select value={operator} onChange={(event) => setOperator(event.currentTarget.value as Operator)}>{OPERATORS.map((one) => <option key={one} value={one}>{SPOKEN[one]}</option>)}</select></label>
        <label>Value <input list="filter-values" required value={value} onInput={(event) => setValue(event.currentTarget.value)} /></label>
        <datalist id="filter-values">{values.map((one) => <option key={one} value={one} />)}</datalist>
        {problem && <p class="error" role="alert">{problem}</p>}
        <button class="primary">Add filter</button>
      </form>
      <p><small>Times are a date, or how long ago: 30min, 24h, 7d.</small></p>
    </Menu>
  );
}
