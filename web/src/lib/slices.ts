/** Work in short tasks, one piece in each, so that the page answers between two pieces. */

const waiting = new Map<object, () => void>();
let isScheduled = false;

/** Does this piece soon. A piece of the same owner that still waits is replaced. */
export function soon(owner: object, piece: () => void): void {
  waiting.set(owner, piece);
  schedule();
}

export function notAnyMore(owner: object): void {
  waiting.delete(owner);
}

function schedule(): void {
  if (isScheduled || waiting.size === 0) return;
  isScheduled = true;
  setTimeout(next);
}

function next(): void {
  isScheduled = false;
  const [first] = waiting;
  if (!first) return;
  waiting.delete(first[0]);
  try {
    first[1]();
  } finally {
    schedule();
  }
}

/** Returns a function that runs `work` at once, and then at most once in each period, for the last call too. */
export function throttled(work: () => void, milliseconds: number): () => void {
  let isResting = false;
  let isWanted = false;
  const run = () => {
    isResting = true;
    isWanted = false;
    setTimeout(() => {
      isResting = false;
      if (isWanted) run();
    }, milliseconds);
    work();
  };
  return () => {
    if (isResting) isWanted = true;
    else run();
  };
}
