/** What an event says, in words. */

import type { JobEvent } from "../api/types";
import { formatBytes, formatDuration, formatNumber, sentence } from "./format";

export function eventText({ kind, data, step }: JobEvent): string {
  const { state, reason, message, status } = data as Record<string, string | null>;
  if (kind === "state") return [state, reason && sentence(reason), message].filter(Boolean).join(", ");
  if (typeof message === "string") return message;
  if (kind === "done") return endText(data);
  if (kind === "checkpoint") return checkpointText(data, status === "committed" ? "saved" : (status ?? "changed"), step);
  return Object.entries(data)
    .filter(([, value]) => value !== null && typeof value !== "object")
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${formatNumber(value)}`)
    .join(", ");
}

/** Returns the step to which a job goes back: in a resume from an older checkpoint, or when an attempt continues after a crash. */
export function stepBack({ kind, step, data }: JobEvent): number | null {
  return kind === "state" || (kind === "note" && typeof data.checkpoint === "string") ? step : null;
}

function checkpointText(data: JobEvent["data"], verb: string, step: number | null): string {
  const { bytes, files, is_best } = data;
  const size = typeof bytes === "number" ? `${formatBytes(bytes)}${typeof files === "number" ? ` in ${files} files` : ""}` : "";
  return [`checkpoint of step ${formatNumber(step)} ${verb}`, size, is_best === true ? "the best so far" : ""].filter(Boolean).join(", ");
}

function endText({ ending, reason, running_s }: JobEvent["data"]): string {
  const ran = typeof running_s === "number" ? `ran ${formatDuration(running_s)}` : "";
  return [`the attempt ended: ${sentence(String(ending))}`, typeof reason === "string" ? sentence(reason) : "", ran].filter(Boolean).join(", ");
}
