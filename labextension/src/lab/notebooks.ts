/** Notebooks that the extension makes or writes a cell into. */
import type { JupyterFrontEnd } from "@jupyterlab/application";
import { NotebookActions, type NotebookPanel } from "@jupyterlab/notebook";
import type { ServiceManager } from "@jupyterlab/services";

/** Makes a notebook with these code cells in a folder and opens it with the default kernel. */
export async function newNotebook(
  app: JupyterFrontEnd,
  folder: string,
  cells: string[],
): Promise<void> {
  const { contents, kernelspecs } = app.serviceManager;
  const made = await contents.newUntitled({ path: folder, type: "notebook" });
  await contents.save(made.path, {
    type: "notebook",
    format: "json",
    content: notebook(cells, kernelspecs),
  });
  await app.commands.execute("docmanager:open", { path: made.path, factory: "Notebook" });
}

function notebook(cells: string[], kernelspecs: ServiceManager.IManager["kernelspecs"]): object {
  const name = kernelspecs.specs?.default ?? "python3";
  const spec = kernelspecs.specs?.kernelspecs[name];
  return {
    cells: cells.map((source, n) => ({
      cell_type: "code",
      id: `kforge-${n}`,
      execution_count: null,
      metadata: {},
      outputs: [],
      source,
    })),
    metadata: {
      kernelspec: { name, display_name: spec?.display_name ?? name, language: "python" },
    },
    nbformat: 4,
    nbformat_minor: 5,
  };
}

/** Puts a code cell below the active one and makes it the active one. */
export function insertCell(panel: NotebookPanel, source: string): void {
  NotebookActions.insertBelow(panel.content);
  panel.content.activeCell?.model.sharedModel.setSource(source);
}
