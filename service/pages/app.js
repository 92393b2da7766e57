// The jobs, and one job live. Everything from the service is put in as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const LINES = ["loss", "eval_loss"];
const POINTS = 2000;
const verbs = { pause: "Pause", resume: "Resume", cancel: "Cancel", delete: "Delete" };
let chosen = idInAddress();
let socket = null;
let points = {};
let drawing = false;

function idInAddress() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    // A hash that is not percent-encoded UTF-8, such as #%E0%A4%A, names no job.
    return "";
  }
}

// Asking ------------------------------------------------------------------------------------------------------------

async function ask(path, method = "GET") {
  const key = sessionStorage.getItem("footplate.key");
  const answer = await fetch(path, { method, headers: key ? { Authorization: `Bearer ${key}` } : {} });
  $("key").hidden = answer.status !== 401;
  const body = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw new Error(answer.status === 401 ? body.detail : [body.detail, body.hint].filter(Boolean).join("; "));
  return body;
}

async function tell(work) {
  try {
    await work();
    $("said").textContent = "";
  } catch (error) {
    $("said").textContent = error instanceof TypeError ? "The service does not answer. Trying again." : error.message;
  }
}

$("key").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("footplate.key", $("secret").value);
  $("secret").value = "";
  refresh();
  if (chosen) follow(chosen);
});

// The list ----------------------------------------------------------------------------------------------------------

function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

const title = (job) => job.name || `job ${job.id.slice(-8)}`;

function row(job) {
  const button = element("button");
  const share = job.progress && job.progress.max_steps ? `${Math.round((100 * job.progress.step) / job.progress.max_steps)} %` : "";
  button.append(
    element("span", title(job), "what"), element("span", job.state, `state ${job.state}`),
    element("span", new Date(job.created_at).toLocaleString(), "when"), element("span", share, "when"),
  );
  if (job.id === chosen) button.setAttribute("aria-current", "true");
  button.addEventListener("click", () => choose(job.id));
  const item = element("li");
  item.append(button);
  return item;
}

async function refresh() {
  await tell(async () => {
    const { data } = await ask("/jobs?limit=50");
    const held = document.activeElement && document.activeElement.closest("#jobs li");
    const place = held ? [...$("jobs").children].indexOf(held) : -1;
    $("jobs").replaceChildren(...data.map(row));
    if (place >= 0 && $("jobs").children[place]) $("jobs").children[place].firstChild.focus();
    $("none").hidden = data.length > 0;
    if (!chosen && data.length) choose((data.find((job) => job.state === "running") || data[0]).id);
    if (chosen) show(data.find((job) => job.id === chosen) || (await ask(`/jobs/${encodeURIComponent(chosen)}`)));
  });
}

// One job -----------------------------------------------------------------------------------------------------------

function choose(id) {
  chosen = id;
  history.replaceState(null, "", `#${encodeURIComponent(id)}`);
  follow(id);
  refresh();
}

function show(job) {
  $("job").hidden = false;
  $("name").textContent = title(job);
  $("state").textContent = job.state;
  $("state").className = `state ${job.state}`;
  $("why").textContent = job.message || job.reason.replaceAll("_", " ");
  const { step = 0, max_steps = 0, epoch, eta_s } = job.progress || {};
  $("progress").max = max_steps || 1;
  $("progress").value = step;
  const said = [`attempt ${job.attempt}`, job.node && `on ${job.node}`, max_steps && `step ${step} of ${max_steps}`];
  if (epoch !== undefined) said.push(`epoch ${number(epoch)}`);
  if (eta_s && job.state === "running") said.push(`${Math.ceil(eta_s)} s to go`);
  $("where").textContent = said.filter(Boolean).join(" · ");
  // These need words.
  const plain = job.actions.filter((one) => one !== "do" && one !== "fork");
  $("actions").replaceChildren(...plain.map((action) => verb(job, action)));
  $("metrics").replaceChildren(...Object.entries(job.metrics).map(([name, value]) => {
    const pair = element("div");
    pair.append(element("dt", name), element("dd", number(value)));
    pair.title = name;
    return pair;
  }));
  $("error").hidden = !job.error;
  $("error").textContent = job.error ? [job.error.message, job.error.hint, job.error.traceback].filter(Boolean).join("\n\n") : "";
  // A job that was resumed has more to tell.
  if (!socket && !["succeeded", "failed", "cancelled"].includes(job.state)) follow(job.id);
}

