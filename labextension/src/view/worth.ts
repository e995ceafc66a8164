/**
 * Was it worth it: the gain against what it cost, and what equal budgets would have spent.
 *
 * The twin of kforge_nb/view/worth.py, which says how each figure is made; a test holds both to one
 * set of figures.
 */
import { estimate } from "./derive";
import type { Cost, RunDocument, Target } from "./document";

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
  const { tries, costs } = booked(document, target);
  const best = new Map<number, number>();
  const spots = [NOTHING];
  let last = NOTHING;
  let paid = 0;
  const settle = (until: string | null): void => {
    for (let cost = costs[paid]; cost && (until === null || cost.created <= until); cost = costs[paid]) {
      last = { ...last, calls: last.calls + cost.calls, usd: last.usd + (cost.usd ?? 0) };
      paid += 1;
    }
  };
  for (const one of tries) {
    settle(one.created);
    last = { ...last, judged: last.judged + 1, seconds: last.seconds + one.seconds };
    if (one.speedup > (best.get(one.target) ?? 1)) {
      best.set(one.target, one.speedup);
      last.gain = target === undefined ? (estimate(document.targets, best) ?? 1) : one.speedup;
    }
    spots.push(last);
  }
  if (paid < costs.length) {
    settle(null);
    spots.push(last);
  }
  return spots;
}

/** What the same number of candidates for every target would have spent for the same result. */
export function uniform(document: RunDocument): Uniform | null {
  const lists = document.targets
    .filter((target) => target.state !== "skipped")
    .map((target) => booked(document, target.index).tries);
  const way = curve(document);
  const final = way.at(-1)?.gain ?? 1;
  if (lists.length < 2 || final <= 1) return null;
  const wanted = 1 / (1 - REACH * (1 - 1 / final));
  const spots = rounds(document, lists, wanted);
  const reached = way.find((spot) => spot.gain >= wanted) ?? NOTHING;
  return { rounds: spots.length - 1, targets: lists.length, spent: spots.at(-1) ?? NOTHING, ours: reached, spots };
}

/** A candidate of each list in each round, until the gain is reached or there are no more of them. */
function rounds(document: RunDocument, lists: Try[][], wanted: number): Spot[] {
  const best = new Map<number, number>();
  const spots = [NOTHING];
  const missing: Price = { calls: 0, usd: 0, seconds: 0 }; // of a round, where targets have none left
  const searched = mean(lists.flat());
  for (const mine of lists) if (mine.length === 0) pay(missing, searched);
  let open = lists.filter((mine) => mine.length > 0);
  for (let last = NOTHING; last.gain < wanted && open.length > 0; spots.push(last)) {
    const round = spots.length;
    last = { ...last, judged: lists.length * round };
    pay(last, missing);
    let better = false;
    for (const mine of open) {
      const one = mine[round - 1];
      if (one === undefined) continue;
      pay(last, one);
      if (one.speedup > (best.get(one.target) ?? 1)) {
        best.set(one.target, one.speedup);
        better = true;
      }
      if (mine.length === round) pay(missing, mean(mine));
    }
    if (better) last.gain = estimate(document.targets, best) ?? 1;
    open = open.filter((mine) => mine.length > round);
  }
  return spots;
}

type Price = Pick<Try, "calls" | "usd" | "seconds">;

function pay(sums: Price, price: Price): void {
  sums.calls += price.calls;
  sums.usd += price.usd;
  sums.seconds += price.seconds;
}

/** What one of these cost on average; nothing where there is none. */
function mean(some: Try[]): Price {
  const sums: Price = { calls: 0, usd: 0, seconds: 0 };
  for (const one of some) pay(sums, one);
  const n = Math.max(1, some.length);
  return { calls: sums.calls / n, usd: sums.usd / n, seconds: sums.seconds / n };
}

/** What is needed of the document again and again, in order of time. */
interface Book {
  tries: Try[];
  costs: Cost[];
}

const ALL = "all";
const BOOKS = new WeakMap<RunDocument, Map<number | typeof ALL, Book>>();

/** Tries and costs of one target, or of the whole run; made once for all targets together. */
function booked(document: RunDocument, target?: number): Book {
  const books = BOOKS.get(document) ?? made(document);
  BOOKS.set(document, books);
  return books.get(target ?? ALL) ?? { tries: [], costs: [] };
}

function made(document: RunDocument): Map<number | typeof ALL, Book> {
  const all: Book = { tries: priced(document), costs: sorted(document.costs) };
  const books = new Map<number | typeof ALL, Book>([[ALL, all]]);
  const of = (target: number): Book => {
    const book = books.get(target) ?? { tries: [], costs: [] };
    books.set(target, book);
    return book;
  };
  for (const one of all.tries) of(one.target).tries.push(one);
  for (const cost of all.costs) if (cost.target !== null) of(cost.target).costs.push(cost);
  return books;
}

/** The judged candidates in order of time, each with its own calls and its part of the rest. */
function priced(document: RunDocument): Try[] {
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
  const { costs } = booked(document, target);
  const last = curve(document, target).at(-1) ?? NOTHING;
  const calls = (which: (cost: Cost) => boolean): number =>
    costs.filter(which).reduce((sum, cost) => sum + cost.calls, 0);
  const tokens = (which: "tokens_in" | "tokens_out"): number =>
    costs.reduce((sum, cost) => sum + cost[which], 0);
  const saved = document.targets
    .filter((one) => target === undefined || one.index === target)
    .map((one) => saves(one, booked(document, one.index).tries));
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

function saves(target: Target, tries: Try[]): number | null {
  if (target.mean_us === null) return null;
  const best = tries.reduce((most, one) => Math.max(most, one.speedup), 1);
  return (target.mean_us * target.calls * (1 - 1 / best)) / 1000;
}

/** The units that say something of this run: no dollars where none were spent. */
export function units(document: RunDocument): Unit[] {
  const { usd, calls } = total(document);
  const paid: Unit[] = [...(usd > 0 ? ["usd" as const] : []), ...(calls > 0 ? ["calls" as const] : [])];
  return [...paid, ...(calls > 0 ? [] : ["judged" as const]), "seconds"];
}
