/** How each verdict looks: a word, a tone and a shape, so that colour is never the only sign. */
import type { Verdict } from "./document";

export type Tone = "good" | "quiet" | "warn" | "bad";
export type Shape = "disc" | "ring" | "square" | "cross" | "triangle";

export interface Look {
  word: string;
  tone: Tone;
  shape: Shape;
}

const LOOKS: Record<Verdict, Look> = {
  accepted: { word: "accepted", tone: "good", shape: "disc" },
  slower: { word: "slower", tone: "quiet", shape: "square" },
  undecided: { word: "undecided", tone: "quiet", shape: "ring" },
  wrong: { word: "wrong", tone: "bad", shape: "cross" },
  compile_failed: { word: "does not compile", tone: "bad", shape: "cross" },
  crashed: { word: "crashed", tone: "bad", shape: "cross" },
  timed_out: { word: "timed out", tone: "bad", shape: "cross" },
  suspicious: { word: "suspicious", tone: "warn", shape: "triangle" },
  wrapper: { word: "wrapper", tone: "warn", shape: "triangle" },
  refused: { word: "refused", tone: "warn", shape: "triangle" },
  weak_task: { word: "weak task", tone: "warn", shape: "triangle" },
};

/** The look of a verdict. */
export function look(verdict: Verdict): Look {
  return LOOKS[verdict];
}

/** Whether the candidate computed the right thing. */
export function correct(verdict: Verdict): boolean {
  return verdict === "accepted" || verdict === "slower" || verdict === "undecided";
}
