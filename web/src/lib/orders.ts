/** Orders to a running loop: what was asked, and what the loop answered. */

import type { JobEvent } from "../api/types";
import type { SpecParts } from "./offers";

/** Returns what became of an order. The loop answers after its present step. */
export function orderText({ data, step }: JobEvent): string {
  const { status, message } = data as Record<string, string>;
  return status === "asked" ? `${message}. The loop answers after its present step.` : `At step ${step}: ${message}.`;
}

/** Returns the learning rate that the schedule multiplies now: the one of the newest order, or the spec's. */
export function rateBefore(orders: JobEvent[], spec: SpecParts | undefined): string {
  const rates = orders.flatMap(({ data }) => (data.status === "asked" ? [(data.set as Record<string, unknown> | undefined)?.learning_rate] : []));
  return String(rates.findLast((rate) => typeof rate === "number") ?? spec?.training?.learning_rate ?? "");
}
