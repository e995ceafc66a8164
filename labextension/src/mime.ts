/** Runs in notebook outputs: the renderer of `application/vnd.kforge.run+json`. */
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { RunWidget } from "./lab/run";

const MIME = "application/vnd.kforge.run+json";
/** Before text/html (50), which the same output carries for pages without this extension. */
const RANK = 40;

class RunOutput extends RunWidget implements IRenderMime.IRenderer {
  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    return this.display({ data: model.data[MIME] });
  }
}

const extension: IRenderMime.IExtension = {
  id: "kforge-nb:output",
  description: "Shows runs of kforge in notebook outputs.",
  rendererFactory: {
    safe: true,
    mimeTypes: [MIME],
    createRenderer: () => new RunOutput(),
  },
  rank: RANK,
  dataType: "json",
};

export default extension;
