/** The page: header, login, message, and the view that the address names. */

import { computed, effect } from "@preact/signals";
import { render } from "preact";
import { lazy, Suspense } from "preact/compat";
import { useEffect, useState } from "preact/hooks";
import { needsKey, storeKey, storedKey } from "./api/client";
import { isOnline, lastHeard } from "./api/connection";
import { formatDuration, tabTitle } from "./lib/format";
import { jobs, listedProject, message, readOnly, refreshNow, startPolling } from "./model/jobs";
import { go, href, param, route, setParams } from "./model/route";
import { focused, installKeys, keepFocus, KEYS } from "./ui/keyboard";
import { Menu } from "./ui/Menu";
import { setTheme, theme, THEMES } from "./ui/theme";
import { showAllOfX } from "./ui/zoom";
import { Waiting } from "./ui/Waiting";
import { JobsView } from "./views/JobsView";
import "./style.css";

const ANSWER_MS = 2000;

/** A part of the page that cannot be loaded is gone since an upgrade, or the service is down. The page is loaded again once the service answers. */
async function orReload<T>(part: Promise<T>): Promise<T> {
  try {
    return await part;
  } catch {
    do await new Promise((done) => setTimeout(done, ANSWER_MS));
    while (!(await fetch("/livez").catch(() => null))?.ok);
    location.reload();
    return new Promise(() => undefined);
  }
}

// The first view loads what it needs; the others follow when they are opened.
const JobView = lazy(() => orReload(import("./views/JobView").then((module) => module.JobView)));
const CompareView = lazy(() => orReload(import("./views/CompareView").then((module) => module.CompareView)));
const SubmitView = lazy(() => orReload(import("./views/SubmitView").then((module) => module.SubmitView)));
const TryView = lazy(() => orReload(import("./views/TryView").then((module) => module.TryView)));
const ClusterView = lazy(() => orReload(import("./views/ClusterView").then((module) => module.ClusterView)));

const place = computed(() => `${route.value.view} ${route.value.id}`);

function App() {
  const { view, id } = route.value;
  return (
    <>
      <header class="top">
        <a class="brand" href={href("jobs")}><img src="/dashboard/icon.svg" alt="" />Footplate</a>
        <nav aria-label="Main">
          <a href={href("jobs")} aria-current={["jobs", "job", "compare"].includes(view) ? "page" : undefined}>Jobs</a>
          {!readOnly.value && (
            <>
              <a href={href("submit")} aria-current={view === "submit" ? "page" : undefined}>New</a>
              <a href={href("try")} aria-current={view === "try" ? "page" : undefined}>Try</a>
            </>
          )}
          <a href={href("cluster")} aria-current={view === "cluster" ? "page" : undefined}>Cluster</a>
          <a href="/docs">API</a>
        </nav>
        <Project />
        <Menu label="Theme" class="right">
          {THEMES.map((name) => (
            <label key={name}><input type="radio" name="theme" checked={theme.value === name} onChange={() => setTheme(name)} /> {name === "auto" ? "as the system has it" : name}</label>
          ))}
          <p><button type="button" class="quiet" onClick={() => setParams({ help: "1" })}>Keyboard <kbd>?</kbd></button></p>
        </Menu>
        {storedKey() && <button type="button" onClick={() => (storeKey(null), location.reload())}>Log out</button>}
      </header>
      <Connection />
      {message.value && (
        <p class={`message ${message.value.isError ? "error" : "good"}`} role="status">
          {message.value.text} <button type="button" aria-label="Close message" onClick={() => (message.value = null)}>×</button>
        </p>
      )}
      <main>
        {needsKey.value ? <Login /> : (
          <Suspense fallback={<Waiting title="Loading" />}>
            {view === "jobs" && <JobsView />}
            {view === "job" && id && <JobView id={id} key={`${param("project")} ${id}`} />}
            {view === "compare" && <CompareView />}
            {readOnly.value && ["submit", "try"].includes(view) ? <Waiting title="Read only">{readOnly.value}</Waiting> : (
              <>
                {view === "submit" && <SubmitView key={`${param("fork")} ${param("copy")}`} />}
                {view === "try" && <TryView />}
              </>
            )}
            {view === "cluster" && <ClusterView key={param("project")} />}
          </Suspense>
        )}
      </main>
      <Help />
    </>
  );
}

function Login() {
  const [secret, setSecret] = useState("");
  const [isKey, setIsKey] = useState(true);
  const use = (event: Event) => {
    event.preventDefault();
    // A browser refuses to send anything else in a header.
    const isSendable = /^[\x20-\x7e]+$/.test(secret.trim());
    setIsKey(isSendable);
    if (!isSendable) return;
    storeKey(secret.trim());
    message.value = null;
    void refreshNow();
    go(location.hash || href("jobs"));
  };
  return (
    <form class="login" onSubmit={use}>
      <h1>This service needs a key</h1>
      <label>Key <input type="password" autocomplete="off" ref={focused} required value={secret} onInput={(event) => setSecret(event.currentTarget.value)} /></label>
      <button class="primary">Log in</button>
      <p>The key stays in this tab and is gone when the tab is closed. An administrator makes one with <code>footplate keys create</code>.</p>
      {!isKey && <p class="error" role="alert">This is not a key. A key has letters, digits and signs of plain ASCII only. Copy it again.</p>}
      {isKey && storedKey() && <p class="error" role="alert">The service does not accept the key that this tab has.</p>}
    </form>
  );
}

/** Says how old the data is while the service is unreachable. */
function Connection() {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((turn) => turn + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  if (isOnline.value) return null;
  const age = formatDuration((Date.now() - lastHeard.value) / 1000);
  return <p class="offline" role="alert">The service is unreachable. This data is {age} old. The page reconnects by itself.</p>;
}

/** The project that is looked at. A key of one project has only that one, and the service says so. */
function Project() {
  const project = param("project");
  const [typed, setTyped] = useState(project);
  useEffect(() => setTyped(project), [project]);
  const change = (event: Event) => {
    event.preventDefault();
    go(`#/jobs${typed.trim() ? `?project=${encodeURIComponent(typed.trim())}` : ""}`);
    message.value = null;
  };
  return (
    <Menu label={`Project ${project || listedProject.value}`} class="right">
      <form onSubmit={change}>
        <label>Project <input value={typed} placeholder="the key's own" onInput={(event) => setTyped(event.currentTarget.value)} /></label>
        <button>Show</button>
      </form>
      <p><small>A key for every project (<code>*</code>) sees one at a time. Empty is the key's own, or “default”.</small></p>
    </Menu>
  );
}

function Help() {
  if (param("help") !== "1") return null;
  return (
    <dialog open class="help" aria-label="Keyboard">
      <h2>Keyboard</h2>
      <button type="button" class="quiet" aria-label="Close keyboard help" onClick={() => setParams({ help: null })} style={{ position: "absolute", top: "8px", right: "8px" }}>×</button>
      <dl>{KEYS.map(([key, meaning]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{meaning}</dd></div>)}</dl>
    </dialog>
  );
}

// A message belongs to the view that it was written on, and so does the part of x that its charts show.
effect(() => {
  void place.value;
  message.value = null;
  showAllOfX();
});
effect(() => {
  document.title = tabTitle(route.value.view, jobs.value.get(route.value.id ?? ""));
});
startPolling();
installKeys();
keepFocus();
// In a task of its own, because reading and running this script takes as long as drawing the first view.
setTimeout(() => render(<App />, document.getElementById("app")!));
