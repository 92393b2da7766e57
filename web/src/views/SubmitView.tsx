/** A new job, or a fork or a copy of one: a form and the raw JSON, two views of one spec that the server checks while it is typed. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, type Problem, explain, inProject, request, storedKey } from "../api/client";
import { reconnections } from "../api/connection";
import type { Job, UploadedFile } from "../api/types";
import { asCommand, asCurl, asPython } from "../lib/commands";
import { type Field, type JsonObject, fieldsOf, mergePatch, nextName, problemsAt, setAt } from "../lib/form";
import { diff, flatten, showValue } from "../lib/flatten";
import { FIRST, TEMPLATES, isRecipe } from "../lib/templates";
import { attempt, jobs, keep, message } from "../model/jobs";
import { go, href, param, tableHref } from "../model/route";
import { Copy } from "../ui/Copy";
import { useOnce } from "../ui/once";
import { Waiting } from "../ui/Waiting";
import { FileChoice } from "./Files";
import { ComponentFields, type Described, FieldRow, SpecFields, textField } from "./submit/fields";
import { Upload, folderIn, upload } from "./submit/Upload";

type Catalogue = Record<string, Record<string, Described>>;
interface Answer {
  steps: number | null;
  placement: { waits: boolean; message: string };
  warnings?: { pointer: string; detail: string }[];
}

const TRAINING = ["max_steps", "num_train_epochs", "learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "logging_steps", "eval_strategy", "eval_steps", "save_steps", "seed"];
const RESOURCES = ["nodes", "gpus_per_node", "processes_per_node", "pool", "time_limit"];
const PAUSE_BEFORE_CHECK = 300;

const isSplit = (data: unknown): data is JsonObject => data !== null && typeof data === "object" && !("use" in (data as object));
const trainOf = (data: unknown) => (isSplit(data) ? data.train : data);
const withTrain = (data: unknown, train: unknown) => (isSplit(data) ? { ...data, train } : train);

interface Draft {
  spec: JsonObject;
  base: JsonObject | null;
  text: string;
  template: string;
}

/** What is typed and not yet submitted, by the job that is forked or copied. It is there again after a look at another view. */
const drafts = new Map<string, Draft>();

