/**
 * Plugin: the end of a run in a notebook that was loaded again while it went on. The kernel puts
 * the saved view in the place of the live one, but a page that did not see that place being made
 * does not know where it is. The run in the output says it.
 */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import type { ICodeCellModel } from "@jupyterlab/cells";
import { INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";
import type { Kernel } from "@jupyterlab/services";
import { modelIn, runIn } from "./mimes";

type Outputs = ICodeCellModel["outputs"];
type Output = Parameters<Outputs["set"]>[1];

/** One output that shows the widget of a run. */
interface Live {
  outputs: Outputs;
  index: number;
  run: string;
  /** Id of the widget. */
  model: string;
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: "kforge-nb:settled",
  description: "Shows the end of a run in a notebook that was loaded again while it went on.",
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_app: JupyterFrontEnd, notebooks: INotebookTracker): void => {
    notebooks.forEach(follow);
    notebooks.widgetAdded.connect((_, panel) => follow(panel));
  },
};

export default plugin;

/**
 * Listens to the kernels of one notebook. What it holds at first came from its file, and so did what
 * it holds once the file was read again. That the file changed is told after a save too; what it held
 * then is what a later reading brings back, which tells nothing where the file is the same.
 */
function follow(panel: NotebookPanel): void {
  const { context, sessionContext } = panel;
  const loaded = new Set<string>();
  const look = (): void => {
    for (const live of lives(panel)) loaded.add(live.model);
  };
  const hear = (_: unknown, { msg }: Kernel.IAnyMessageArgs): void => {
    if (msg.header.msg_type !== "update_display_data" || !("data" in msg.content)) return;
    settle(panel, loaded, msg.content.data);
  };
  void context.ready.then(() => {
    if (panel.isDisposed) return;
    look();
    context.fileChanged.connect(look);
    sessionContext.session?.kernel?.anyMessage.connect(hear);
    sessionContext.kernelChanged.connect((_, { newValue }) => newValue?.anyMessage.connect(hear));
  });
}

/** Puts a saved view in the place of the loaded widgets of the same run. */
function settle(panel: NotebookPanel, loaded: ReadonlySet<string>, saved: unknown): void {
  const run = runIn(saved);
  if (run === null || modelIn(saved) !== null) return;
  for (const live of lives(panel)) {
    if (live.run !== run || !loaded.has(live.model)) continue;
    const output = { ...live.outputs.get(live.index).toJSON(), data: saved };
    live.outputs.set(live.index, output as Output);
  }
}

function lives(panel: NotebookPanel): Live[] {
  const found: Live[] = [];
  for (const cell of panel.content.model?.cells ?? []) {
    if (cell.type !== "code") continue;
    const { outputs } = cell as ICodeCellModel;
    for (let index = 0; index < outputs.length; index += 1) {
      const { data } = outputs.get(index).toJSON();
      const [run, model] = [runIn(data), modelIn(data)];
      if (run !== null && model !== null) found.push({ outputs, index, run, model });
    }
  }
  return found;
}
