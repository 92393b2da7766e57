/** Keys for the whole page. They do nothing while somebody types into a field. */

import { useLayoutEffect, useRef } from "preact/hooks";
import { go, href, param, route, setParams, tableHref } from "../model/route";

export const KEYS: [string, string][] = [
  ["/", "search"], ["j / k", "next / previous job"], ["Enter", "open the job"], ["x", "select the job"], ["c", "compare the selected jobs"],
  ["n", "new job"], ["Esc", "back to the table, or close"], ["?", "this help"],
];

/** A `ref` that focuses an element when it appears. The attribute `autofocus` works only once in the life of a page. */
export const focused = (element: HTMLElement | null): void => element?.focus();

/** Gives the focus back to the element that had it when the calling component appeared. */
export function useFocusBack(): void {
  const before = useRef(document.activeElement);
  // In a task of its own, because the element with the focus is still in the page here.
  useLayoutEffect(() => () => void setTimeout(() => isFocusLost() && (before.current as HTMLElement | null)?.focus()), []);
}

/** Returns a `ref` for a button that is hidden while what it opened is there. The button gets the focus once that is closed. */
export function useOpener(isOpen: boolean) {
  const opener = useRef<HTMLButtonElement>(null);
  const wasOpen = useRef(false);
  useLayoutEffect(() => {
    if (wasOpen.current && !isOpen) opener.current?.focus();
    wasOpen.current = isOpen;
  }, [isOpen]);
  return opener;
}

const isFocusLost = () => document.activeElement === null || document.activeElement === document.body;

/** Gives the focus of an element that was removed or disabled to the nearest element around it, so that Tab goes on from there. */
export function keepFocus(): void {
  let path: HTMLElement[] = [];
  document.addEventListener("focusin", (event) => {
    path = event.composedPath().filter((element) => element instanceof HTMLElement);
  });
  const canHold = (element: HTMLElement) => element.isConnected && !element.matches(":disabled, [hidden]");
  const restore = () => {
    if (!isFocusLost() || !path[0] || canHold(path[0])) return;
    const around = path.find((element) => canHold(element) && element !== document.body)!;
    if (!around.hasAttribute("tabindex")) around.tabIndex = -1;
    around.focus({ preventScroll: true });
  };
  // A browser takes the focus from a disabled element when it draws the page. What gives the focus back itself, as a question does, is first.
  const soonRestore = () => path[0] && !canHold(path[0]) && requestAnimationFrame(() => setTimeout(restore));
  new MutationObserver(soonRestore).observe(document.body, { childList: true, subtree: true, attributeFilter: ["disabled"] });
}

const rows = () => [...document.querySelectorAll<HTMLElement>("[data-job]")];

/** The job whose row had the focus last. `j` and `k` go on from there after a look at another view. */
let last: string | undefined;

function move(by: number): void {
  const all = rows();
  const present = all.findIndex((row) => row.dataset.job === (focusedRow()?.dataset.job ?? last));
  const next = all[Math.min(all.length - 1, Math.max(0, present + by))];
  // The link, so that Enter opens the job. Without the column of names, a row has none.
  (next?.querySelector<HTMLElement>("a") ?? next?.querySelector<HTMLElement>("button.eye"))?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

const focusedRow = () => (document.activeElement as HTMLElement | null)?.closest<HTMLElement>("[data-job]");

export function installKeys(): void {
  document.addEventListener("focusin", () => (last = focusedRow()?.dataset.job ?? last));
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
