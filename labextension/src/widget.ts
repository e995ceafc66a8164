/**
 * The anywidget host: a source over the widget model, and the view mounted on it.
 *
 * The kernel writes `doc` (the whole, when the page is opened), `changes`, `prompts` and `detail`; this
 * side writes `detail_request`, `whole_request` and `command`. No trait is written from both sides, so
 * neither can overwrite the other.
 */
import type { Prompt, RunSource } from "./source";
import { Reader } from "./view/deltas";
import type { Details, Node, RunDocument } from "./view/document";
import { mountRun } from "./view/mount";

/** What is used of anywidget's model. */
export interface WidgetModel {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  on(event: string, callback: () => void): void;
  off(event: string, callback: () => void): void;
  send(content: object): void;
}

/** A node's details, null where the kernel knows none, and the requests that they are newer than. */
interface Answer {
  n: readonly string[];
  details: Details | null;
}

type Answers = Record<string, Answer | undefined>;

const ANSWER_MS = 20_000;
/** A lost message is asked for no more often than this. */
const WHOLE_MS = 2_000;
const SHOWN = ["change:doc", "change:changes", "change:prompts"];

/** What has been put together of each model's messages: two views of one model share it. */
const READERS = new WeakMap<WidgetModel, Reader>();

function readerOf(model: WidgetModel): Reader {
  const reader = READERS.get(model) ?? new Reader();
  READERS.set(model, reader);
  return reader;
}

/** A source over the traits of one widget model. */
export function modelSource(model: WidgetModel): RunSource {
  const cache = new Map<string, { row: Node | undefined; details: Details }>();
  const page = Math.random().toString(36).slice(2);
  let sent = 0;

  const send = (trait: string, value: object): { n: string } => {
    sent += 1; // page and number make two equal requests two changes, also after a reload
    const numbered = { ...value, n: `${page}.${sent}` };
    model.set(trait, numbered);
    model.save_changes();
    return numbered;
  };

  /** A change waits until the kernel is done with the one before; a message does not. */
  const order = (value: object): void => model.send({ command: send("command", value) });

  const command = (name: string, target?: number): void =>
    order(target === undefined ? { name } : { name, target });

  const reader = readerOf(model);
  let asked = -Infinity;

  const snapshot = (): RunDocument | null => {
    reader.take(model.get("doc") ?? {});
    const changes = model.get("changes") ?? {};
    if (reader.take(changes) === "missing" && performance.now() - asked > WHOLE_MS) {
      asked = performance.now();
      send("whole_request", {});
    }
    return reader.document();
  };

  const rowOf = (nodeId: string): Node | undefined =>
    snapshot()?.nodes.find((node) => node.id === nodeId);

  /** Keeps details with the row that was known when they were asked for: a node may be timed again. */
  const keep = (nodeId: string, details: Details, row = rowOf(nodeId)): Details => {
    cache.set(nodeId, { row, details });
    return details;
  };

  const ask = (nodeId: string): Promise<Details | null> =>
    new Promise((resolve) => {
      const row = rowOf(nodeId);
      const finish = (details: Details | null): void => {
        clearTimeout(timer);
        model.off("change:detail", answered);
        resolve(details === null ? null : keep(nodeId, details, row));
      };
      const answered = (): void => {
        const found = (model.get("detail") as Answers)[nodeId];
        if (found !== undefined && meets(found.n, number)) finish(found.details);
      };
      const timer = setTimeout(() => finish(null), ANSWER_MS);
      model.on("change:detail", answered);
      const number = send("detail_request", { id: nodeId }).n;
    });

  return {
    snapshot,
    subscribe: (changed) => {
      for (const event of SHOWN) model.on(event, changed);
      return () => {
        for (const event of SHOWN) model.off(event, changed);
      };
    },
    detail: (nodeId) => {
      const held = cache.get(nodeId);
      if (held !== undefined) {
        return sameJudgement(held.row, rowOf(nodeId)) ? Promise.resolve(held.details) : ask(nodeId);
      }
      const known = snapshot()?.details[nodeId];
      return known === undefined ? ask(nodeId) : Promise.resolve(keep(nodeId, known));
    },
    stop: (target) => command("stop", target),
    pause: (target) => command("pause", target),
    resume: (target) => command("resume", target),
    prompts: () => (model.get("prompts") as Prompt[] | undefined) ?? [],
    answer: (id, text) => order({ name: "answer", id, text }),
  };
}

/** Whether one of these numbers is the request's own, or that of a later one of the same page. */
function meets(answered: readonly string[], asked: string): boolean {
  const [page, count] = parted(asked);
  return answered.map(parted).some(([of, n]) => of === page && n >= count);
}

/** `page.count`, as it is made above. */
function parted(number: string): [string, number] {
  const dot = number.lastIndexOf(".");
  return [number.slice(0, dot), Number(number.slice(dot + 1))];
}

/** Whether a node is judged as it was; visits come and go without new details. */
function sameJudgement(a: Node | undefined, b: Node | undefined): boolean {
  return a === b || (a?.verdict === b?.verdict && a?.reason === b?.reason && a?.ours_us === b?.ours_us);
}

function render({ model, el }: { model: WidgetModel; el: HTMLElement }): () => void {
  return mountRun(el, modelSource(model));
}

export default { render };
