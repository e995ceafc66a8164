/** Live views that cannot be shown any more: how they are known, and what is left of their output. */

const RUN = "application/vnd.kforge.run+json";
const WIDGET = "application/vnd.jupyter.widget-view+json";
/** What the widget manager writes where a model is gone for good. */
const ERROR = "Error displaying widget";

/** Whether a mutation wrote the error: it is the one text of its element. */
export function failed(record: Pick<MutationRecord, "addedNodes">): boolean {
  const [node, more] = record.addedNodes;
  return more === undefined && node instanceof Text && node.data.startsWith(ERROR);
}

/** The data of an output without its widget; null where it is not one of ours. */
export function withoutWidget(data: unknown): Record<string, unknown> | null {
  if (typeof data !== "object" || data === null || !(RUN in data) || !(WIDGET in data)) return null;
  return Object.fromEntries(Object.entries(data).filter(([type]) => type !== WIDGET));
}
