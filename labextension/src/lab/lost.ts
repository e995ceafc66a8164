/**
 * A notebook that was saved, or whose kernel was restarted, while a run went on holds a live view
 * whose kernel is gone; JupyterLab shows an error in its place. The same output carries the run as it
 * was then, which is shown instead. Opening a notebook changes nothing in it: the widget is taken out
 * of the output when the notebook is saved next, and only if a kernel said that it has no such widget.
 */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import type { CodeCell, ICodeCellModel } from "@jupyterlab/cells";
import { INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";
import { failed, failing, forget, lacks, showSaved } from "./mending";

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

/** Ids of the widgets of one notebook. */
interface Ids {
  /** Shown as saved. */
  shown: Set<string>;
  /** Unknown to the kernel. */
  gone: Set<string>;
}

function watch(panel: NotebookPanel): void {
  const ids: Ids = { shown: new Set(), gone: new Set() };
  const observer = new MutationObserver((records) => {
    for (const record of records) {
      const place = failed(record);
      if (place !== null) void mend(panel, place, ids);
    }
  });
  observer.observe(panel.node, { childList: true, subtree: true });
  panel.disposed.connect(() => observer.disconnect());
  const { context, sessionContext } = panel;
  sessionContext.kernelChanged.connect((_, { newValue }) => {
    if (newValue === null) return;
    for (const model of ids.shown) {
      void lacks(newValue, model).then((gone) => gone && ids.gone.add(model));
    }
  });
  context.saveState.connect((_, state) => {
    if (state !== "started" || ids.gone.size === 0) return;
    for (const cell of panel.content.model?.cells ?? []) {
      if (cell.type === "code") forget((cell as ICodeCellModel).outputs, ids.gone);
    }
  });
}

/** Shows the saved run in a failed place, unless its kernel still has the widget. */
async function mend(panel: NotebookPanel, place: HTMLElement, ids: Ids): Promise<void> {
  const cell = panel.content.widgets.find((one) => one.node.contains(place));
  if (cell === undefined || !("outputArea" in cell)) return;
  const outputArea = cell.outputArea as CodeCell["outputArea"];
  if (failing(outputArea, place) === null) return;
  await panel.sessionContext.ready;
  const kernel = panel.sessionContext.session?.kernel ?? null;
  const model = failing(outputArea, place)?.model;
  if (model === undefined || (kernel !== null && !(await lacks(kernel, model)))) return;
  const found = panel.isDisposed ? null : failing(outputArea, place); // outputs may have come since
  if (found?.model !== model) return;
  ids.shown.add(model);
  if (kernel !== null) ids.gone.add(model);
  showSaved(found, place);
}