function verb(job, action) {
  const button = element("button", verbs[action] || action);
  button.addEventListener("click", async () => {
    button.disabled = true;
    const path = `/jobs/${job.id}`;
    await tell(() => (action === "delete" ? ask(path, "DELETE") : ask(`${path}/${action}`, "POST")));
    if (action === "delete") forget();
    refresh();
  });
  return button;
}

function forget() {
  chosen = "";
  history.replaceState(null, "", "/");
  if (socket) socket.close();
  socket = null;
  $("job").hidden = true;
}

// Its loss ----------------------------------------------------------------------------------------------------------

function follow(id) {
  if (socket) socket.close();
  points = Object.fromEntries(LINES.map((name) => [name, []]));
  draw();
  const key = sessionStorage.getItem("footplate.key");
  const address = `${location.origin.replace(/^http/, "ws")}/jobs/${encodeURIComponent(id)}/metrics`;
  const mine = new WebSocket(address, key ? ["footplate", `footplate.key.${key}`] : ["footplate"]);
  socket = mine;
  mine.addEventListener("message", (message) => {
    if (socket !== mine) return;
    const told = JSON.parse(message.data);
    for (const name of LINES) {
      if (typeof told[name] === "number" && told.step !== null) add(points[name], told.step, told[name]);
    }
    if (!drawing) requestAnimationFrame(draw);
    drawing = true;
  });
  mine.addEventListener("close", () => {
    if (socket === mine) socket = null;
  });
}

// A retried job goes back some steps: what it runs again replaces what it ran.
function add(line, step, value) {
  while (line.length && line[line.length - 1][0] >= step) line.pop();
  line.push([step, value]);
  if (line.length > 2 * POINTS) line.splice(0, line.length, ...line.filter((_, index) => index % 2));
}

function number(value, digits = 4) {
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) || Math.abs(value) >= 1000) return Math.round(value).toLocaleString();
  return String(Number(value.toPrecision(digits)));
}

function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function draw() {
  drawing = false;
  const lines = LINES.filter((name) => points[name].length);
  const all = lines.flatMap((name) => points[name]);
  if (!all.length) {
    $("curve").replaceChildren(svg("text", { x: 320, y: 130, "text-anchor": "middle" }, "No loss yet"));
    $("legend").replaceChildren();
    return;
  }
  const last = Math.max(...all.map(([step]) => step), 1);
  const low = Math.min(...all.map(([, value]) => value));
  const span = Math.max(...all.map(([, value]) => value)) - low || Math.abs(low) || 1;
  const x = (step) => 52 + (576 * step) / last;
  const y = (value) => 228 - (212 * (value - low)) / span;
  const parts = [0, 0.5, 1].flatMap((share) => [
    svg("line", { class: "grid", x1: 52, x2: 628, y1: 228 - 212 * share, y2: 228 - 212 * share }),
    svg("text", { x: 46, y: 232 - 212 * share, "text-anchor": "end" }, number(low + span * share, 3)),
    svg("text", { x: 52 + 576 * share, y: 248, "text-anchor": share === 1 ? "end" : "middle" }, number(Math.round(last * share))),
  ]);
  for (const name of lines) {
    const path = points[name].map(([step, value], index) => `${index ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`);
    parts.push(svg("path", { class: name, d: path.join("") }));
  }
  $("curve").replaceChildren(...parts);
  $("legend").replaceChildren(...lines.map((name) => element("span", `${name} ${number(points[name].at(-1)[1])}`, name)));
}

$("here").textContent = location.origin;
window.addEventListener("hashchange", () => {
  const id = idInAddress();
  if (id && id !== chosen) choose(id);
});
if (chosen) follow(chosen);
refresh();
setInterval(() => document.hidden || refresh(), 1500);
