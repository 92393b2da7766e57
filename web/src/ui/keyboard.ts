/** Keys for the whole page. They do nothing while somebody types into a field. */

import { go, href, param, route, setParams, tableHref } from "../model/route";

export const KEYS: [string, string][] = [
  ["/", "search"], ["j / k", "next / previous job"], ["Enter", "open the job"], ["x", "select the job"], ["c", "compare the selected jobs"],
  ["n", "new job"], ["Esc", "back to the table, or close"], ["?", "this help"],
];

/** A `ref` that focuses an element when it appears. The attribute `autofocus` works only once in the life of a page. */
export const focused = (element: HTMLElement | null): void => element?.focus();

const rows = () => [...document.querySelectorAll<HTMLElement>("[data-job]")];

function move(by: number): void {
  const all = rows();
  const present = all.findIndex((row) => row.contains(document.activeElement));
  const next = all[Math.min(all.length - 1, Math.max(0, present + by))];
  // The link, so that Enter opens the job. Without the column of names, a row has none.
  (next?.querySelector<HTMLElement>("a") ?? next?.querySelector<HTMLElement>("button.eye"))?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

const focusedRow = () => (document.activeElement as HTMLElement | null)?.closest<HTMLElement>("[data-job]");

export function installKeys(): void {
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    const isTyping = target.matches("input, select, textarea");
    if (event.key === "Escape") {
      if (isTyping) target.blur();
      else if (param("help")) setParams({ help: null });
      else if (route.value.view !== "jobs") go(tableHref());
      return;
    }
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    const action: Record<string, () => void> = {
      "/": () => document.getElementById("search")?.focus(),
      j: () => move(1),
      k: () => move(-1),
      x: () => focusedRow()?.querySelector<HTMLElement>(".eye")?.click(),
      c: () => param("sel").includes(",") && go(href("compare", { sel: param("sel") })),
      n: () => go(href("submit")),
      "?": () => setParams({ help: param("help") ? null : "1" }),
    };
    if (event.key in action) {
      event.preventDefault();
      action[event.key]!();
    }
  });
}
