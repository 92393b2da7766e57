/** What stands where a view will be. It has a heading, as every view: a screen reader may arrive at any moment. */

import type { ComponentChildren } from "preact";

export function Waiting({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <>
      <h1 class="hidden">{title}</h1>
      <p class="empty" role="status">{children || "Loading…"}</p>
    </>
  );
}
