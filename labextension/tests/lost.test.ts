/** Live views whose kernel is gone: which of them are mended, and what of the notebook changes. */
import { beforeEach, expect, test, vi } from "vitest";

vi.mock("@jupyterlab/notebook", () => ({ INotebookTracker: {} }));

import lost from "../src/lab/lost";
import { failed, withoutWidget } from "../src/lab/mending";

const RUN = "application/vnd.kforge.run+json";
const WIDGET = "application/vnd.jupyter.widget-view+json";
const ERROR = "Error displaying widget: model not found";

type Data = Record<string, unknown>;
const live = (model: string): Data => ({ [RUN]: { id: `run-${model}` }, [WIDGET]: { model_id: model } });

interface Piece {
  node: HTMLElement;
  hide: () => void;
}

/** One notebook of one cell, as far as the plugin knows JupyterLab. */
class Notebook {
  outputs: Data[];
  node = document.createElement("div");
  editor = document.createElement("div");
  rendered: Data[] = [];
  comms: Record<string, object> | null = null;
  asked = 0;
  save: (state: string) => void = () => undefined;
  change: () => void = () => undefined;
  private readonly children: { node: HTMLElement; widgets: Piece[]; insertWidget: (at: number, piece: Piece) => void }[];

  constructor(...outputs: Data[]) {
    this.outputs = outputs;
    this.node.append(this.editor);
    this.children = outputs.map(() => {
      const node = document.createElement("div");
      node.className = "jp-OutputArea-child";
      const widgets = [piece()];
      node.append(...widgets.map((one) => one.node));
      this.node.append(node);
      return { node, widgets, insertWidget: (at: number, one: Piece) => void widgets.splice(at, 0, one) };
    });
    document.body.append(this.node);
  }

  /** The widget manager's error in one output. */
  fail(index: number): void {
    const place = this.children[index]?.widgets[0]?.node;
    if (place !== undefined) place.textContent = ERROR;
    place?.classList.add("jupyter-widgets");
  }

  kernel(): object | null {
    if (this.comms === null) return null;
    return {
      requestCommInfo: () => {
        this.asked += 1;
        return Promise.resolve({ content: { status: "ok", comms: this.comms } });
      },
    };
  }

  /** Which children show something else than the widget manager's place. */
  shown(): number[] {
    return this.children.flatMap((child, n) => (child.widgets.length > 1 ? [n] : []));
  }

  panel(): object {
    const outputs = {
      length: this.outputs.length,
      get: (at: number) => ({ toJSON: () => ({ data: this.outputs[at] }), metadata: {}, trusted: true }),
      set: (at: number, output: { data: Data }) => {
        this.outputs[at] = output.data;
      },
    };
    const rendermime = {
      createModel: (model: { data: Data }) => model,
      preferredMimeType: (data: Data) => Object.keys(data)[0],
      createRenderer: () => ({
        ...piece(),
        addClass: () => undefined,
        renderModel: ({ data }: { data: Data }) => Promise.resolve(this.rendered.push(data)),
      }),
    };
    const model = { type: "code", outputs };
    const outputArea = { widgets: this.children, model: outputs, rendermime };
    return {
      node: this.node,
      isDisposed: false,
      disposed: { connect: () => undefined },
      content: { widgets: [{ node: this.node, model, outputArea }], model: { cells: [model] } },
      context: {
        saveState: {
          connect: (hear: (_: null, state: string) => void) => {
            this.save = (state) => hear(null, state);
          },
        },
      },
      sessionContext: {
        ready: Promise.resolve(),
        session: { kernel: this.kernel() },
        kernelChanged: {
          connect: (hear: (_: null, change: object) => void) => {
            this.change = () => hear(null, { newValue: this.kernel() });
          },
        },
      },
    };
  }

  open(): this {
    const tracker = { forEach: (each: (panel: object) => void) => each(this.panel()), widgetAdded: { connect: () => undefined } };
    void lost.activate(null as never, tracker);
    return this;
  }
}

