/** Commands of the viewer: copy a source, export the run, go on with it in a notebook. */
import type { JupyterFrontEnd } from "@jupyterlab/application";
import { Clipboard, type IWidgetTracker, Notification } from "@jupyterlab/apputils";
import { PathExt } from "@jupyterlab/coreutils";
import type { INotebookTracker } from "@jupyterlab/notebook";
import type { TranslationBundle } from "@jupyterlab/translation";
import type { RunDocument } from "../view/document";
import type { RunDocumentWidget } from "./document";
import { download, sourceOf } from "./files";
import { Commands, EXTENSION } from "./names";
import { openInNotebook } from "./notebooks";

const ARGS = {
  type: "object",
  properties: {
    id: { type: "string", description: "Id of the viewer; the current one where left out." },
    toolbar: { type: "boolean", description: "Whether the command stands in a toolbar." },
  },
} as const;

interface Words {
  /** In the palette. */
  label: string;
  /** In the toolbar. */
  button: string;
  caption: string;
}

type Action = (widget: RunDocumentWidget, run: RunDocument) => void | Promise<void>;

/** What the commands work on and with. */
export interface Desk {
  app: JupyterFrontEnd;
  viewers: IWidgetTracker<RunDocumentWidget>;
  notebooks: INotebookTracker | null;
  trans: TranslationBundle;
}

/**
 * Adds the commands. They are on before a run is shown too, since a toolbar takes a place in the tab
 * order only for items that are on when they are drawn.
 */
export function addExports(desk: Desk): void {
  const { trans } = desk;
  add(desk, Commands.copySource, (_, run, selected) => copy(trans, sourceOf(run, selected)), {
    label: trans.__("Copy Source of the Selected Kernel"),
    button: trans.__("Copy source"),
    caption: trans.__("Copy the source of the selected kernel, or of the best one"),
  });
  add(desk, Commands.exportHtml, exportHtml, {
    label: trans.__("Export Run as HTML Page"),
    button: trans.__("HTML"),
    caption: trans.__("Download the run as one HTML page that any browser shows"),
  });
  add(desk, Commands.exportJson, exportJson, {
    label: trans.__("Export Run as JSON"),
    button: trans.__("JSON"),
    caption: trans.__("Download the file of the run"),
  });
  const { app, notebooks } = desk;
  const goOn: Action = ({ context }) => openInNotebook(app, notebooks?.currentWidget ?? null, context);
  add(desk, Commands.openInNotebook, goOn, {
    label: trans.__("Open Run in Notebook"),
    button: trans.__("Open in notebook"),
    caption: trans.__("Load the run in a cell of the notebook used last if that is Python, or of a new one"),
  });
}

function add(
  { app, viewers }: Desk,
  id: string,
  action: (widget: RunDocumentWidget, run: RunDocument, selected: string | null) => unknown,
  words: Words,
): void {
  const viewer = (name: unknown): RunDocumentWidget | null =>
    viewers.find((widget) => widget.id === name) ?? viewers.currentWidget;
  app.commands.addCommand(id, {
    label: (args) => (args["toolbar"] === true ? words.button : words.label),
    caption: words.caption,
    describedBy: { args: ARGS },
    isEnabled: (args) => viewer(args["id"])?.content.broken === false,
    execute: (args) => {
      const widget = viewer(args["id"]);
      const run = widget?.content.run;
      return widget == null || run == null ? null : action(widget, run, widget.content.selected);
    },
  });
}

function copy(trans: TranslationBundle, source: string | null): void {
  if (source === null) {
    const text = trans.__("This run holds no source of that kernel.");
    Notification.warning(text, { autoClose: 4000 });
    return;
  }
  Clipboard.copyToSystem(source);
  Notification.success(trans.__("The source is in the clipboard."), { autoClose: 2000 });
}

const exportHtml: Action = async (widget, run) => {
  const { pageOf } = await import("./page");
  download(`${stem(widget)}.html`, "text/html", pageOf(run));
};

const exportJson: Action = (widget) => {
  download(`${stem(widget)}${EXTENSION}`, "application/json", widget.content.text);
};

function stem(widget: RunDocumentWidget): string {
  return PathExt.basename(widget.context.localPath).replace(EXTENSION, "");
}
