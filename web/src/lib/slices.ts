/** Work in short tasks, one piece in each, so that the page answers between two pieces. */

class Slices {
  private waiting = new Map<object, () => void>();
  private isScheduled = false;

  /** `later` calls what it is given in a task that begins later. */
  constructor(private readonly later: (next: () => void) => void) {}

  /** Does this piece soon. A piece of the same owner that still waits is replaced. */
  add(owner: object, piece: () => void): void {
    this.waiting.set(owner, piece);
    this.schedule();
  }

  remove(owner: object): void {
    this.waiting.delete(owner);
  }

  private schedule(): void {
    if (this.isScheduled || this.waiting.size === 0) return;
    this.isScheduled = true;
    this.later(() => this.next());
  }

  private next(): void {
    this.isScheduled = false;
    const [first] = this.waiting;
    if (!first) return;
    this.waiting.delete(first[0]);
    try {
      first[1]();
    } finally {
      this.schedule();
    }
  }
}

/** Pieces as fast as the page can do them. */
export const soon = new Slices((next) => setTimeout(next));

/** At most one piece for each frame. What draws on a canvas costs most in the frame after it, where all drawn canvases become pictures in one task. */
export const drawing = new Slices((next) => requestAnimationFrame(() => setTimeout(next)));

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
