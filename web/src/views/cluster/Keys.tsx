/** The keys of the service, for an administrator. */

import { useState } from "preact/hooks";
import { request, storedKey } from "../../api/client";
import { formatAge } from "../../lib/format";
import { attempt } from "../../model/jobs";
import { Copy } from "../../ui/Copy";
import { useOnce } from "../../ui/once";
import { Sure } from "../../ui/Sure";
import { usePolled } from "./polled";

interface Key {
  id: string;
  prefix: string;
  name: string;
  project: string;
  scopes: string[];
  last_used_at: string | null;
}

export function Keys() {
  const { rows, reload } = usePolled<Key>("/keys", 30);
  const [secret, setSecret] = useState<string | null>(null);
  const [isBusy, once] = useOnce();
  // A key without the scope `admin` may not see keys: this part is then left out. One that was shown stays during an outage.
  if (rows === null) return null;
  const isOpen = storedKey() === null;
  const make = (event: Event) => {
    event.preventDefault();
    const element = event.currentTarget as HTMLFormElement;
    const form = new FormData(element);
    const body = { name: String(form.get("name")), project: String(form.get("project") || "default"), scopes: form.getAll("scope").map(String) };
    void once(() => attempt(async () => {
      setSecret((await request<{ key: string }>("/keys", { method: "POST", body })).key);
      element.reset();
    }).then(reload));
  };
  const remove = (row: Key) => {
    setSecret(null);
    void attempt(() => request(`/keys/${row.id}`, { method: "DELETE" }), `key ${row.name} is deleted`).then(reload);
  };
  return (
    <section aria-label="Keys">
      <h2>Keys</h2>
      {rows.length === 0 ? <p class="empty">{isOpen ? <>This service works without keys: everybody who reaches it may do everything. Start it with <code>FOOTPLATE_API_KEY</code> set, and create the other keys here with that key.</> : "No key has been made."}</p> : (
        <div class="wide" tabIndex={0}><table class="plain stack">
          <thead><tr><th scope="col">Name</th><th scope="col">Begins with</th><th scope="col">Project</th><th scope="col">Scopes</th><th scope="col">Last used</th><th scope="col">Actions</th></tr></thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.id}>
                <td><b>{row.name}</b></td><td><code>{row.prefix}</code></td><td data-title="project">{row.project}</td><td>{row.scopes.join(", ")}</td>
                <td data-title="used">{row.last_used_at ? formatAge(row.last_used_at, Date.now()) : "never"}</td>
                <td class="row-actions"><Sure action="delete" run={() => remove(row)}>Whoever uses this key is refused from now on.</Sure></td>
              </tr>
            ))}
          </tbody>
        </table></div>
      )}
      {secret && <div role="status"><p class="good">The new key, shown once:</p><Copy text={secret} what="the key" /></div>}
      {!isOpen && <form class="toolbar" onSubmit={make} style={{ marginTop: "10px" }}>
        <label>Name <input name="name" required /></label>
        <label>Project <input name="project" placeholder="default" class="short" /></label>
        {["read", "submit", "code", "admin"].map((scope) => <label class="toggle" key={scope}><input type="checkbox" name="scope" value={scope} defaultChecked={scope === "read" || scope === "submit"} /> {scope}</label>)}
        <button aria-disabled={isBusy}>Make a key</button>
      </form>}
    </section>
  );
}
