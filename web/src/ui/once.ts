/** Runs one action at a time, so that a doubled click is one click. */

import { useRef, useState } from "preact/hooks";

/** The second click of a doubled one comes within this time. */
const DOUBLE_CLICK_MS = 500;

export type Once = (work: () => Promise<unknown>) => Promise<void>;

/**
 * Returns whether an action runs, and a function that starts one. A moment after an action, others are still refused, because
 * "resume" may have come into the place of "pause" under the second click. Buttons show this by `aria-disabled`, which keeps the focus.
 */
export function useOnce(): [boolean, Once] {
  const [isBusy, setBusy] = useState(false);
  const isRunning = useRef(false);
  const run: Once = async (work) => {
    if (isRunning.current) return;
    isRunning.current = true;
    setBusy(true);
    try {
      await work();
    } finally {
      setTimeout(() => {
        isRunning.current = false;
        setBusy(false);
      }, DOUBLE_CLICK_MS);
    }
  };
  return [isBusy, run];
}
