/** The requests behind the view of a job, to paste into a terminal or a program. */

import { inProject, recentRequests, storedKey } from "../../api/client";
import type { Job } from "../../api/types";
import { asCommand, asCurl, asPython } from "../../lib/commands";
import { Copy } from "../../ui/Copy";

export function Api({ job }: { job: Job }) {
  const sent = [
    { method: "GET", path: `/jobs/${job.id}` },
    { method: "GET", path: `/jobs/${job.id}/spec` },
    { method: "GET", path: `/jobs/${job.id}/metrics/series?names=loss` },
    { method: "GET", path: `/jobs/${job.id}/events?kinds=state,checkpoint` },
    { method: "GET", path: `/jobs/${job.id}/logs` },
    { method: "GET", path: `/jobs/${job.id}/checkpoints` },
    ...job.actions.filter((action) => ["pause", "resume", "cancel"].includes(action)).map((action) => ({ method: "POST", path: `/jobs/${job.id}/${action}` })),
  ];
  return (
    <div class="api">
      {sent.map((one) => <Request key={one.method + one.path} sent={one} />)}
      <h2>What this page changed</h2>
      {recentRequests.value.length === 0 && <p class="empty">Nothing yet. Each action that you take on this page will be listed here as a request, so that a script can repeat it.</p>}
      {recentRequests.value.map((one) => <Request key={one.at + one.path} sent={one} />)}
    </div>
  );
}

function Request({ sent: bare }: { sent: { method: string; path: string; body?: string | undefined } }) {
  const sent = { ...bare, path: inProject(bare.path) };
  const command = asCommand(sent);
  return (
    <details>
      <summary><code>{sent.method} {sent.path}</code></summary>
      <Copy what="as curl" text={asCurl(sent, location.origin, storedKey() !== null)} />
      <Copy what="as Python" text={asPython(sent, location.origin, storedKey() !== null)} />
      {command && <Copy what="as a command" text={command} />}
    </details>
  );
}
