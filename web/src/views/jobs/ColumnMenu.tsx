/** The menu that shows and hides the columns of the table. */

import { COLUMNS, DEFAULT_COLUMNS, columnOf } from "../../lib/columns";
import { joinNames } from "../../lib/names";
import { metricNames, specPaths } from "../../model/details";
import { setParams } from "../../model/route";
import { Menu } from "../../ui/Menu";

export function ColumnMenu({ columns }: { columns: string[] }) {
  const change = (id: string) => {
    const next = columns.includes(id) ? columns.filter((other) => other !== id) : [...columns, id];
    setParams({ cols: next.join() === DEFAULT_COLUMNS.join() ? null : joinNames(next) });
  };
  const add = (event: Event) => {
    event.preventDefault();
    const input = (event.currentTarget as HTMLFormElement).elements.namedItem("column") as HTMLInputElement;
    const id = input.value.trim();
    if (columnOf(id)) change(id);
    input.value = "";
  };
  const choices = [
    ...metricNames().flatMap((name) => ["last", "best", "min", "max"].map((which) => `metric:${name}:${which}`)),
    ...specPaths().map((path) => `spec:${path}`),
  ];
  return (
    <Menu label="Columns">
        {[...COLUMNS.map((column) => column.id), ...columns.filter((id) => id.includes(":"))].map((id) => (
          <label key={id}><input type="checkbox" checked={columns.includes(id)} onChange={() => change(id)} /> {columnOf(id)?.title ?? id}</label>
        ))}
        <form onSubmit={add}>
          <label>Metric or spec value <input name="column" list="columns" placeholder="metric:loss:min or spec:training.seed" /></label>
          <datalist id="columns">{choices.map((id) => <option key={id} value={id} />)}</datalist>
          <button>Add column</button>
        </form>
    </Menu>
  );
}
