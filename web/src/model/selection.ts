/** The jobs whose curves are shown. The selection stands in the address. */

import { param, setParams } from "./route";

export const MOST_SELECTED = 20;

export function selectedIds(): string[] {
  return param("sel").split(",").filter(Boolean);
}

export function select(ids: string[]): void {
  setParams({ sel: ids.slice(-MOST_SELECTED).join(), none: ids.length ? null : "1" });
}

export function toggle(id: string): void {
  const ids = selectedIds();
  select(ids.includes(id) ? ids.filter((other) => other !== id) : [...ids, id]);
}
