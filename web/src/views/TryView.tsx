/** Two checkpoints side by side on one prompt: a chat, a text to continue, or a row of the job's own task. */

import { useEffect, useRef, useState } from "preact/hooks";
import { events, explain, jobPath, request } from "../api/client";
import type { Job } from "../api/types";
import { type Message, type Way, WAYS, readRow, textOf, wayOf, withMessage } from "../lib/answers";
import { reasonOf } from "../lib/columns";
import { jobTitle } from "../lib/format";
import { detailsVersion, needSpec, specOf } from "../model/details";
import { isFinal, jobs, listed, refreshJob } from "../model/jobs";
import { href, param, setParams } from "../model/route";
import { JsonText } from "../ui/Json";

const SIDES = ["a", "b"] as const;
const MEANING: Record<Way, string> = {
  chat: "A message. The tokenizer's chat template makes the prompt, and the conversation goes on.",
  text: "A text, which the model continues.",
  row: "A row with the columns of the job's data, as JSON, or a text alone.",
};

interface Asked {
  number: number;
  way: Way;
  prompt: string;
  temperature: number;
  maxTokens: number;
}

export function TryView() {
  void detailsVersion.value;
  const first = param("a").split(":")[0]!;
  useEffect(() => {
    if (first) needSpec(first);
  }, [first]);
  const chosen = WAYS.find((way) => way === param("way"));
  const way = chosen ?? (first && specOf(first) ? wayOf(specOf(first)!.get("model.use")) : "text");
  const [prompt, setPrompt] = useState("");
  const [temperature, setTemperature] = useState("0");
  const [maxTokens, setMaxTokens] = useState("100");
  const [asked, setAsked] = useState<Asked | null>(null);
  const send = (event: Event) => {
    event.preventDefault();
    setAsked({ number: (asked?.number ?? 0) + 1, way, prompt, temperature: Number(temperature), maxTokens: Number(maxTokens) });
  };
  return (
    <article>
      <h1>Try a checkpoint</h1>
      <form onSubmit={send}>
        <div class="toolbar" role="group" aria-label="What to ask">
          {WAYS.map((name) => (
            <label key={name} class="toggle"><input type="radio" name="way" checked={way === name} onChange={() => setParams({ way: name })} /> {name}</label>
          ))}
          {way !== "row" && (
            <>
              <label>Temperature <input class="short" type="number" min="0" max="2" step="0.1" value={temperature} onInput={(event) => setTemperature(event.currentTarget.value)} /></label>
              <label>Tokens <input class="short" type="number" min="1" value={maxTokens} onInput={(event) => setMaxTokens(event.currentTarget.value)} /></label>
            </>
          )}
        </div>
        <label>{MEANING[way]}
          <textarea class="small" required value={prompt} onInput={(event) => setPrompt(event.currentTarget.value)}
            onKeyDown={(event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(event); }} />
        </label>
        <p><button class="primary" disabled={!param("a")}>Ask</button> <small>or <kbd>Ctrl</kbd> <kbd>Enter</kbd>. The first question loads the checkpoint on a node, where it holds a slot until nobody has asked for a while.</small></p>
      </form>
      <div class="columns">
        {SIDES.map((side) => <Side key={side} side={side} asked={asked} />)}
      </div>
    </article>
  );
}

