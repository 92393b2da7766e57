/** What can be asked of a checkpoint, and how an answer is read. */

export const WAYS = ["chat", "text", "row"] as const;
export type Way = (typeof WAYS)[number];
export interface Message {
  role: "user" | "assistant";
  content: string;
}

/** The way that fits a job: language models continue a text, and all others take a row of their data. */
export const wayOf = (model: unknown): Way => (["hf/causal-lm", "hf/seq2seq"].includes(String(model)) ? "text" : "row");

/** Returns the text in one event of a streamed chat or completion, or null at its end. Throws the error that it brings. */
export function textOf(event: string): string | null {
  if (event === "[DONE]") return null;
  const said = JSON.parse(event);
  if (said.error) throw new Error(said.error.message);
  const choice = said.choices?.[0];
  return choice?.delta?.content ?? choice?.text ?? "";
}

/** Reads a row as somebody types it: JSON, or a text alone. Throws a sentence about JSON that cannot be read. */
export function readRow(typed: string): unknown {
  const text = typed.trim();
  if (!/^[[{]/.test(text)) return text;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The row is not JSON: ${error instanceof Error ? error.message : error}. For example {"text": "…"}.`);
  }
}

/** Adds a message of the user. A message before it that got no answer, because it was stopped or failed, is not sent again. */
export function withMessage(messages: Message[], content: string): Message[] {
  const answered = messages.at(-1)?.role === "user" ? messages.slice(0, -1) : messages;
  return [...answered, { role: "user", content }];
}
