/**
 * What figures allow to say, in words. Python's twin is `kforge_nb/view/claims.py`.
 *
 * A gain is claimed only where the whole interval lies above 1: anything else reads as a difference
 * that was not shown, however large the figure in its middle is.
 */
import type { Decision, Fidelity, RunDocument, Target } from "./document";
import * as format from "./format";

/** The figures of a comparison, as rows of the document have them. */
export interface Compared {
  ratio: number | null;
  low: number | null;
  high: number | null;
}

export type Shown = "faster" | "slower" | "same" | "open" | "none";

/** Intervals nearer to 1 than three digits can tell say nothing. */
const HAIR = 0.0005;

/** What an interval shows; `open` has a figure without an interval, `none` no figure. */
export function shown(row: Compared | null | undefined): Shown {
  if (row?.ratio == null) return "none";
  if (row.low === null || row.high === null) return "open";
  if (row.low > 1 + HAIR) return "faster";
  return row.high < 1 - HAIR ? "slower" : "same";
}

export interface Claim {
  figure: string;
  spread: string;
  link: string;
}

const LINKS: Record<Shown, string> = {
  faster: "over",
  slower: "the speed of",
  same: "against",
  open: "against",
  none: "against",
};

/** A comparison in three parts, to be followed by what it is against. */
export function claim(row: Compared | null | undefined): Claim {
  const what = shown(row);
  const link = LINKS[what];
  if (row == null || what === "none") return { figure: "not measured", spread: "", link };
  if (what === "open") return { figure: format.ratio(row.ratio), spread: "(no interval)", link };
  const { figure, spread } = figures(row);
  const lead = { faster: figure, slower: `slower: ${figure}`, same: "no difference shown" }[what];
  return { figure: lead, spread: `(${spread})`, link };
}

/** The same as one text. */
export function versus(row: Compared | null | undefined, what: string): string {
  const { figure, spread, link } = claim(row);
  return [figure, spread, link, what].filter((part) => part !== "").join(" ");
}

/** Ratio and interval apart; a third digit where two would hide on which side of 1 an end lies. */
export function figures(row: Compared): { figure: string; spread: string } {
  if (row.low === null || row.high === null) return { figure: format.ratio(row.ratio), spread: "" };
  const ends = [row.low, row.high];
  if (!ends.some((end) => end.toFixed(2) === "1.00")) {
    return { figure: format.ratio(row.ratio), spread: format.interval(row.low, row.high) };
  }
  const digits = (value: number | null): string => value?.toFixed(3) ?? format.NONE;
  return { figure: `${digits(row.ratio)}×`, spread: ends.map(digits).join(" to ") };
}

/** Ratio and interval for a table: `2.31× (2.27 to 2.35)`. */
export function measured(row: Compared | null | undefined): string {
  if (row?.ratio == null) return format.NONE;
  const { figure, spread } = figures(row);
  return spread === "" ? figure : `${figure} (${spread})`;
}

/** What the guard did with a target and why, with a sign before it. */
export function decision({ installed, reason }: Decision): { verdict: string; why: string } {
  const why = reason.replace(/^(kept original)?(replaced)?[: ]*/, "");
  return { verdict: installed ? "● replaced" : "○ kept original", why };
}

/** Output error against eager's own. */
export function fidelity(found: Fidelity | null): string {
  if (found === null) return "not measured";
  if (found["infinite"] === true) return "an error where eager has none";
  return found.ratio === null ? "not measured" : `${format.ratio(found.ratio)} eager's error`;
}

/** Which rests take the kernel, where some do and several were measured; else nothing. */
export function byRest({ rests = [] }: Pick<Decision, "rests">): string {
  const named = (kept: boolean): string =>
    rests
      .filter((entry) => entry.installed === kept)
      .map((entry) => entry.rest)
      .join(", ");
  if (named(true) === "" || rests.length === 1) return "";
  const original = named(false);
  return `replaced with rest ${named(true)}${original === "" ? "" : `; original with ${original}`}`;
}

/** That nothing won inside the model, and with which other rests something did. */
export function nothingWon(decisions: readonly Pick<Decision, "rests">[]): string {
  const won = decisions.flatMap(({ rests = [] }) => rests.filter((entry) => entry.installed));
  const rests = [...new Set(won.map((entry) => entry.rest))].join(", ");
  if (rests === "") return "nothing won inside the model";
  return `nothing won with the recommended rest; kernels won with ${rests}`;
}

/** What became of an installed kernel at run time; empty where nothing was counted. */
export function counted(found: Decision["counters"]): string {
  if (found == null) return "";
  const fallbacks = Object.entries(found.fallbacks).filter(([, n]) => n > 0);
  const total = fallbacks.reduce((sum, [, n]) => sum + n, 0);
  const why = fallbacks.map(([reason, n]) => `${reason} ${format.thousands(n)}`).join(", ");
  const ran = found.launches + found.replayed > 0;
  if (!ran && total === 0) return found.note === "" ? "not called yet" : `off: ${found.note}`;
  return [
    format.count(found.launches, "launch", "launches"),
    found.replayed > 0 ? `${format.thousands(found.replayed)} more in CUDA graphs` : "",
    total === 0 ? "no fallback" : `${format.count(total, "fallback")}: ${why}`,
    found.note === "" ? "" : `off: ${found.note}`,
  ]
    .filter((part) => part !== "")
    .join(", ");
}

/** Calls of the model since `apply()`, and how many went past kernels; empty where nothing was counted. */
export function atRunTime(counters: RunDocument["counters"]): string {
  const calls = counters?.["calls"];
  if (typeof calls !== "object" || calls === null) return "";
  const { calls: total, compiled, original, bypassed, hooked } = calls as Record<string, unknown>;
  if (typeof total !== "number" || typeof compiled !== "number") return "";
  const past = [
    [original, "of these with the original at a kernel's place"],
    [bypassed, "ran plain, past the kernels"],
    [hooked, "ran plain because of hooks added later"],
  ].filter((pair): pair is [number, string] => typeof pair[0] === "number" && pair[0] > 0);
  const parts = [
    `${format.count(total, "call")} of the model since apply()`,
    `${format.thousands(compiled)} compiled`,
    ...past.map(([n, text]) => `${format.thousands(n)} ${text}`),
  ];
  return `At run time: ${parts.join(", ")}.`;
}

/** What became of a target, in words. */
export function state(target: Target, tried: number): string {
  const reason = target.state_reason;
  if (target.vendor && tried === 0) return reason || "not searched (vendor op)";
  const now = standing(target);
  const words = tried === 0 ? now : `${now}, ${format.count(tried, "candidate")}`;
  return reason === "" ? words : `${words}: ${reason}`;
}

/** A target's state, or what its own Pause or Stop has made of it. */
export function standing(target: Target): string {
  return target.stopping === true ? "stopping" : target.paused === true ? "paused" : target.state;
}

/** A run's state as people know it: what it does after its search is not searching any more. */
export function doing({ state: now, progress }: Pick<RunDocument, "state" | "progress">): string {
  if (now === "searching" && progress.phase === "confirming") return "confirming its winners";
  return now === "guarding" ? "measuring in the model" : now;
}