/** One checkpoint and its answers. */
function Side({ side, asked }: { side: "a" | "b"; asked: Asked | null }) {
  const [id = "", checkpoint = ""] = param(side).split(":");
  const [messages, setMessages] = useState<Message[]>([]);
  const [answer, setAnswer] = useState<unknown>(null);
  const [state, setState] = useState<"idle" | "asking" | "done">("idle");
  const [problem, setProblem] = useState<string | null>(null);
  const running = useRef<AbortController | null>(null);
  const choose = (job: string, which: string) => setParams({ [side]: job ? `${job}${which && `:${which}`}` : null });
  // The answers of one checkpoint do not stand under another.
  useEffect(() => {
    setMessages([]);
    setAnswer(null);
    setState("idle");
    setProblem(null);
    return () => {
      running.current?.abort();
      running.current = null;
    };
  }, [id, checkpoint]);
  useEffect(() => {
    if (asked && id) void ask(asked);
  }, [asked?.number]);

  const ask = async ({ way, prompt, temperature, maxTokens }: Asked) => {
    running.current?.abort();
    const control = (running.current = new AbortController());
    const isCurrent = () => running.current === control;
    setState("asking");
    setProblem(null);
    setAnswer("");
    const conversation: Message[] = way === "chat" ? withMessage(messages, prompt) : [];
    if (way === "chat") setMessages(conversation);
    try {
      if (way === "row") {
        const body = { inputs: [readRow(prompt)], checkpoint: checkpoint || null };
        const { data } = await request<{ data: unknown[] }>(`${jobPath(id)}/predict`, { method: "POST", body, signal: control.signal });
        if (isCurrent()) setAnswer(data[0]);
      } else {
        const question = way === "chat" ? { messages: conversation } : { prompt };
        const body = { model: checkpoint ? `${id}:${checkpoint}` : id, ...question, temperature, max_tokens: maxTokens, stream: true };
        let text = "";
        for await (const event of events(way === "chat" ? "/v1/chat/completions" : "/v1/completions", body, control.signal)) {
          text += textOf(event) ?? "";
          if (isCurrent()) setAnswer(text);
        }
        if (isCurrent() && way === "chat") {
          setMessages([...conversation, { role: "assistant", content: text }]);
          setAnswer("");
        }
      }
    } catch (error) {
      if (isCurrent() && !control.signal.aborted) setProblem(explain(error));
    }
    if (isCurrent()) setState("done");
  };

  const isShown = asked !== null && id !== "";
  return (
    <section aria-label={side === "a" ? "First checkpoint" : "Second checkpoint"}>
      <Chooser side={side} id={id} checkpoint={checkpoint} choose={choose} />
      {messages.length > 0 && (
        <>
          <ol class="chat">{messages.map((message, index) => <li key={index} class={message.role}><small>{message.role}</small> {message.content}</li>)}</ol>
          <button type="button" class="quiet" onClick={() => setMessages([])}>New conversation</button>
        </>
      )}
      {isShown && typeof answer === "string" && (answer || state === "asking") && <pre class="answer" aria-live="polite">{answer || "…"}</pre>}
      {isShown && answer !== null && typeof answer !== "string" && <JsonText value={answer} />}
      {state === "asking" && <button type="button" onClick={() => { running.current?.abort(); setState("done"); }}>Stop</button>}
      {state === "asking" && !answer && <Session id={id} checkpoint={checkpoint} />}
      {problem && <p class="error" role="alert">{problem}</p>}
    </section>
  );
}

/** What an answer waits for: the session, a job that loads the checkpoint, may wait for a slot itself. */
function Session({ id, checkpoint }: { id: string; checkpoint: string }) {
  const session = [...jobs.value.values()].find((job) => job.metadata.of === id && job.metadata.checkpoint === (checkpoint || "latest") && !isFinal(job));
  if (!session) return null;
  return <p class="why">Waits for its session, <a href={href(`jobs/${session.id}`)}>{jobTitle(session)}</a>: {session.state}{session.state !== "running" && `, ${reasonOf(session)}`}.</p>;
}

interface Saved {
  id: string;
  step: number;
  status: string;
  is_best: boolean;
}

/** Chooses a job that has trained, and one of its checkpoints. */
function Chooser({ side, id, checkpoint, choose }: { side: string; id: string; checkpoint: string; choose: (job: string, checkpoint: string) => void }) {
  const [saved, setSaved] = useState<Saved[]>([]);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    setSaved([]);
    setProblem(null);
    if (!id) return;
    let isShown = true;
    // The job may be older than those of the table. The request for its checkpoints says what is wrong.
    refreshJob(id).catch(() => undefined);
    request<{ data: Saved[] }>(`${jobPath(id)}/checkpoints`).then(({ data }) => isShown && setSaved(data), (error) => isShown && setProblem(explain(error)));
    return () => void (isShown = false);
  }, [id]);
  const trained = listed.value.map((other) => jobs.value.get(other)).filter((job): job is Job => job !== undefined && job.attempt > 0 && !job.external).slice(0, 200);
  const known = jobs.value.get(id);
  const offered = known && !trained.includes(known) ? [known, ...trained] : trained;
  return (
    <div class="toolbar">
      <label>Job <select value={id} onChange={(event) => choose(event.currentTarget.value, "")}>
        <option value="">{side === "a" ? "choose one" : "none"}</option>
        {offered.map((job) => <option key={job.id} value={job.id}>{jobTitle(job)}</option>)}
      </select></label>
      {id && (
        <label>Checkpoint <select value={checkpoint} onChange={(event) => choose(id, event.currentTarget.value)}>
          <option value="">its final model{known && !isFinal(known) && " so far"}</option>
          {saved.filter(({ status }) => status === "committed").map((one) => <option key={one.id} value={one.id}>step {one.step}{one.is_best ? ", best" : ""}</option>)}
        </select></label>
      )}
      {id && <a href={href(`jobs/${id}`)}>its page</a>}
      {problem && <p class="error" role="alert">{problem}</p>}
    </div>
  );
}
