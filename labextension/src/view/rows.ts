/** The rows of the target table: what they show, and how they are sorted, filtered and grouped. */
import * as claims from "./claims";
import type { Node, RunDocument, Target } from "./document";
import { rough } from "./profiled";

export interface TargetRow {
  target: Target;
  best: Node | null;
  tried: number;
  installed: boolean | null;
  /** The best was accepted in the search, and not confirmed when it was timed again. */
  unconfirmed: boolean;
  eager: number | null;
  compile: number | null;
  ours: number | null;
  /** Part of the roofline's speed that eager reaches, and that the best kernel reaches. */
  eagerRoof: number | null;
  oursRoof: number | null;
  /** Share and ceiling are of a moment when the machine was another one. */
  rough: boolean;
  state: string;
  /** What the text filter looks through. */
  words: string;
}

export type Key =
  | "target" | "share" | "calls" | "eager" | "compile" | "ours"
  | "speedup" | "roofline" | "ceiling" | "state";

/** A part of the roofline that can still be luck of measuring. */
const BELIEVABLE = 1 / 0.95;

export type Only = "all" | "kernels" | "searched" | "vendor";

/** One row a target, in the document's order. */
export function targetRows(document: RunDocument): TargetRow[] {
  const nodes = new Map(document.nodes.map((node) => [node.id, node]));
  const decided = new Map(document.decisions.map((d) => [d.target, d.installed]));
  const without = new Set(document.decisions.filter((d) => d.node === null).map((d) => d.target));
  const tried = new Map<number, number>();
  const isRough = rough(document) !== "";
  for (const node of document.nodes) tried.set(node.target, (tried.get(node.target) ?? 0) + 1);
  return document.targets.map((target) => {
    const best = target.best === null ? null : (nodes.get(target.best) ?? null);
    const count = tried.get(target.index) ?? 0;
    const eager = best?.eager_us ?? target.mean_us;
    return {
      target,
      best,
      tried: count,
      installed: decided.get(target.index) ?? null,
      unconfirmed: best?.verdict === "accepted" && without.has(target.index),
      eager,
      compile: best?.compile_us ?? null,
      ours: best?.ours_us ?? null,
      eagerRoof: part(target.roofline_us, eager),
      oursRoof: part(target.roofline_us, best?.ours_us ?? null),
      rough: isRough,
      state: claims.state(target, count),
      words: [target.index, target.name, target.variant, target.family, target.state, ...target.modules]
        .join(" ")
        .toLowerCase(),
    };
  });
}

/**
 * A part of the roofline's speed; null where it is not known, or where a call was clearly faster, so
 * that the roofline is none (the machine was busy when it was measured, or data stay in a cache).
 */
function part(roofline: number | null, us: number | null): number | null {
  if (roofline === null || us === null || us <= 0 || roofline / us > BELIEVABLE) return null;
  return Math.min(roofline / us, 1);
}

const VALUES: Record<Key, (row: TargetRow) => number | string | null> = {
  target: (row) => row.target.name,
  share: (row) => row.target.share,
  calls: (row) => row.target.calls,
  eager: (row) => row.eager,
  compile: (row) => row.compile,
  ours: (row) => row.ours,
  speedup: (row) => row.best?.speedup ?? null,
  roofline: (row) => row.oursRoof ?? row.eagerRoof,
  ceiling: (row) => row.target.ceiling,
  state: (row) => row.state,
};

/** Sorted by a column; what has no figure comes last either way, equal rows by their index. */
export function sorted(rows: readonly TargetRow[], key: Key, down: boolean): TargetRow[] {
  const value = VALUES[key];
  return [...rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    const order = compare(x, y, down);
    return order === 0 ? a.target.index - b.target.index : order;
  });
}

function compare(x: number | string | null, y: number | string | null, down: boolean): number {
  if (x === null || y === null) return (x === null ? 1 : 0) - (y === null ? 1 : 0);
  const order =
    typeof x === "string" || typeof y === "string" ? String(x).localeCompare(String(y)) : x - y;
  return down ? -order : order;
}

const KINDS: Record<Only, (row: TargetRow) => boolean> = {
  all: () => true,
  kernels: (row) => row.best !== null,
  searched: (row) => row.tried > 0,
  vendor: (row) => row.target.vendor,
};

/** Whether a row is of a kind. */
export function isKind(row: TargetRow, only: Only): boolean {
  return KINDS[only](row);
}

/** Rows of a kind in which every word of `text` occurs somewhere. */
export function filtered(rows: readonly TargetRow[], text: string, only: Only): TargetRow[] {
  const wanted = text.toLowerCase().split(/\s+/).filter((word) => word !== "");
  return rows.filter((row) => isKind(row, only) && wanted.every((word) => row.words.includes(word)));
}

const SMALL = 0.005;
const MOST = 40;
const WORTH_HIDING = 4;

/**
 * The rows to show at first, and the others: those under 0.5% of the time that no candidate was
 * tried for, and whatever comes after forty. A handful is not worth hiding. What was looked for by
 * its words (`wanted`) is shown whatever it weighs.
 */
export function headAndTail(
  rows: readonly TargetRow[],
  wanted: boolean,
): { head: TargetRow[]; tail: TargetRow[] } {
  const head: TargetRow[] = [];
  const tail: TargetRow[] = [];
  for (const row of rows) {
    const weighs = wanted || (row.target.share ?? 0) >= SMALL || row.tried > 0;
    (weighs && head.length < MOST ? head : tail).push(row);
  }
  return tail.length < WORTH_HIDING ? { head: [...rows], tail: [] } : { head, tail };
}

export interface Group {
  module: string;
  rows: TargetRow[];
  share: number;
}

/** Rows by the part of the model they stand in, the largest share first. */
export function grouped(rows: readonly TargetRow[]): Group[] {
  const groups = new Map<string, Group>();
  for (const row of rows) {
    const module = moduleOf(row.target);
    const group = groups.get(module) ?? { module, rows: [], share: 0 };
    group.rows.push(row);
    group.share += row.target.share ?? 0;
    groups.set(module, group);
  }
  return [...groups.values()].sort((a, b) => b.share - a.share);
}

/**
 * Where a target stands: `encoder.layer.*.output` for the same place in every layer, and what these
 * places have in common where there are several.
 */
export function moduleOf(target: Target): string {
  const places = target.modules.map(pattern);
  const first = places[0]?.split(".") ?? [];
  let common = first.length;
  for (const place of places) {
    const parts = place.split(".");
    const differs = first.findIndex((part, i) => part !== parts[i]);
    if (differs >= 0) common = Math.min(common, differs);
  }
  return first.slice(0, common).join(".") || "(the whole model)";
}

/** A path with its numbers as `*`, cut one step after the first of them. */
function pattern(path: string): string {
  const parts = path.split(".").map((part) => (/^\d+$/.test(part) ? "*" : part));
  const star = parts.indexOf("*");
  return (star < 0 ? parts : parts.slice(0, star + 2)).join(".");
}

/** Sum of the shares that are known. */
export function shareOf(rows: readonly TargetRow[]): number {
  return rows.reduce((sum, row) => sum + (row.target.share ?? 0), 0);
}
