/** Light, dark, or as the system has it. What draws with colours of its own looks at `colorsVersion`. */

import { signal } from "@preact/signals";

export const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];
const KEY = "footplate.theme";

const stored = localStorage.getItem(KEY);
export const theme = signal<Theme>((THEMES as readonly string[]).includes(stored ?? "") ? (stored as Theme) : "auto");
/** Moves when the colours of the page change. */
export const colorsVersion = signal(0);

export function setTheme(next: Theme): void {
  theme.value = next;
  localStorage.setItem(KEY, next);
  document.documentElement.dataset.theme = next;
  colorsVersion.value += 1;
}

document.documentElement.dataset.theme = theme.value;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (colorsVersion.value += 1));

/** True on a screen as narrow as a phone's. */
export const isNarrow = signal(matchMedia("(max-width: 600px)").matches);
matchMedia("(max-width: 600px)").addEventListener("change", (event) => (isNarrow.value = event.matches));
