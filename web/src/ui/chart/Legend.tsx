/** The legend of a chart: the last and the best value of each line, or under the cursor its value there. */

import type { Signal } from "@preact/signals";
import { memo } from "preact/compat";
import { useMemo } from "preact/hooks";
import { formatNumber } from "../../lib/format";
import { bestOf } from "../../lib/groups";
import { type Line, seriesPerFamily } from "./lines";

/** What the cursor points at, for each drawn column. */
export type Pointed = Signal<(number | null)[] | null>;

interface LegendProps {
  title: string;
  families: Line[][];
  isSmooth: boolean;
  pointed: Pointed;
  /** Draws one series before all others, or with null none. */
  stress: (series: number | null) => void;
}

/** Rows that a legend shows without scrolling. */
const ROWS_IN_SIGHT = 6;

export const Legend = memo(({ title, families, isSmooth, pointed, stress }: LegendProps) => {
  const width = seriesPerFamily(families, isSmooth);
  /** Where the value of a family stands among the drawn columns: its mean, or its smoothed line. */
  const placeOf = (index: number) => width.slice(0, index).reduce((a, b) => a + b, 0) + (width[index] === 2 ? 1 : 0);
  const rows = useMemo(() => families.map((members) => figuresOf(members, title)), [families, title]);
  const values = pointed.value;
  return (
    <ul class={`legend ${width.includes(3) ? "of-families" : ""}`} tabIndex={families.length > ROWS_IN_SIGHT ? 0 : undefined} aria-label={`Values of ${title}`}>
      {families.map((members, index) => (
        <li key={members[0]!.family ?? members[0]!.id} onMouseEnter={() => stress(placeOf(index) + 1)} onMouseLeave={() => stress(null)}>
          <i style={{ background: members[0]!.color }} />
          <span class="legend-name" title={members.map((line) => line.label).join(", ")}>{members[0]!.family ?? members[0]!.label}{members.length > 1 && ` (${members.length})`}</span>
          <b>{formatNumber(values ? values[placeOf(index)] : rows[index]!.last)}</b>
          {!values && <small>{rows[index]!.aside}</small>}
        </li>
      ))}
    </ul>
  );
});

function figuresOf(members: Line[], title: string): { last: number; aside: string } {
  const last = members.map((line) => line.curve.y.at(-1)!);
  const best = members.length === 1 ? bestOf(members[0]!.curve.y, title) : undefined;
  const spread = members.length > 1 && min(last) !== max(last) ? `${formatNumber(min(last), 3)} to ${formatNumber(max(last), 3)}` : "";
  return { last: mean(last), aside: best === undefined ? spread : `best ${formatNumber(best)}` };
}

const mean = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;

const min = (values: number[]) => values.reduce((a, b) => Math.min(a, b), Infinity);
const max = (values: number[]) => values.reduce((a, b) => Math.max(a, b), -Infinity);
