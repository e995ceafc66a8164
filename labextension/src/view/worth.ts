/**
 * Was it worth it: the gain against what it cost, and what equal budgets would have spent.
 *
 * The twin of kforge_nb/view/worth.py, which says how each figure is made; a test holds both to one
 * set of figures.
 */
import { estimate } from "./derive";
import type { Cost, RunDocument } from "./document";

/** What cost is counted in. */
export type Unit = "judged" | "calls" | "usd" | "seconds";

/** The gain reached (a speed-up) when so much had been spent. */
export type Spot = Record<Unit, number> & { gain: number };

/** What equal budgets would have spent for the result of a run: an estimate. */
export interface Uniform {
  rounds: number;
  targets: number;
  spent: Spot;
  ours: Spot;
  spots: Spot[];
}

interface Try {
  target: number;
  created: string;
  speedup: number;
  calls: number;
  usd: number;
  seconds: number;
}

const REACH = 0.99;
const NOTHING: Spot = { judged: 0, calls: 0, usd: 0, seconds: 0, gain: 1 };

/** Best gain so far against cost: for the whole model the expected one, for one target its own. */
export function curve(document: RunDocument, target?: number): Spot[] {
  const ours = (row: { target: number | null }): boolean => target === undefined || row.target === target;
  const costs = sorted(document.costs.filter(ours));
  const best = new Map<number, number>();
  const spots = [NOTHING];
  let last = NOTHING;
  let paid = 0;
  const pay = (until: string | null): void => {
    for (let cost = costs[paid]; cost && (until === null || cost.created <= until); cost = costs[paid]) {
      last = { ...last, calls: last.calls + cost.calls, usd: last.usd + (cost.usd ?? 0) };
      paid += 1;
    }
  };
  for (const one of tries(document).filter(ours)) {
    pay(one.created);
    last = { ...last, judged: last.judged + 1, seconds: last.seconds + one.seconds };
    if (one.speedup > (best.get(one.target) ?? 1)) {
      best.set(one.target, one.speedup);
      last.gain = target === undefined ? (estimate(document.targets, best) ?? 1) : one.speedup;
    }
    spots.push(last);
  }
  if (paid < costs.length) {
    pay(null);
    spots.push(last);
  }
  return spots;
}

/** What the same number of candidates for every target would have spent for the same result. */
export function uniform(document: RunDocument): Uniform | null {
  const everything = tries(document);
  const lists = document.targets
    .filter((target) => target.state !== "skipped")
    .map((target) => everything.filter((one) => one.target === target.index));
  const searched = lists.flat();
  const way = curve(document);
  const final = way.at(-1)?.gain ?? 1;
  if (lists.length < 2 || final <= 1) return null;
  const wanted = 1 / (1 - REACH * (1 - 1 / final));
  const most = Math.max(...lists.map((mine) => mine.length));
  const best = new Map<number, number>();
  const spots = [NOTHING];
  let last = NOTHING;
  while (last.gain < wanted && spots.length <= most) {
    const next = { ...last, judged: lists.length * spots.length };
    for (const mine of lists) {
      const one = mine[spots.length - 1] ?? mean(mine.length > 0 ? mine : searched);
      for (const unit of ["calls", "usd", "seconds"] as const) next[unit] += one[unit];
      if (one.speedup > (best.get(one.target) ?? 1)) best.set(one.target, one.speedup);
    }
    last = { ...next, gain: estimate(document.targets, best) ?? 1 };
    spots.push(last);
  }
  const reached = way.find((spot) => spot.gain >= wanted) ?? NOTHING;
  return { rounds: spots.length - 1, targets: lists.length, spent: last, ours: reached, spots };
}

function mean(some: Try[]): Try {
  const of = (unit: "calls" | "usd" | "seconds"): number =>
    some.reduce((sum, one) => sum + one[unit], 0) / some.length;
  return { target: -1, created: "", speedup: 0, calls: of("calls"), usd: of("usd"), seconds: of("seconds") };
}

const TRIES = new WeakMap<RunDocument, Try[]>();

