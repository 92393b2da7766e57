/** A question before something that cannot be undone. It takes the focus and gives it back. Escape is a "no". */

import type { ComponentChildren } from "preact";
import { focused, useFocusBack } from "./keyboard";

interface Props {
  name: string;
  yes: string;
  isBusy?: boolean;
  onYes: () => void;
  onNo: () => void;
  children?: ComponentChildren;
}

export function Confirm({ name, yes, isBusy = false, onYes, onNo, children }: Props) {
  useFocusBack();
  const onKey = (event: KeyboardEvent) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    onNo();
  };
  return (
    <span class="confirm" role="alertdialog" aria-label={`Confirm ${name}`} onKeyDown={onKey}>
      {children} <button type="button" class="danger" aria-disabled={isBusy} onClick={onYes}>{yes}</button>{" "}
      <button type="button" ref={focused} onClick={onNo}>No</button>
    </span>
  );
}
