/** JSON with keys, strings and numbers told apart by colour. Text only, never markup. */

const TOKEN = /("(?:\\.|[^"\\])*")(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|\b(true|false|null)\b/g;

export function JsonText({ value }: { value: unknown }) {
  const text = JSON.stringify(value, null, 2);
  const parts: preact.JSX.Element[] = [];
  let end = 0;
  for (const match of text.matchAll(TOKEN)) {
    const kind = match[2] ? "key" : match[1] ? "string" : match[3] ? "number" : "word";
    parts.push(<>{text.slice(end, match.index)}<span class={`json-${kind}`}>{match[1] ?? match[0]}</span>{match[2] ?? ""}</>);
    end = match.index + match[0].length;
  }
  return <pre class="json" tabIndex={0}>{parts}{text.slice(end)}</pre>;
}
