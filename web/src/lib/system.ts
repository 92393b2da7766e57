/** What a `system` event says about a rank, as values that can be drawn. */

import type { JobEvent } from "../api/types";

export interface Gpu {
  uuid?: string;
  percent?: number;
  memory_mb?: number;
}

/** Returns names and values: CPU and memory of the rank's processes, and use and memory of each of its GPUs. */
export function systemValues(event: JobEvent): [string, unknown][] {
  const { gpus, running_s: _, ...plain } = event.data as { gpus?: Gpu[] } & Record<string, unknown>;
  const ofGpus = (gpus ?? []).flatMap((gpu, index): [string, unknown][] => [
    [`gpu${index}_percent`, gpu.percent],
    [`gpu${index}_memory_mb`, gpu.memory_mb],
  ]);
  const rank = event.rank > 0 ? ` (rank ${event.rank})` : "";
  return [...Object.entries(plain), ...ofGpus].map(([name, value]) => [`system/${name}${rank}`, value]);
}

/** Returns true for a curve over time, which no resume takes back. */
export const isSystem = (name: string) => name.startsWith("system/");

/** Returns the newest use of each GPU, by its uuid. */
export function gpuUse(events: JobEvent[]): Record<string, Gpu> {
  const gpus = events.flatMap((event) => (event.data as { gpus?: Gpu[] }).gpus ?? []);
  return Object.fromEntries(gpus.map((gpu) => [gpu.uuid ?? "", gpu]));
}
