/** Text to paste elsewhere, with a button that copies it. */

import { useState } from "preact/hooks";

export function Copy({ text, what }: { text: string; what: string }) {
  const [isCopied, setCopied] = useState(false);
  // Without a secure origin a browser has no clipboard: the text is then selected instead.
  const copy = (event: MouseEvent) => {
    const block = (event.currentTarget as HTMLElement).nextElementSibling!;
    if (navigator.clipboard) void navigator.clipboard.writeText(text).then(() => setCopied(true));
    else getSelection()?.selectAllChildren(block);
  };
  return (
    <div class="copy">
      <button type="button" onClick={copy} onBlur={() => setCopied(false)} aria-label={`Copy ${what}`}>{isCopied ? "copied" : "copy"}</button>
      <pre tabIndex={0}>{text}</pre>
    </div>
  );
}
