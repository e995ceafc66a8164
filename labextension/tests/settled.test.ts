/** The end of a run in a notebook whose outputs came from its file. */
import { expect, test, vi } from "vitest";

vi.mock("@jupyterlab/notebook", () => ({ INotebookTracker: {} }));

import settled from "../src/lab/settled";

const RUN = "application/vnd.kforge.run+json";
const WIDGET = "application/vnd.jupyter.widget-view+json";

type Data = Record<string, unknown>;
const live = (model: string): Data => ({ [RUN]: { id: "r1" }, [WIDGET]: { model_id: model } });
const END: Data = { [RUN]: { id: "r1", state: "done" }, "text/html": "<p>" };

class Signal<T> {
  private readonly heard: ((sender: null, value: T) => void)[] = [];
  connect(hear: (sender: null, value: T) => void): void {
    this.heard.push(hear);
  }
  emit(value: T): void {
    for (const hear of this.heard) hear(null, value);
  }
}

/** One notebook of one cell that was opened, with a kernel. */
class Notebook {
  anyMessage = new Signal<object>();
  fileChanged = new Signal<object>();

  constructor(public outputs: Data[]) {}

  async open(): Promise<this> {
    const outputs = {
      get: (at: number) => ({ toJSON: () => ({ data: this.outputs[at] }) }),
      set: (at: number, output: { data: Data }) => {
        this.outputs[at] = output.data;
      },
    };
    Object.defineProperty(outputs, "length", { get: () => this.outputs.length });
    const panel = {
      isDisposed: false,
      context: { ready: Promise.resolve(), fileChanged: this.fileChanged },
      sessionContext: { session: { kernel: { anyMessage: this.anyMessage } }, kernelChanged: new Signal() },
      content: { model: { cells: [{ type: "code", outputs }] } },
    };
    const tracker = { forEach: (each: (one: object) => void) => each(panel), widgetAdded: new Signal() };
    void settled.activate(null as never, tracker);
    await Promise.resolve();
    return this;
  }

  end(): void {
    this.anyMessage.emit({ msg: { header: { msg_type: "update_display_data" }, content: { data: END } } });
  }
}

test("an output that came from the file gets the end of its run, one that was made here does not", async () => {
  const book = await new Notebook([live("loaded")]).open();
  book.outputs.push(live("made"));
  book.end();
  expect(book.outputs).toEqual([END, live("made")]);
});

test("a notebook that was empty at first gets the end of a run after it was reloaded from disk", async () => {
  const book = await new Notebook([]).open();
  book.outputs = [live("reloaded")];
  book.fileChanged.emit({});
  book.end();
  expect(book.outputs).toEqual([END]);
});

test("what was saved here and read back from the same file gets its end, whatever changed between", async () => {
  const book = await new Notebook([]).open();
  book.outputs = [live("saved")];
  book.fileChanged.emit({}); // by the save; reading the same file again tells nothing
  book.outputs = [];
  book.fileChanged.emit({}); // a new name
  book.outputs = [live("saved")];
  book.end();
  expect(book.outputs).toEqual([END]);
});
