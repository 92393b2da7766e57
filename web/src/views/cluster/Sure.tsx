/** A button that says what it does before it does it. */

import { useState } from "preact/hooks";
import { Confirm } from "../../ui/Confirm";

export function Sure({ action, meaning, run }: { action: string; meaning: string; run: () => void }) {
  const [isAsking, setAsking] = useState(false);
  if (!isAsking) return <button type="button" onClick={() => setAsking(true)}>{action}</button>;
  return <Confirm name={action} yes={`Yes, ${action}`} onYes={() => (setAsking(false), run())} onNo={() => setAsking(false)}>{meaning}</Confirm>;
}
