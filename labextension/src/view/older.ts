/**
 * Documents of older versions, with what they could not say left empty.
 *
 * A saved notebook or a file may hold one, and no kernel has brought it to today's shape. Python's
 * twin is `kforge_nb/store/upgrade.py`; nothing that a document says is changed.
 */
import type { Cost, RunDocument } from "./document";

const NO_CALL: Partial<Cost> = {
  tokens_cached: 0,
  tokens_reasoning: 0,
  estimated: false,
  model: "",
  prompt: "",
  purpose: "",
  state: "done",
  problem: "",
};

/** The document in the newest schema; one that is new already is returned as it is. */
export function filled(document: RunDocument): RunDocument {
  if ((document.schema as string) !== "kforge.run/1") return document;
  return {
    ...document,
    progress: { ...{ paused: false, prompts: 0, calls: [] }, ...document.progress },
    costs: document.costs.map((cost) => ({ ...NO_CALL, ...cost })),
  };
}
