/**
 * A notebook that was saved, or whose kernel was restarted, while a run went on holds a live view
 * whose kernel is gone; JupyterLab shows an error in its place. The same output carries the run as it
 * was then, so the widget is taken out of it, and what is left is shown: now, and from the file.
 */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import type { ICodeCellModel } from "@jupyterlab/cells";
import { INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";
import { failed, withoutWidget } from "./mending";

const plugin: JupyterFrontEndPlugin<void> = {
  id: "kforge-nb:lost",
  description: "Shows a run as it was saved where its live view is gone with its kernel.",
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_app: JupyterFrontEnd, notebooks: INotebookTracker) => {
    notebooks.forEach(watch);
    notebooks.widgetAdded.connect((_, panel) => watch(panel));
  },
};

export default plugin;

function watch(panel: NotebookPanel): void {
  const observer = new MutationObserver((records) => {
    for (const record of records) if (failed(record)) mend(panel, record.target);
  });
  observer.observe(panel.node, { childList: true, subtree: true });
  panel.disposed.connect(() => observer.disconnect());
}

/** Takes the widgets of runs out of the outputs of the cell that holds a place. */
function mend(panel: NotebookPanel, place: Node): void {
  const cell = panel.content.widgets.find((one) => one.node.contains(place));
  if (cell?.model.type !== "code") return;
  const { outputs } = cell.model as ICodeCellModel;
  for (let at = 0; at < outputs.length; at += 1) {
    const output = outputs.get(at).toJSON();
    const data = withoutWidget(output["data"]);
    if (data !== null) outputs.set(at, { ...output, data } as Parameters<typeof outputs.set>[1]);
  }
}
