/** One websocket for all jobs that are looked at. It reconnects by itself and continues at each job's cursor. */

import { ApiError, inProject, request, storedKey } from "./client";
import { heard } from "./connection";
import type { JobEvent } from "./types";

const KINDS = "state,log,eval,checkpoint,progress,system,note,line,do,gap,done";

/** A key of these characters alone can be sent as a subprotocol. A websocket with any other key is opened with a ticket. */
const SUBPROTOCOL = /^[\w!#$%&'*+.^`|~-]+$/;

export class LiveFeed {
  private socket: WebSocket | null = null;
  private cursors = new Map<string, number>();
  private ended = new Set<string>();
  private retry: ReturnType<typeof setTimeout> | undefined;
  private delay = 250;
  /** Moves with every socket that is wanted. A ticket that arrives later opens none. */
  private turn = 0;

  constructor(
    private readonly receive: (events: JobEvent[]) => void,
    private readonly kinds: string = KINDS,
    private readonly maxHz = 5,
  ) {}

  /** Follows exactly these jobs, each from the event behind its cursor. A job that is followed already keeps its place. */
  follow(jobs: Map<string, number>): void {
    const isSame = jobs.size === this.cursors.size && [...jobs.keys()].every((id) => this.cursors.has(id));
    if (isSame && this.socket) return;
    const known = this.cursors;
    this.cursors = new Map([...jobs].map(([id, no]) => [id, Math.max(no, known.get(id) ?? 0)]));
    this.ended.clear();
    this.open();
  }

  /** Follows a job again that had ended, for example because it was resumed. */
  again(id: string): void {
    if (this.ended.delete(id)) this.open();
  }

  close(): void {
    clearTimeout(this.retry);
    this.cursors.clear();
    this.drop();
  }

  private drop(): void {
    this.turn += 1;
    const socket = this.socket;
    this.socket = null;
    // A browser logs an error for a socket that is closed before it is open.
    if (socket?.readyState === WebSocket.CONNECTING) socket.addEventListener("open", () => socket.close());
    else socket?.close();
  }

  private open(): void {
    clearTimeout(this.retry);
    this.drop();
    const open = [...this.cursors].filter(([id]) => !this.ended.has(id));
    if (open.length === 0) return;
    const named = open.map(([id, no]) => `${id}:${no}`).join(",");
    const address = location.origin.replace(/^http/, "ws") + inProject(`/stream?jobs=${named}&kinds=${this.kinds}&max_hz=${this.maxHz}`);
    const key = storedKey();
    if (!key || SUBPROTOCOL.test(key)) return this.connect(address, key ? ["footplate", `footplate.key.${key}`] : ["footplate"]);
    const turn = this.turn;
    request<{ ticket: string }>("/tickets", { method: "POST", quiet: true }).then(
      ({ ticket }) => turn === this.turn && this.connect(`${address}&ticket=${ticket}`, ["footplate"]),
      (error) => turn === this.turn && !(error instanceof ApiError && [401, 403].includes(error.status)) && this.openLater(),
    );
  }

  private openLater(): void {
    this.retry = setTimeout(() => this.open(), this.delay);
    this.delay = Math.min(this.delay * 2, 5000);
  }

  private connect(address: string, protocols: string[]): void {
    const socket = new WebSocket(address, protocols);
    this.socket = socket;
    socket.addEventListener("message", (message) => {
      if (this.socket === socket) this.read(JSON.parse(message.data));
    });
    socket.addEventListener("close", (event) => {
      if (this.socket !== socket) return;
      this.socket = null;
      // 44xx other than a slow reader will not get better by asking again.
      const isFinal = event.code === 1000 || (event.code >= 4400 && ![4408, 4429].includes(event.code));
      if (!isFinal) this.openLater();
    });
  }

  private read(frame: { job?: string; events?: JobEvent[]; end?: string; last?: number }): void {
    this.delay = 250;
    heard();
    if (!frame.job) return;
    if (frame.events?.length) {
      this.cursors.set(frame.job, frame.events.at(-1)!.no);
      this.receive(frame.events);
    }
    if (frame.end) this.ended.add(frame.job);
  }
}
