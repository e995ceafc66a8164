/** What the panel tells of a run in three short lines. */
import type { RunDocument } from "../view/document";
import { nothingWon, versus } from "../view/claims";
import { headline, running } from "../view/derive";
import * as format from "../view/format";

export interface Brief {
  name: string;
  state: string;
  /** The state's sign, so that colour is never the only one. */
  mark: "●" | "○" | "◐" | "✕";
  /** The model and where it ran. */
  subject: string;
  /** The gain, and against what; empty where there is none. */
  result: string;
  /** When it was last written, ISO. */
  updated: string;
}

/** The brief of a run. */
export function brief(run: RunDocument): Brief {
  const model = run.workload.modules[0]?.class ?? "";
  const device = typeof run.device["name"] === "string" ? run.device["name"] : "";
  return {
    name: run.name,
    state: run.state,
    mark: mark(run),
    subject: [model, device].filter((text) => text !== "").join(" on "),
    result: result(run),
    updated: run.updated,
  };
}

function mark(run: RunDocument): Brief["mark"] {
  if (run.state === "failed") return "✕";
  if (running(run)) return "◐";
  return run.decisions.some((decision) => decision.installed) ? "●" : "○";
}

function result(run: RunDocument): string {
  const lead = headline(run);
  if (lead.nothingWon) return nothingWon(run.decisions);
  if (lead.overEager?.ratio != null) return versus(lead.overEager, "eager");
  if (lead.overEmpty?.ratio != null) return versus(lead.overEmpty, "the same rest without kernels");
  if (lead.estimate !== null && lead.estimate > 1) return `about ${format.ratio(lead.estimate)}, estimated`;
  return "";
}
