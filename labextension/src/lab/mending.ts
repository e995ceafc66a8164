/**
 * Live views that cannot be shown any more: how they are known, what is left of their output, and how
 * that is shown. Knows JupyterLab by its types alone.
 */
import type { CodeCell, ICodeCellModel } from "@jupyterlab/cells";
import type { Kernel } from "@jupyterlab/services";
import type { Panel } from "@lumino/widgets";
import { modelIn, runIn } from "./mimes";

const WIDGET = "application/vnd.jupyter.widget-view+json";
/** What the widget manager writes where it has no view. */
const ERROR = "Error displaying widget";
/** What it marks such a place with. */
const MARK = "jupyter-widgets";

type OutputArea = CodeCell["outputArea"];

/** An output of ours that failed. */
export interface Failing {
  area: OutputArea;
  index: number;
  /** Id of the widget. */
  model: string;
  /** The output's data without the widget. */
  data: ReturnType<typeof withoutWidget>;
}

/** The renderer that a mutation shows to have failed: the error is its one text. */
export function failed(record: Pick<MutationRecord, "addedNodes" | "target">): HTMLElement | null {
  const [node, more] = record.addedNodes;
  if (more !== undefined || !(node instanceof Text) || !node.data.startsWith(ERROR)) return null;
  const { target } = record;
  return target instanceof HTMLElement && target.classList.contains(MARK) ? target : null;
}

/** The output of a cell that a failed renderer is; null where it is none of ours. */
export function failing(area: OutputArea, place: HTMLElement): Failing | null {
  const child = place.closest(".jp-OutputArea-child");
  const index = area.widgets.findIndex((one) => one.node === child);
  if (index < 0 || index >= area.model.length) return null;
  const { data } = area.model.get(index).toJSON();
  const [model, rest] = [modelIn(data), withoutWidget(data)];
  return model === null || rest === null ? null : { area, index, model, data: rest };
}

/** The data of an output without its widget; null where it is not one of ours. */
export function withoutWidget(data: unknown): Record<string, unknown> | null {
  if (runIn(data) === null || modelIn(data) === null) return null;
  return Object.fromEntries(Object.entries(data as object).filter(([type]) => type !== WIDGET));
}

/** Whether a kernel says that it has no widget of this id; false where it does not answer. */
export async function lacks(kernel: Kernel.IKernelConnection, model: string): Promise<boolean> {
  try {
    const { content } = await kernel.requestCommInfo({});
    return content.status === "ok" && !(model in content.comms);
  } catch {
    return false; // a kernel that went away: the next one is asked
  }
}

/** Shows what is left of an output in the place of its error; the notebook stays as it is. */
export function showSaved({ area, index, data }: Failing, place: HTMLElement): void {
  const child = area.widgets[index] as Panel | undefined;
  const at = child?.widgets.findIndex((one) => one.node === place) ?? -1;
  if (child === undefined || at < 0 || data === null) return;
  if (at + 1 < child.widgets.length) return; // shown already
  const { metadata, trusted } = area.model.get(index);
  const model = area.rendermime.createModel({ data: data as never, metadata, trusted });
  const type = area.rendermime.preferredMimeType(model.data, trusted ? "any" : "ensure");
  if (type === undefined) return;
  const renderer = area.rendermime.createRenderer(type);
  renderer.addClass("jp-OutputArea-output");
  child.widgets[at]?.hide();
  child.insertWidget(at + 1, renderer);
  void renderer.renderModel(model);
}

/** Takes the widgets that are gone for good out of the outputs of a cell. */
export function forget(outputs: ICodeCellModel["outputs"], gone: ReadonlySet<string>): void {
  for (let at = 0; at < outputs.length; at += 1) {
    const output = outputs.get(at).toJSON();
    const model = modelIn(output["data"]);
    const data = withoutWidget(output["data"]);
    if (model === null || data === null || !gone.has(model)) continue;
    outputs.set(at, { ...output, data } as Parameters<typeof outputs.set>[1]);
  }
}
