/** A button that says what it does before it does it. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Confirm } from "./Confirm";
import { useOpener } from "./keyboard";

interface Props {
  action: string;
  /** What the button shows, if that is more than the action. */
  label?: string;
  /** What the question is about, for example "delete of step 10". */
  name?: string;
  title?: string | undefined;
  disabled?: boolean;
  isBusy?: boolean;
  run: () => void;
  children?: ComponentChildren;
}

/** The button stays in the page while it asks, so that it gets the focus back. */
export function Sure({ action, label = action, name = action, title, disabled = false, isBusy = false, run, children }: Props) {
  const [isAsking, setAsking] = useState(false);
  const opener = useOpener(isAsking);
  return (
    <>
      <button type="button" ref={opener} hidden={isAsking} disabled={disabled} aria-disabled={isBusy} title={title} onClick={() => setAsking(true)}>{label}</button>
      {isAsking && <Confirm name={name} yes={`Yes, ${action}`} isBusy={isBusy} onYes={() => (setAsking(false), run())} onNo={() => setAsking(false)}>{children}</Confirm>}
    </>
  );
}
