/** What changed from one source to the next, line by line, with some lines around it. */
import { diffLines } from "diff";

export interface Line {
  kind: "same" | "gone" | "new" | "skip";
  text: string;
  /** Numbers of the line in the older and the newer source; null where it is not in one. */
  old: number | null;
  new: number | null;
}

const AROUND = 3;
const PATIENCE_MS = 400;

/** Lines in order, long equal stretches as one `skip`; null where they differ too much to tell soon. */
export function difference(older: string, newer: string): Line[] | null {
  const parts = diffLines(ended(older), ended(newer), { timeout: PATIENCE_MS });
  if (parts === undefined) return null;
  const lines: Line[] = [];
  let [a, b] = [1, 1];
  for (const part of parts) {
    const kind = part.added ? "new" : part.removed ? "gone" : "same";
    for (const text of part.value.replace(/\n$/, "").split("\n")) {
      lines.push({ kind, text, old: kind === "new" ? null : a++, new: kind === "gone" ? null : b++ });
    }
  }
  return shortened(lines);
}

/** How many lines went and came. */
export function counted(lines: readonly Line[]): { gone: number; new: number } {
  const of = (kind: Line["kind"]): number => lines.filter((line) => line.kind === kind).length;
  return { gone: of("gone"), new: of("new") };
}

function ended(text: string): string {
  return text.endsWith("\n") || text === "" ? text : `${text}\n`;
}

function shortened(lines: readonly Line[]): Line[] {
  const near = lines.map(() => false);
  lines.forEach((line, i) => {
    if (line.kind === "same") return;
    for (let j = Math.max(0, i - AROUND); j <= Math.min(lines.length - 1, i + AROUND); j += 1) near[j] = true;
  });
  const found: Line[] = [];
  lines.forEach((line, i) => {
    if (near[i] === true) found.push(line);
    else if (near[i - 1] !== false || i === 0) found.push({ kind: "skip", text: "⋯", old: null, new: null });
  });
  return found;
}
