/** Plugin: a side panel with the saved runs of the file browser's folder. */
import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin,
} from "@jupyterlab/application";
import { ICommandPalette } from "@jupyterlab/apputils";
import { IDefaultFileBrowser } from "@jupyterlab/filebrowser";
import { ISettingRegistry } from "@jupyterlab/settingregistry";
import { ITranslator, nullTranslator, type TranslationBundle } from "@jupyterlab/translation";
import { kforgeIcon } from "./icon";
// eslint-disable-next-line jupyter/prefer-lazy-imports -- small, and needed at once
import { RunListing } from "./listing";
import { CATEGORY, Commands, EXTENSION, FACTORY } from "./names";
// eslint-disable-next-line jupyter/prefer-lazy-imports -- small, and needed at once
import { RunsPanel } from "./panelwidget";

const ID = "kforge-nb:runs";
const NOTHING = { args: { type: "object", properties: {} } } as const;
/** Bytes that one look at a folder reads, about. */
const A_LOOK = 32_000_000;

/** The settings, with what holds until they are read. */
interface Choice {
  mostRuns: number;
  largestMegabytes: number;
  refreshSeconds: number;
}

const runs: JupyterFrontEndPlugin<void> = {
  id: ID,
  description: "Lists the saved runs of a folder in a side panel.",
  autoStart: true,
  optional: [ICommandPalette, ILayoutRestorer, IDefaultFileBrowser, ISettingRegistry, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    browser: IDefaultFileBrowser | null,
    settings: ISettingRegistry | null,
    translator: ITranslator | null,
  ): void => {
    const trans = (translator ?? nullTranslator).load("kforge_nb");
    const choice: Choice = { mostRuns: 50, largestMegabytes: 2, refreshSeconds: 10 };
    const { contents } = app.serviceManager;
    const listing = new RunListing(
      contents,
      () => ({
        most: choice.mostRuns,
        bytes: choice.largestMegabytes * 1_000_000,
        total: A_LOOK,
      }),
      () => panel.draw(),
    );
    const panel: RunsPanel = new RunsPanel({
      listing,
      trans,
      folder: () => browser?.model.path ?? "",
      every: () => choice.refreshSeconds,
      open: (path) => void app.commands.execute(Commands.openRun, { path }),
    });
    panel.title.icon = kforgeIcon;
    panel.title.caption = trans.__("Runs of kforge");
    panel.node.setAttribute("aria-label", trans.__("Runs of kforge"));
    panel.node.setAttribute("role", "region");
    app.shell.add(panel, "left", { rank: 600, type: "Kernel Forge" });
    restorer?.add(panel, panel.id);

    browser?.model.pathChanged.connect(() => panel.refresh());
    contents.fileChanged.connect((_, change) => {
      const paths = [change.oldValue?.path, change.newValue?.path];
      if (paths.some((path) => path?.endsWith(EXTENSION) === true)) panel.refresh();
    });
    panel.schedule();
    if (settings !== null) void follow(settings, choice, panel);
    addCommands(app, panel, palette, trans);
  },
};

async function follow(
  registry: ISettingRegistry,
  choice: Choice,
  panel: RunsPanel,
): Promise<void> {
  const settings = await registry.load(ID);
  const apply = (): void => {
    Object.assign(choice, settings.composite);
    panel.schedule();
    panel.refresh();
  };
  apply();
  settings.changed.connect(apply);
}

function addCommands(
  app: JupyterFrontEnd,
  panel: RunsPanel,
  palette: ICommandPalette | null,
  trans: TranslationBundle,
): void {
  app.commands.addCommand(Commands.showRuns, {
    label: trans.__("Show Runs of This Folder"),
    describedBy: NOTHING,
    execute: () => {
      app.shell.activateById(panel.id);
      // The command palette gives the focus back to where it was once its command has run.
      requestAnimationFrame(() => panel.enter());
    },
  });
  app.commands.addCommand(Commands.refreshRuns, {
    label: trans.__("Refresh the List of Runs"),
    describedBy: NOTHING,
    execute: () => panel.refresh(),
  });
  app.commands.addCommand(Commands.openRun, {
    label: trans.__("Open a Saved Run"),
    describedBy: {
      args: {
        type: "object",
        required: ["path"],
        properties: { path: { type: "string", description: "Path of the .kforge.json file." } },
      },
    },
    execute: (args) =>
      app.commands.execute("docmanager:open", { path: args["path"], factory: FACTORY }),
  });
  for (const command of [Commands.showRuns, Commands.refreshRuns]) {
    palette?.addItem({ command, category: CATEGORY });
  }
}

export default runs;