export function SubmitView() {
  const fork = param("fork");
  const source = fork || param("copy");
  const place = fork ? `fork ${fork}` : source;
  const draft = drafts.get(place);
  const [spec, setSpec] = useState<JsonObject>(draft?.spec ?? FIRST);
  const [base, setBase] = useState<JsonObject | null>(draft?.base ?? null);
  const [text, setText] = useState(draft?.text ?? "");
  const [missing, setMissing] = useState<string | null>(null);
  const [parseError, setParseError] = useState<string | null>(null);
  const [problems, setProblems] = useState<Problem[]>([]);
  const [answer, setAnswer] = useState<Answer | null>(null);
  const [catalogue, setCatalogue] = useState<Catalogue>({});
  const [newest, setNewest] = useState<UploadedFile | null>(null);
  const [fields, setFields] = useState<Record<string, Field[]>>({});
  const [template, setTemplate] = useState(draft?.template ?? "0");
  const [isOver, setOver] = useState(false);
  const [isSending, once] = useOnce();
  const turn = useRef(0);
  const isSubmitted = useRef(false);
  const folder = TEMPLATES[Number(template)]!.folder;

  if (!isSubmitted.current) drafts.set(place, { spec, base, text, template });
  const show = (next: JsonObject) => {
    setSpec(next);
    drafts.set(place, { spec: next, base, text, template });
    setText(JSON.stringify(next, null, 2));
    setParseError(null);
  };
  useEffect(() => {
    request<Catalogue>("/components").then(setCatalogue).catch(() => undefined);
    request<{ $defs: Record<string, Parameters<typeof fieldsOf>[0]> } & Parameters<typeof fieldsOf>[0]>("/schema/job")
      .then((schema) => setFields({ Job: fieldsOf(schema), TrainingArguments: fieldsOf(schema.$defs.TrainingArguments), Resources: fieldsOf(schema.$defs.Resources) }))
      .catch(() => undefined);
  }, [reconnections.value]);
  useEffect(() => {
    if (text) return;
    if (!source) return show(spec);
    const taken = new Set([...jobs.value.values()].map((job) => job.name));
    const named = ({ name, ...rest }: JsonObject) => ({ name: typeof name === "string" ? nextName(name, fork ? "fork" : "copy", taken) : null, ...rest });
    request<JsonObject>(`/jobs/${source}/spec`).then((found) => (setBase(fork ? found : null), show(named(found)))).catch((error) => setMissing(explain(error)));
  }, [source, reconnections.value]);
  useEffect(() => {
    if (parseError || !text) return;
    const mine = ++turn.current;
    const timer = setTimeout(async () => {
      try {
        const found = await request<Answer>("/jobs/validate", { method: "POST", body: spec, quiet: true });
        if (mine === turn.current) (setAnswer(found), setProblems([]));
      } catch (error) {
        if (mine !== turn.current) return;
        setAnswer(null);
        const isProblem = error instanceof ApiError && error.problems.length > 0;
        setProblems(isProblem ? error.problems : [{ pointer: "", code: "", detail: explain(error) }]);
      }
    }, PAUSE_BEFORE_CHECK);
    return () => clearTimeout(timer);
  }, [spec, text === "", parseError, reconnections.value]);

  const edit = (raw: string) => {
    setText(raw);
    try {
      const read: unknown = JSON.parse(raw);
      if (read === null || typeof read !== "object" || Array.isArray(read)) throw new Error("a spec is an object, such as {\"model\": \"toy/mlp\", \"data\": \"toy/regression\"}");
      setSpec(read as JsonObject);
      setParseError(null);
    } catch (error) {
      setParseError(explain(error));
    }
  };
  const change = (path: string[], value: unknown) => show(setAt(spec, path, value));
  // A file may take minutes on its way. The spec is changed as it is by then.
  const present = () => drafts.get(place)?.spec ?? spec;
  const trainOn = (id: string) => show(setAt(present(), ["data"], withTrain(present().data, id)));
  const submit = () =>
    attempt(async () => {
      const job = await request<Job>(fork ? `/jobs/${fork}/fork` : "/jobs", { method: "POST", body, headers: { "Idempotency-Key": key } });
      keep([job]);
      go(href(`jobs/${job.id}`));
      isSubmitted.current = true;
      drafts.delete(place);
    });
  const send = async (files: FileList) => {
    // The list is emptied once the event is over.
    for (const file of [...files]) {
      if (!(await upload(file, (stored) => (setNewest(stored), trainOn(stored.id)), (sha256) => show(setAt(present(), ["code", "bundle"], sha256))))) return;
    }
  };
  // A file that is dropped beside the form would open in place of the page, and the form would be lost.
  useEffect(() => {
    const hasFiles = ({ dataTransfer }: DragEvent) => dataTransfer!.types.includes("Files");
    const over = (event: DragEvent) => hasFiles(event) && (event.preventDefault(), setOver(true));
    const leave = () => setOver(false);
    const drop = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(false);
      const folder = folderIn(event.dataTransfer!);
      if (folder) message.value = { text: `${folder} is a folder. Drop a zip of its files in its place.`, isError: true };
      else void send(event.dataTransfer!.files);
    };
    const listening = new AbortController();
    const { signal } = listening;
    document.addEventListener("dragover", over, { signal });
    document.addEventListener("dragleave", leave, { signal });
    document.addEventListener("drop", drop, { signal });
    return () => listening.abort();
  });
  const title = jobs.value.get(source)?.name ?? source;
  const heading = fork ? "Fork a job" : source ? "Copy a job" : "New job";
  const body = fork && base ? { checkpoint: param("checkpoint", "latest"), patch: mergePatch(base, spec) } : spec;
  const sent = { method: "POST", path: inProject(fork ? `/jobs/${fork}/fork` : "/jobs"), body: JSON.stringify(body) };
  // The same spec has the same key, so that a request that is sent again makes no second job.
  const key = useMemo(randomKey, [sent.path, sent.body]);
  if (source && !text) return <Waiting title={heading}>{missing}</Waiting>;
  return (
    <article class={`submit ${isOver ? "over" : ""}`}>
      <h1 class="hidden">{heading}</h1>
      <p class="crumbs"><a href={tableHref()}>Jobs</a> / {fork ? `fork of ${title} from ${param("checkpoint") ? `checkpoint ${param("checkpoint")}` : "its newest checkpoint"}` : source ? `copy of ${title}` : "new"}</p>
      <div class="toolbar">
        {!source && (
          <label>
            Template <select value={template} onChange={(event) => (setTemplate(event.currentTarget.value), show(TEMPLATES[Number(event.currentTarget.value)]!.spec))}>
              {[...new Set(TEMPLATES.map((one) => one.group))].map((group) => (
                <optgroup key={group} label={group}>
                  {TEMPLATES.map((one, index) => one.group === group && <option key={one.title} value={String(index)}>{one.title}</option>)}
                </optgroup>
              ))}
            </select>
          </label>
        )}
        <Upload isOver={isOver} send={send} />
        <span class="end">{problems.length > 0 && <span class="error">{problems.length === 1 ? "1 problem" : `${problems.length} problems`}</span>}<button type="button" class="primary" disabled={problems.length > 0 || parseError !== null} aria-disabled={isSending} onClick={() => void once(submit)}>{fork ? "Fork" : "Submit"}</button></span>
      </div>
      {!source && folder && <p class="why">{isRecipe(spec) ? "This recipe needs files of yours: " : "A recipe of the repository: "}<code>examples/{folder}/README.md</code> says how to get them ready{"code" in spec && ", and its code is dropped here as a zip"}.</p>}
      <FileChoice newest={newest} onFile={trainOn} />
      <div class="columns">
        <form onSubmit={(event) => event.preventDefault()} aria-label="Spec as a form">
          <fieldset>
            <legend>Job</legend>
            <FieldRow field={textField("name")} value={spec.name} problems={problemsAt(problems, "/name")} onChange={(value) => change(["name"], value)} />
            <FieldRow field={textField("tags", "several with commas")} value={Array.isArray(spec.tags) ? spec.tags.join(", ") : spec.tags} problems={problemsAt(problems, "/tags")}
              onChange={(value) => change(["tags"], value === undefined ? undefined : String(value).split(",").map((tag) => tag.trim()).filter(Boolean))} />
            <FieldRow field={fields.Job?.find(({ name }) => name === "priority") ?? textField("priority")} value={spec.priority} problems={problemsAt(problems, "/priority")} onChange={(value) => change(["priority"], value)} />
          </fieldset>
          <ComponentFields title="Model" group={catalogue.models} value={spec.model} pointer="/model" problems={problems} onChange={(value) => change(["model"], value)} />
          <ComponentFields title="Training data" group={catalogue.data} value={trainOf(spec.data)} pointer="/data" problems={problems} onChange={(value) => change(["data"], withTrain(spec.data, value))} />
          <SpecFields title="Training" path="training" fields={fields.TrainingArguments} first={TRAINING} spec={spec} problems={problems} change={change} />
          <SpecFields title="Resources" path="resources" fields={fields.Resources} first={RESOURCES} spec={spec} problems={problems} change={change} />
        </form>
        <section aria-label="Spec as JSON">
          <textarea aria-label="Spec as JSON" spellcheck={false} value={text} onInput={(event) => edit(event.currentTarget.value)} />
          <div role="status" class="verdict">
            {parseError ? <p class="error">This is not a spec yet: {parseError}</p> : problems.length ? (
              <ul class="error">{problems.map((problem) => <li key={problem.pointer + problem.code}>{problem.pointer && <code>{problem.pointer}</code>} {problem.detail}{problem.hint && <em> {problem.hint}</em>}</li>)}</ul>
            ) : answer && (
              <p class="good">Valid{answer.steps ? `, ${answer.steps} steps` : ""}: {answer.placement.message}</p>
            )}
            {answer?.warnings?.map((warning) => <p key={warning.pointer} class="warning"><code>{warning.pointer}</code> {warning.detail}</p>)}
          </div>
          {fork && base && <Changes from={base} to={spec} />}
          <details class="api"><summary>The same from a terminal or a program</summary>
            <Copy what="as curl" text={asCurl(sent, location.origin, storedKey() !== null)} /><Copy what="as Python" text={asPython(sent, location.origin, storedKey() !== null)} /><Copy what="as a command" text={asCommand(sent)!} />
          </details>
        </section>
      </div>
    </article>
  );
}

/** Not crypto.randomUUID(), which browsers have only on https and on localhost. */
const randomKey = () => crypto.getRandomValues(new Uint32Array(4)).join("-");

/** What the fork changes of the job that it comes from. */
function Changes({ from, to }: { from: JsonObject; to: JsonObject }) {
  const rows = diff([flatten(from), flatten(to)]);
  if (rows.every(({ path }) => path === "name")) return <p class="why">Only the name is changed yet: the fork would continue as the job does.</p>;
  return (
    <ul class="changes" aria-label="Changes">
      {rows.map(({ path, values: [before, after] }) => <li key={path}><code>{path}</code> {showValue(before)} → {showValue(after)}</li>)}
    </ul>
  );
}
