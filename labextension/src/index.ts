/** The JupyterLab extension: plugins that JupyterLab and Notebook start. */
import kernels from "./lab/kernels";
import lost from "./lab/lost";
import runs from "./lab/runs";
import settled from "./lab/settled";
import start from "./lab/start";
import viewer from "./lab/viewer";

export default [viewer, runs, start, kernels, lost, settled];
