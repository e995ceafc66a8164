/** Notebooks that the extension makes or writes a cell into. */
import type { JupyterFrontEnd } from "@jupyterlab/application";
import { PathExt } from "@jupyterlab/coreutils";
import type { DocumentRegistry } from "@jupyterlab/docregistry";
import type { NotebookPanel } from "@jupyterlab/notebook";
import type { ServiceManager } from "@jupyterlab/services";

type File = Pick<DocumentRegistry.Context, "path" | "localPath">;

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

/** Loads a run in a cell of a notebook, or of a new one beside the run where that one cannot take it. */
export async function openInNotebook(
  app: JupyterFrontEnd,
  panel: NotebookPanel | null,
  run: File,
): Promise<void> {
  const { contents } = app.serviceManager;
  const drive = contents.driveName(run.path);
  const taken = panel !== null && contents.driveName(panel.context.path) === drive;
  if (taken && takesPython(panel)) {
    const from = PathExt.dirname(panel.context.localPath);
    insertCell(panel, loading(PathExt.relative(`/${from}`, `/${run.localPath}`)));
    app.shell.activateById(panel.id);
    return;
  }
  const folder = PathExt.dirname(run.localPath);
  const place = drive === "" ? folder : `${drive}:${folder}`;
  await newNotebook(app, place, [loading(PathExt.basename(run.localPath))]);
}

/** Whether a cell of Python can be written into a notebook. */
function takesPython({ content, context }: NotebookPanel): boolean {
  const { model } = content;
  if (model === null || model.readOnly || context.contentsModel?.writable === false) return false;
  const spec = model.getMetadata("kernelspec") as { language?: unknown } | undefined;
  const told = model.defaultKernelLanguage || spec?.language;
  return typeof told !== "string" || told === "" || told.toLowerCase() === "python";
}

/** Puts a code cell below the active one, whatever new cells are by default, and makes it active. */
function insertCell({ content }: NotebookPanel, source: string): void {
  const at = content.activeCell === null ? 0 : content.activeCellIndex + 1;
  const cell = { cell_type: "code" as const, source, metadata: { trusted: true } };
  content.model?.sharedModel.insertCell(at, cell);
  content.activeCellIndex = at;
  content.deselectAll();
}

/** Code that loads a run; `path` is relative to the notebook's folder. */
function loading(path: string): string {
  return `import kforge_nb\n\nrun = kforge_nb.load_run(${JSON.stringify(path)})\nrun`;
}
