/** A button that opens a small panel. It closes with Escape, and when the focus or a click goes elsewhere. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

interface Props {
  label: ComponentChildren;
  name?: string;
  class?: string;
  onOpen?: () => void;
  children: ComponentChildren;
}

/** Closes the menu that an event happened in, and puts the focus back on its button. */
export function closeMenu(event: Event): void {
  const box = (event.currentTarget as HTMLElement).closest("details")!;
  box.open = false;
  box.querySelector("summary")!.focus();
}

export function Menu({ label, name, class: kind = "", onOpen, children }: Props) {
  const box = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const close = (event: Event) => {
      if (box.current?.open && !box.current.contains(event.target as Node)) box.current.open = false;
    };
    const events = ["pointerdown", "focusin"] as const;
    for (const event of events) document.addEventListener(event, close);
    return () => events.forEach((event) => document.removeEventListener(event, close));
  }, []);
  const onKey = (event: KeyboardEvent) => {
    if (event.key !== "Escape" || !box.current?.open) return;
    event.stopPropagation();
    closeMenu(event);
  };
  return (
    <details class={`menu ${kind}`} ref={box} onKeyDown={onKey} onToggle={() => box.current?.open && onOpen?.()}>
      <summary aria-label={name}>{label}</summary>
      <div>{children}</div>
    </details>
  );
}
