/** A button that says what it does before it does it. */

import { useState } from "preact/hooks";

export function Sure({ action, meaning, run }: { action: string; meaning: string; run: () => void }) {
  const [isAsking, setAsking] = useState(false);
  if (!isAsking) return <button type="button" onClick={() => setAsking(true)}>{action}</button>;
  return (
    <span class="confirm" role="alertdialog" aria-label={`Confirm ${action}`}>
      {meaning} <button type="button" class="danger" onClick={() => (setAsking(false), run())}>Yes, {action}</button> <button type="button" onClick={() => setAsking(false)}>No</button>
    </span>
  );
}
