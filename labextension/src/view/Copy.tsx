/** A button that puts a text on the clipboard and says whether it did. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";

export function Copy({ what, text }: { what: string; text: string }): JSX.Element {
  const [said, setSaid] = useState("");
  const copy = (): void => {
    void copied(text).then((done) => setSaid(done ? "copied" : "not copied: select the text"));
  };
  return (
    <span class="kforge-copy">
      <span class="kforge-note" role="status">
        {said}
      </span>{" "}
      <button type="button" onClick={copy}>
        Copy {what}
      </button>
    </span>
  );
}

/** Whether a text is in the clipboard now; pages without a secure context have none. */
export async function copied(text: string): Promise<boolean> {
  const clipboard = (navigator as Partial<Navigator>).clipboard;
  if (clipboard === undefined) return false;
  return clipboard.writeText(text).then(
    () => true,
    () => false,
  );
}
