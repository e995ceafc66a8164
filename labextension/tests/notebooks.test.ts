/** "Open in notebook": which notebook gets the cell, and what cell. */
import { beforeEach, expect, test, vi } from "vitest";
import { openInNotebook } from "../src/lab/notebooks";

const drive = (path: string): string => (path.includes(":") ? (path.split(":")[0] ?? "") : "");
const RUN = { path: "runs/minilm.kforge.json", localPath: "runs/minilm.kforge.json" };

interface Made {
  path?: string;
  content?: { cells: { source: string }[] };
}

let made: Made;
const activateById = vi.fn();
const app = {
  serviceManager: {
    contents: {
      driveName: drive,
      newUntitled: ({ path }: { path: string }) => {
        made.path = path;
        return Promise.resolve({ path: `${path}/Untitled.ipynb` });
      },
      save: (_: string, { content }: Made) => {
        if (content !== undefined) made.content = content;
        return Promise.resolve();
      },
    },
    kernelspecs: { specs: null },
  },
  commands: { execute: () => Promise.resolve() },
  shell: { activateById },
};

beforeEach(() => {
  made = {};
  activateById.mockClear();
});

/** A notebook with two cells, the first one active, where new cells are Markdown by default. */
function notebook(changes: { path?: string; language?: string; spec?: string; readOnly?: boolean; writable?: boolean } = {}) {
  const { path = "work/a.ipynb", language = "", spec, readOnly = false, writable = true } = changes;
  const cells: object[] = [{ cell_type: "markdown" }, { cell_type: "markdown" }];
  const model = {
    readOnly,
    defaultKernelLanguage: language,
    getMetadata: () => (spec === undefined ? undefined : { language: spec }),
    sharedModel: { insertCell: (at: number, cell: object) => void cells.splice(at, 0, cell) },
  };
  const content = { model, activeCell: {}, activeCellIndex: 0, deselectAll: () => undefined, notebookConfig: { defaultCell: "markdown" } };
  const context = { path, localPath: path.slice(path.indexOf(":") + 1), contentsModel: { writable } };
  return { id: "nb", content, context, cells };
}

const open = (panel: ReturnType<typeof notebook> | null, run = RUN): Promise<void> =>
  openInNotebook(app as never, panel as never, run);

test("a Python notebook, or one without a kernel yet, gets a code cell below the active one", async () => {
  for (const panel of [notebook(), notebook({ language: "python" }), notebook({ spec: "Python" })]) {
    await open(panel);
    expect(panel.cells).toHaveLength(3);
    expect(panel.cells[1]).toMatchObject({ cell_type: "code", source: expect.stringContaining('load_run("../runs/minilm.kforge.json")') as string });
    expect(panel.content.activeCellIndex).toBe(1);
    expect(activateById).toHaveBeenLastCalledWith("nb");
  }
  expect(made).toEqual({});
});

test.each([
  ["of another language", { language: "R" }],
  ["whose kernel's specification is of another language", { spec: "julia" }],
  ["that is read-only", { readOnly: true }],
  ["whose file cannot be written", { writable: false }],
  ["on another drive", { path: "s3:work/a.ipynb" }],
])("a notebook %s is left alone, and a new one is made beside the run", async (_, changes) => {
  const panel = notebook(changes);
  await open(panel);
  expect(panel.cells).toHaveLength(2);
  expect(made.path).toBe("runs");
  expect(made.content?.cells[0]?.source).toContain('load_run("minilm.kforge.json")');
});

test("a new notebook lies on the drive of the run", async () => {
  await open(null, { path: "s3:minilm.kforge.json", localPath: "minilm.kforge.json" });
  expect(made.path).toBe("s3:");
});
