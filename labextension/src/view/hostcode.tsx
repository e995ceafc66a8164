/** The mark of candidates that run host code: a letter and words, never colour alone. */
import type { JSX } from "preact";
import type { Node } from "./document";

/** The words that stand wherever such a candidate is shown. Python's twin is in `words.py`. */
export const HOST_CODE = "host code";
/** Where there is no room for words. */
export const LETTER = "H";
const WHY = "A torch extension: its host code can do anything that its process may. Judged and shown, never installed.";

/** Whether a candidate is a torch extension, the one kind in which host code runs. */
export function hasHostCode(node: Node | null | undefined): boolean {
  return node?.language === "cuda_extension";
}

/** What a candidate's source is written as. */
export function writtenAs({ language }: Pick<Node, "language">): string {
  return { cpp: "C++", cuda: "CUDA", cuda_extension: `a torch extension (${HOST_CODE})` }[language];
}

/** The mark as a word after what it marks; nothing for candidates with a launch plan. */
export function HostCode({ node }: { node: Node | null | undefined }): JSX.Element | null {
  if (!hasHostCode(node)) return null;
  return (
    <>
      {" "}
      <span class="kforge-host" title={WHY}>
        {HOST_CODE}
      </span>
    </>
  );
}

/** The same as a sentence. */
export function HostCodeNote({ node }: { node: Node }): JSX.Element | null {
  return hasHostCode(node) ? <p class="kforge-note">{WHY}</p> : null;
}
