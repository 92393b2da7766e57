/** The webhooks of a project, for an administrator. */

import { useState } from "preact/hooks";
import { request } from "../../api/client";
import { formatAge } from "../../lib/format";
import { attempt } from "../../model/jobs";
import { Copy } from "../../ui/Copy";
import { useOnce } from "../../ui/once";
import { Sure } from "../../ui/Sure";
import { usePolled } from "./polled";

interface Webhook {
  id: string;
  url: string;
  states: string[] | null;
  tags: string[] | null;
  enabled: boolean;
  disabled_why: string | null;
  failing_since: string | null;
}

interface Delivery {
  id: string;
  tries: number;
  error: string | null;
}
const RESULT_TRIES = 20;
const RESULT_MS = 500;

/** Sends a ping to the webhook. Raises an error if it was not delivered. */
async function test(id: string): Promise<void> {
  const { id: sent } = await request<Delivery>(`/webhooks/${id}/test`, { method: "POST" });
  for (let tries = 0; tries < RESULT_TRIES; tries += 1) {
    const { data } = await request<{ data: Delivery[] }>(`/webhooks/${id}/deliveries`);
    const delivery = data.find((row) => row.id === sent);
    if (delivery?.error) throw new Error(`The test failed: ${delivery.error}`);
    if (delivery?.tries) return;
    await new Promise((done) => setTimeout(done, RESULT_MS));
  }
  throw new Error("The test has no result yet: GET /webhooks/{id}/deliveries will have it.");
}

export function Webhooks() {
  const { rows, reload } = usePolled<Webhook>("/webhooks", 30);
  const [secret, setSecret] = useState<string | null>(null);
  const [isBusy, once] = useOnce();
  if (rows === null) return null;
  const make = (event: Event) => {
    event.preventDefault();
    const element = event.currentTarget as HTMLFormElement;
    const form = new FormData(element);
    const list = (name: string) => String(form.get(name)).split(/[,\s]+/).filter(Boolean);
    const body = { url: String(form.get("url")), ...(list("states").length ? { states: list("states") } : {}), ...(list("tags").length ? { tags: list("tags") } : {}) };
    void once(() => attempt(async () => {
      setSecret((await request<{ secret: string }>("/webhooks", { method: "POST", body })).secret);
      element.reset();
    }).then(reload));
  };
  const remove = (id: string) => {
    setSecret(null);
    void attempt(() => request(`/webhooks/${id}`, { method: "DELETE" }), "deleted").then(reload);
  };
  return (
    <section aria-label="Webhooks">
      <h2>Webhooks</h2>
      {rows.length === 0 ? <p class="empty">No webhook. Every change of state of this project's jobs is sent to the addresses that you add here.</p> : (
        <div class="wide" tabIndex={0}><table class="plain stack">
          <thead><tr><th scope="col">Address</th><th scope="col">States</th><th scope="col">Tags</th><th scope="col">Works</th><th scope="col">Actions</th></tr></thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.id}>
                <td><code>{row.url}</code></td><td data-title="states">{row.states?.join(", ") ?? "all"}</td><td data-title="tags">{row.tags?.join(", ") ?? "all"}</td>
                <td data-title="works">{!row.enabled ? `off: ${row.disabled_why}` : row.failing_since ? `failing for ${formatAge(row.failing_since, Date.now()).replace(" ago", "")}` : "yes"}</td>
                <td class="row-actions">
                  <button type="button" onClick={() => void attempt(() => test(row.id), "the test was delivered").then(reload)}>test</button>
                  <Sure action="delete" run={() => remove(row.id)}>Nothing is sent to this address any more.</Sure>
                </td>
              </tr>
            ))}
          </tbody>
        </table></div>
      )}
      {secret && <div role="status"><p class="good">Deliveries are signed with this secret, shown once:</p><Copy text={secret} what="the secret" /></div>}
      <form class="toolbar" onSubmit={make} style={{ marginTop: "10px" }}>
        <label>Address <input name="url" type="url" required placeholder="the URL that gets a POST" /></label>
        <label>States <input name="states" placeholder="all, or succeeded, failed" /></label>
        <label>Tags <input name="tags" placeholder="all" class="short" /></label>
        <button aria-disabled={isBusy}>Add a webhook</button>
      </form>
    </section>
  );
}