function tries(document: RunDocument): Try[] {
  const known = TRIES.get(document) ?? made(document);
  TRIES.set(document, known);
  return known;
}

/** The judged candidates in order of time, each with its own calls and its part of the rest. */
function made(document: RunDocument): Try[] {
  const nodes = sorted(document.nodes);
  const known = new Set(nodes.map((node) => node.id));
  const own = new Map<string | number | null, { calls: number; usd: number }>();
  for (const cost of document.costs) {
    const key = cost.node !== null && known.has(cost.node) ? cost.node : cost.target;
    const sums = own.get(key) ?? { calls: 0, usd: 0 };
    own.set(key, { calls: sums.calls + cost.calls, usd: sums.usd + (cost.usd ?? 0) });
  }
  const counts = new Map<number, number>();
  for (const node of nodes) counts.set(node.target, (counts.get(node.target) ?? 0) + 1);
  let before = Date.parse(document.created);
  return nodes.map((node) => {
    const [mine, rest, n] = [own.get(node.id), own.get(node.target), counts.get(node.target) ?? 1];
    const then = Date.parse(node.created);
    const gap = Math.max(0, (then - before) / 1000);
    before = then;
    return {
      target: node.target,
      created: node.created,
      speedup: node.verdict === "accepted" ? (node.speedup ?? 0) : 0,
      calls: (mine?.calls ?? 0) + (rest?.calls ?? 0) / n,
      usd: (mine?.usd ?? 0) + (rest?.usd ?? 0) / n,
      seconds: node.seconds === null ? gap : Math.min(gap, node.seconds),
    };
  });
}

function sorted<Row extends { created: string }>(rows: readonly Row[]): Row[] {
  return [...rows].sort((a, b) => (a.created < b.created ? -1 : a.created > b.created ? 1 : 0));
}

/** What was spent on one target, or on the whole run, and what came of it. */
export interface Total extends Spot {
  failed: number;
  lost: number;
  open: number;
  tokensIn: number;
  tokensOut: number;
  /** Milliseconds that the best kernel saves in one run of the workload; null without a time. */
  savedMs: number | null;
}

/** Sums for one target; for the whole run where none is given. */
export function total(document: RunDocument, target?: number): Total {
  const costs = document.costs.filter((cost) => target === undefined || cost.target === target);
  const last = curve(document, target).at(-1) ?? NOTHING;
  const calls = (which: (cost: Cost) => boolean): number =>
    costs.filter(which).reduce((sum, cost) => sum + cost.calls, 0);
  const tokens = (which: "tokens_in" | "tokens_out"): number =>
    costs.reduce((sum, cost) => sum + cost[which], 0);
  const saved = document.targets
    .filter((one) => target === undefined || one.index === target)
    .map((one) => saves(document, one.index));
  return {
    ...last,
    failed: costs.filter((cost) => cost.state === "done" && cost.problem !== "").length,
    lost: calls((cost) => cost.state === "lost"),
    open: calls((cost) => cost.state === "open"),
    tokensIn: tokens("tokens_in"),
    tokensOut: tokens("tokens_out"),
    savedMs: saved.every((ms) => ms === null) ? null : saved.reduce<number>((sum, ms) => sum + (ms ?? 0), 0),
  };
}

function saves(document: RunDocument, index: number): number | null {
  const target = document.targets.find((one) => one.index === index);
  if (target?.mean_us == null) return null;
  const speedups = document.nodes
    .filter((node) => node.target === index && node.verdict === "accepted")
    .map((node) => node.speedup ?? 1);
  return (target.mean_us * target.calls * (1 - 1 / Math.max(1, ...speedups))) / 1000;
}

/** The units that say something of this run: no dollars where none were spent. */
export function units(document: RunDocument): Unit[] {
  const { usd, calls } = total(document);
  const paid: Unit[] = [...(usd > 0 ? ["usd" as const] : []), ...(calls > 0 ? ["calls" as const] : [])];
  return [...paid, ...(calls > 0 ? [] : ["judged" as const]), "seconds"];
}