function piece(): Piece {
  return { node: document.createElement("div"), hide: vi.fn() };
}

/** Until observers and promises have had their turn. */
const settled = (): Promise<void> => new Promise((resolve) => setTimeout(resolve));

beforeEach(() => document.body.replaceChildren());

test("only an output of a run loses its widget, and it keeps the rest", () => {
  const run = { ...live("a"), "text/html": "<p>" };
  expect(withoutWidget(run)).toEqual({ [RUN]: { id: "run-a" }, "text/html": "<p>" });
  for (const other of [{ [WIDGET]: { model_id: "a" } }, { [RUN]: { id: "r" } }, null, undefined, "text", []]) {
    expect(withoutWidget(other)).toBeNull();
  }
});

test("the error is known by its words and its renderer, whatever else is written on a page", () => {
  const wrote = (mark: string, ...nodes: Node[]): Parameters<typeof failed>[0] => {
    const target = document.createElement("div");
    target.className = mark;
    target.append(...nodes);
    return { target, addedNodes: target.childNodes };
  };
  expect(failed(wrote("jupyter-widgets", new Text(ERROR)))).not.toBeNull();
  expect(failed(wrote("cm-line", new Text(ERROR)))).toBeNull();
  expect(failed(wrote("jupyter-widgets", new Text("Loading widget...")))).toBeNull();
  expect(failed(wrote("jupyter-widgets", new Text(ERROR), new Text("more")))).toBeNull();
  expect(failed(wrote("jupyter-widgets", document.createElement("p")))).toBeNull();
  expect(failed(wrote("jupyter-widgets"))).toBeNull();
});

test("only the output that failed is shown as saved, beside a run that lives in the same cell", async () => {
  const book = new Notebook(live("dead"), live("alive"));
  book.comms = { alive: {} };
  book.open().fail(0);
  await settled();
  book.fail(0); // the widget manager tries once more
  await settled();
  expect(book.shown()).toEqual([0]);
  expect(book.rendered).toEqual([{ [RUN]: { id: "run-dead" } }]);
  book.save("started");
  expect(book.outputs).toEqual([{ [RUN]: { id: "run-dead" } }, live("alive")]);
});

test("a widget that the kernel still has is left alone", async () => {
  const book = new Notebook(live("alive"));
  book.comms = { alive: {} };
  book.open().fail(0);
  await settled();
  book.save("started");
  expect([book.asked, book.shown(), book.outputs]).toEqual([1, [], [live("alive")]]);
});

test("the error's words in an editor, or in an output of somebody else, change nothing", async () => {
  const other = { [WIDGET]: { model_id: "slider" } };
  const book = new Notebook(live("dead"), other);
  book.comms = {};
  book.open().fail(1);
  book.editor.textContent = ERROR;
  await settled();
  book.save("started");
  expect([book.shown(), book.outputs]).toEqual([[], [live("dead"), other]]);
});

test("opening a notebook does not change it; saving it does", async () => {
  const book = new Notebook(live("dead"));
  book.comms = {};
  book.open().fail(0);
  await settled();
  expect([book.shown(), book.outputs]).toEqual([[0], [live("dead")]]);
  book.save("completed");
  expect(book.outputs).toEqual([live("dead")]);
  book.save("started");
  expect(book.outputs).toEqual([{ [RUN]: { id: "run-dead" } }]);
});

test("without a kernel the file keeps the widget, until a kernel lacks it", async () => {
  const book = new Notebook(live("dead")).open();
  book.fail(0);
  await settled();
  expect(book.shown()).toEqual([0]);
  book.save("started");
  expect(book.outputs).toEqual([live("dead")]);
  book.comms = {};
  book.change();
  await settled();
  book.save("started");
  expect(book.outputs).toEqual([{ [RUN]: { id: "run-dead" } }]);
});
