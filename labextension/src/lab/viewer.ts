/** Plugin: `*.kforge.json` opens in the viewer, whose toolbar copies, exports and goes on in a notebook. */
import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin,
} from "@jupyterlab/application";
import { ICommandPalette, WidgetTracker } from "@jupyterlab/apputils";
import type { DocumentRegistry } from "@jupyterlab/docregistry";
import { INotebookTracker } from "@jupyterlab/notebook";
import { ITranslator, nullTranslator } from "@jupyterlab/translation";
import { CommandToolbarButton } from "@jupyterlab/ui-components";
 
import { RunFactory, type RunDocumentWidget } from "./document";
// eslint-disable-next-line jupyter/prefer-lazy-imports -- small, and needed at once
import { addExports } from "./exports";
import { kforgeIcon } from "./icon";
import { CATEGORY, Commands, EXTENSION, FACTORY, FILE_TYPE } from "./names";

const BUTTONS = [
  Commands.copySource,
  Commands.exportHtml,
  Commands.exportJson,
  Commands.openInNotebook,
];

const viewer: JupyterFrontEndPlugin<void> = {
  id: "kforge-nb:viewer",
  description: "Opens saved runs of kforge (*.kforge.json).",
  autoStart: true,
  optional: [ICommandPalette, ILayoutRestorer, INotebookTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    notebooks: INotebookTracker | null,
    translator: ITranslator | null,
  ): void => {
    const trans = (translator ?? nullTranslator).load("kforge_nb");
    const { docRegistry } = app;
    docRegistry.addFileType({
      name: FILE_TYPE,
      displayName: trans.__("Kernel Forge run"),
      extensions: [EXTENSION],
      mimeTypes: ["application/vnd.kforge.run+json"],
      fileFormat: "text",
      contentType: "file",
      icon: kforgeIcon,
    });
    const tracker = new WidgetTracker<RunDocumentWidget>({ namespace: "kforge-runs" });
    const factory = new RunFactory(
      {
        name: FACTORY,
        label: trans.__("Kernel Forge run"),
        modelName: "text",
        fileTypes: [FILE_TYPE],
        defaultFor: [FILE_TYPE],
        readOnly: true,
        toolbarFactory: (widget) => toolbar(app, widget),
      },
      () => BUTTONS.forEach((id) => app.commands.notifyCommandChanged(id)),
    );
    factory.widgetCreated.connect((_, widget) => {
      widget.title.icon = kforgeIcon;
      widget.context.pathChanged.connect(() => void tracker.save(widget));
      void tracker.add(widget);
    });
    docRegistry.addWidgetFactory(factory as DocumentRegistry.WidgetFactory);
    if (restorer !== null) {
      void restorer.restore(tracker, {
        command: "docmanager:open",
        args: (widget) => ({ path: widget.context.path, factory: FACTORY }),
        name: (widget) => widget.context.path,
      });
    }
    addExports({ app, viewers: tracker, notebooks, trans });
    for (const command of BUTTONS) palette?.addItem({ command, category: CATEGORY });
  },
};

function toolbar(app: JupyterFrontEnd, widget: RunDocumentWidget): DocumentRegistry.IToolbarItem[] {
  return BUTTONS.map((id) => ({
    name: id,
    widget: new CommandToolbarButton({
      commands: app.commands,
      id,
      args: { id: widget.id, toolbar: true },
    }),
  }));
}

export default viewer;
