/**
 * What a profile may still say once the guard has measured the model. Python's twin, which tells more of
 * it, is `kforge_nb/view/profiled.py`; a test holds both to one set of texts.
 */
import * as claims from "./claims";
import { headline } from "./derive";
import type { RunDocument } from "./document";
import { untouchedUs } from "./entries";
import * as format from "./format";

/** Times that differ by more than this factor are of different moments of the machine. */
const APART = 1.5;
/** A run that takes more than so many times what it computes waits for its host. */
const LAUNCH_BOUND = 2;
/** How the note begins that a profile beside other work leaves. */
const CROWDED = "other processes kept ";

/** Why shares and ceilings are not to be taken as sure; empty where nothing speaks against it. */
export function rough(document: RunDocument): string {
  const why = [
    ...(crowded(document) ? ["other programs kept the machine busy while the profile was taken"] : []),
    ...(apart(document)
      ? [
          `the profile had ${format.time(document.workload.wall_us)} for a run of the untouched model, and the ` +
            `guard measured ${format.time(untouchedUs(document))}`,
        ]
      : []),
  ];
  return why.length === 0 ? "" : `Shares and ceilings are rough: ${why.join("; ")}.`;
}

/** What being launch-bound means and what to do about it; empty where the run is not, or nobody knows. */
export function launchBound(document: RunDocument): string {
  const { launch_bound: bound, wall_us: profiled, device_us: busy } = document.workload;
  if (bound !== true || crowded(document)) return "";
  const differs = apart(document);
  const wall = differs ? untouchedUs(document) : profiled;
  if (differs && (wall === null || busy === null || wall <= LAUNCH_BOUND * busy)) return "";
  const cpu = document.device["kind"] === "cpu";
  const who = cpu ? "its operators work" : "the device works";
  const figures =
    wall === null || busy === null
      ? ""
      : ` One run takes ${format.time(wall)}, and ${who} for ${format.time(busy)} of it.`;
  const cure = cpu
    ? "a rest that fuses (--rest inductor), a larger batch, or fewer and larger operators"
    : "a rest with CUDA graphs (--rest auto measures them), a larger batch, or fewer and larger operators";
  return (
    `Launch-bound: most of the time goes to Python and to launching, not to computing.${figures} ` +
    `Faster kernels alone change little here; what helps is ${cure}.`
  );
}

/** Why kernels may have gained more than their ceilings allow; empty where they have not. */
export function beyond(document: RunDocument): string {
  const gain = headline(document).overEmpty;
  const most = ceiling(document);
  if (gain?.low == null || most === null || claims.shown(gain) !== "faster" || gain.low <= most) return "";
  return (
    `The kernels gained more than the ceilings of their targets together allow (${format.ratio(most)}): ` +
    "ceilings come from shares and limits that were measured at another moment, each target alone; " +
    "what was measured in the model is what counts."
  );
}

/** Speed-up of a run with all installed targets at their rooflines; null where one has none. */
function ceiling({ decisions, targets }: RunDocument): number | null {
  const chosen = new Set(decisions.filter((d) => d.installed).map((d) => d.target));
  let left = 1;
  for (const target of targets) {
    if (!chosen.has(target.index)) continue;
    if (!target.ceiling) return null;
    left -= 1 - 1 / target.ceiling;
  }
  return chosen.size > 0 && left > 0 ? 1 / left : null;
}

/** Whether the notes of a profile say that it was taken beside other work. */
function crowded({ workload }: RunDocument): boolean {
  return workload.notes.some((note) => note.startsWith(CROWDED));
}

/** Whether the guard's time of the untouched model is another one than the profile's. */
function apart(document: RunDocument): boolean {
  const [wall, found] = [document.workload.wall_us, untouchedUs(document)];
  return wall !== null && found !== null && wall > 0 && found > 0 && Math.max(wall / found, found / wall) > APART;
}
