/** Plugin: a launcher card for a notebook that is ready to speed a model up. */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette } from "@jupyterlab/apputils";
import { IDefaultFileBrowser } from "@jupyterlab/filebrowser";
import { ILauncher } from "@jupyterlab/launcher";
import { ITranslator, nullTranslator } from "@jupyterlab/translation";
import { kforgeIcon } from "./icon";
import { CATEGORY, Commands } from "./names";
import { newNotebook } from "./notebooks";

const CELLS = [
  "%load_ext kforge_nb",
  "import torch\n\n" +
    "# Put your model and its inputs here.\n" +
    "model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.LayerNorm(512))\n" +
    "model = model.eval()\n" +
    "x = torch.randn(1024, 512)",
  "%%kforge profile --as prof\nwith torch.inference_mode():\n    model(x)",
  "%%kforge optimize --budget 30 --as run\nwith torch.inference_mode():\n    model(x)",
  "%kforge wait run",
  "%kforge guard run",
  "# Puts what won into the model; run.undo() takes it out again.\n" +
    "from kforge_nb.errors import BadInput\n\n" +
    "try:\n    run.apply()\nexcept BadInput as why:\n    print(why)",
  "with torch.inference_mode():\n    model(x)\nrun.counters()",
];

const start: JupyterFrontEndPlugin<void> = {
  id: "kforge-nb:start",
  description: "Adds a launcher card for a notebook that speeds a model up.",
  autoStart: true,
  optional: [ICommandPalette, ILauncher, IDefaultFileBrowser, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    browser: IDefaultFileBrowser | null,
    translator: ITranslator | null,
  ): void => {
    const trans = (translator ?? nullTranslator).load("kforge_nb");
    app.commands.addCommand(Commands.newNotebook, {
      label: (args) =>
        args["isLauncher"] === true
          ? trans.__("Speed up a model")
          : trans.__("New Notebook to Speed Up a Model"),
      caption: trans.__("A notebook with the cells that profile and optimize a model"),
      icon: kforgeIcon,
      describedBy: {
        args: {
          type: "object",
          properties: {
            cwd: { type: "string", description: "The folder; that of the file browser by default." },
            isLauncher: { type: "boolean", description: "Whether the launcher asks." },
          },
        },
      },
      execute: async (args) => {
        const { cwd } = args;
        const folder = typeof cwd === "string" ? cwd : (browser?.model.path ?? "");
        await newNotebook(app, folder, CELLS);
      },
    });
    launcher?.add({
      command: Commands.newNotebook,
      args: { isLauncher: true },
      category: CATEGORY,
      rank: 1,
    });
    palette?.addItem({ command: Commands.newNotebook, category: CATEGORY });
  },
};

export default start;
