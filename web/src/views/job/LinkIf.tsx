/** A link that looks like a button, or a button that cannot be used and says why. */
export function LinkIf({ text, to, meaning, offer }: { text: string; to: string; meaning: string; offer: { why: string | null } | undefined }) {
  if (!offer) return null;
  if (offer.why) return <button type="button" disabled title={offer.why}>{text}</button>;
  return <a class="button" title={meaning} href={to}>{text}</a>;
}
