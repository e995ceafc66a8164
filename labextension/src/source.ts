/**
 * The seam between the view and whatever holds a run: a widget model, a saved document, a page.
 * The view knows this interface and the document's types, nothing else.
 */
import type { Details, RunDocument } from "./view/document";

/** A prompt that waits for an answer from a chat window; `note` says why an earlier one was of no use. */
export interface Prompt {
  id: string;
  target: number;
  name: string;
  action: string;
  text: string;
  note: string;
}

export interface RunSource {
  /** The newest document; null until the first one has come. */
  snapshot(): RunDocument | null;
  /** Calls back after each new snapshot; returns a function that ends the subscription. */
  subscribe(changed: () => void): () => void;
  /** Source, plan, log and figures of one node; null where they are not to be had. */
  detail(nodeId: string): Promise<Details | null>;
  /** Asks for the run, or for one target, to end after what is being judged. Absent where nothing can be stopped. */
  stop?(target?: number): void;
  /** Asks for the run, or for one target, to be held. Absent where it cannot. */
  pause?(target?: number): void;
  /** Lets what is held go on. */
  resume?(target?: number): void;
  /** Prompts that wait for the user. Absent where none can be answered. */
  prompts?(): readonly Prompt[];
  /** Brings the answer to a prompt back. */
  answer?(promptId: string, text: string): void;
  /** Is told which node's details are on the screen, for hosts with a menu of their own. */
  selected?(nodeId: string | null): void;
}

/** A source over one finished document, for saved runs and pages. */
export function fixedSource(document: RunDocument): RunSource {
  return {
    snapshot: () => document,
    subscribe: () => () => undefined,
    detail: (nodeId) => Promise.resolve(document.details[nodeId] ?? null),
  };
}
