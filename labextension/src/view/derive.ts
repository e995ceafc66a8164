/** What the view shows but the document does not say outright. Pure functions of the document. */
import type { Node, RunDocument, Target, WholeRow } from "./document";

export interface Headline {
  /** The guard has decided, and installs no kernel. */
  nothingWon: boolean;
  /** How the rest of the graph runs in the two rows; null before the guard has measured. */
  rest: string | null;
  /** The guarded model against the same rest without kernels. */
  overEmpty: WholeRow | null;
  /** The guarded model, or the rest alone where nothing won, against the untouched eager model. */
  overEager: WholeRow | null;
  /** The guarded model against torch.compile; null where that was not measured. */
  overCompile: WholeRow | null;
  /** Why it was not, where anything could have been and somebody knows. */
  uncompared: string;
  /** Whole-model gain if every best candidate holds in the model; never a measurement. */
  estimate: number | null;
}

/** The whole-model figures of the recommended rest, or of the first one that was measured. */
export function headline(document: RunDocument): Headline {
  const nothingWon = document.decisions.length > 0 && !document.decisions.some((d) => d.installed);
  // A rest that kept no kernel was measured "empty", any other one "guarded".
  const rows = ["guarded", "empty"].flatMap((n) => document.whole.filter((row) => row.name === n));
  const wanted = document.recommendation?.rest;
  const rest = (rows.find((row) => row.rest === wanted) ?? rows[0])?.rest ?? null;
  const against = (name: string): WholeRow | null =>
    rows.find((row) => row.rest === rest && row.against === name) ?? null;
  return {
    nothingWon,
    rest,
    overEmpty: nothingWon ? null : against("empty"),
    overEager: against("eager"),
    overCompile: nothingWon ? null : against("compile"),
    uncompared: nothingWon || against("compile") !== null ? "" : uncompared(document),
    estimate: estimate(document.targets, bestSpeedups(document)),
  };
}

/** How the guard's notes begin that say why torch.compile was not measured, the surest first. */
const NO_COMPILE = [
  "there is no comparison with torch.compile: ",
  "rest=inductor was not used: ",
  "rest=inductor failed: ",
  "rest=inductor was not tried: ",
];

/** Why nothing was measured against torch.compile; empty where something was, and where nobody knows. */
export function uncompared({ options, whole, workload }: RunDocument): string {
  if (whole.length === 0 || whole.some((row) => row.against === "compile")) return "";
  if (options["baseline"] === "eager") return "not asked for (--baseline eager)";
  const told = NO_COMPILE.flatMap((start) =>
    workload.notes.filter((note) => note.startsWith(start)).map((note) => note.slice(start.length)),
  );
  return told[0] ?? "";
}

/** Speed-up of each target's best accepted candidate, by target index. */
export function bestSpeedups(document: RunDocument): Map<number, number> {
  const best = new Map<number, number>();
  for (const node of document.nodes) raise(best, node);
  return best;
}

function raise(best: Map<number, number>, node: Node): void {
  if (node.verdict !== "accepted" || node.speedup == null) return;
  if (node.speedup > (best.get(node.target) ?? 1)) best.set(node.target, node.speedup);
}

/** Amdahl over the shares; null where no target has a share. */
export function estimate(targets: Target[], speedups: Map<number, number>): number | null {
  let left = 1;
  let known = false;
  for (const target of targets) {
    if (target.share == null) continue;
    known = true;
    left -= target.share * (1 - 1 / (speedups.get(target.index) ?? 1));
  }
  return known && left > 0 ? 1 / left : null;
}

export interface ProgressPoint {
  judged: number;
  usd: number;
  seconds: number;
  gain: number;
}

/** The estimate after each judged candidate, with what had been spent by then. */
export function progress(document: RunDocument): ProgressPoint[] {
  const nodes = [...document.nodes].sort((a, b) => a.created.localeCompare(b.created));
  const costs = [...document.costs].sort((a, b) => a.created.localeCompare(b.created));
  const start = Date.parse(document.created);
  const best = new Map<number, number>();
  let usd = 0;
  let spent = 0;
  return nodes.map((node, index) => {
    for (; spent < costs.length; spent += 1) {
      const cost = costs[spent];
      if (cost === undefined || cost.created > node.created) break;
      usd += cost.usd ?? 0;
    }
    raise(best, node);
    return {
      judged: index + 1,
      usd,
      seconds: Math.max(0, (Date.parse(node.created) - start) / 1000),
      gain: estimate(document.targets, best) ?? 1,
    };
  });
}

/** Ids on the way from the root to `nodeId`, both ends included. */
export function pathTo(nodes: Node[], nodeId: string | null): Set<string> {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const path = new Set<string>();
  for (let id = nodeId; id !== null && !path.has(id); id = byId.get(id)?.parent ?? null) path.add(id);
  return path;
}

/** Money and calls spent so far. */
export function spent(document: RunDocument): { usd: number; calls: number } {
  return document.costs.reduce(
    (sum, cost) => ({ usd: sum.usd + (cost.usd ?? 0), calls: sum.calls + cost.calls }),
    { usd: 0, calls: 0 },
  );
}

/** Milliseconds of the workload that the best candidates save; never a measurement. */
export function savedMs(document: RunDocument): number {
  const best = bestSpeedups(document);
  return document.targets.reduce((sum, target) => {
    const speedup = best.get(target.index) ?? 1;
    return sum + ((target.mean_us ?? 0) * target.calls * (1 - 1 / speedup)) / 1000;
  }, 0);
}

/** Whether work is still going on. */
export function running(document: RunDocument): boolean {
  return ["profiling", "searching", "guarding"].includes(document.state);
}
