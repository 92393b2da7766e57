/** Nodes, the queue, and for an administrator keys and webhooks. */

import { Keys } from "./cluster/Keys";
import { Nodes } from "./cluster/Nodes";
import { Queue } from "./cluster/Queue";
import { Webhooks } from "./cluster/Webhooks";

export function ClusterView() {
  return (
    <article class="cluster">
      <h1 class="hidden">Cluster</h1>
      <Nodes />
      <Queue />
      <Keys />
      <Webhooks />
    </article>
  );
}
