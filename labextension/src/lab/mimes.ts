/** What the MIME bundle of an output says about a run. */

const RUN = "application/vnd.kforge.run+json";
const WIDGET = "application/vnd.jupyter.widget-view+json";

/** Id of the run in a bundle. */
export function runIn(data: unknown): string | null {
  return textIn(data, RUN, "id");
}

/** Id of the widget in a bundle. */
export function modelIn(data: unknown): string | null {
  return textIn(data, WIDGET, "model_id");
}

function textIn(data: unknown, type: string, field: string): string | null {
  const part = isRecord(data) ? data[type] : null;
  const value = isRecord(part) ? part[field] : null;
  return typeof value === "string" ? value : null;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}
