/**
 * Places the search tree: eager at the left, each step to the right, siblings downwards in the order
 * they were tried. A parent stands in the row of its first child, so it never moves again, and what is
 * tried later only pushes down what stands below it. A crowd of failures is one item, where the first
 * of them was. Python's twin for still pictures is `kforge_nb/view/treelayout.py`.
 */
import type { Node } from "./document";
import { correct } from "./verdicts";

export const COLUMN = 112;
export const ROW = 30;
/** Failed leaves under one parent that are still shown one by one. */
const FOLD_ABOVE = 3;
const CORNER = 9;

/** A drawn item: the eager root, one candidate, or a crowd of failures. */
export interface Item {
  id: string;
  node: Node | null;
  /** Failures that this item stands for; shown as its children once it is open. */
  folded: Node[];
  /** Whether something below it is hidden. */
  closed: boolean;
  /** How many candidates are hidden below. */
  hidden: number;
  parent: Item | null;
  children: Item[];
  level: number;
  x: number;
  y: number;
}

export interface Layout {
  /** All items, parents before children, from top to bottom. */
  items: Item[];
  byId: ReadonlyMap<string, Item>;
  width: number;
  height: number;
}

/** What the user has opened and closed, by item; crowds are closed until they are opened. */
export interface Folds {
  opened: ReadonlySet<string>;
  closed: ReadonlySet<string>;
}

export const NO_FOLDS: Folds = { opened: new Set(), closed: new Set() };

/** The same with an item the other way round. */
export function toggled({ opened, closed }: Folds, item: Item): Folds {
  const [open, shut] = [new Set(opened), new Set(closed)];
  const [to, from] = item.closed ? [open, shut] : [shut, open];
  to.add(item.id);
  from.delete(item.id);
  return { opened: open, closed: shut };
}
export const ROOT = "";

/**
 * The tree as it is drawn. What is in `keep` is never folded into a crowd; with `mainOnly`, all
 * branches off it are closed.
 */
export function layout(
  nodes: readonly Node[],
  keep: ReadonlySet<string>,
  folds: Folds = NO_FOLDS,
  mainOnly = false,
): Layout {
  const shut = (id: string): boolean =>
    !folds.opened.has(id) && (folds.closed.has(id) || (mainOnly && id !== ROOT && !keep.has(id)));
  const items = grown(nodes, keep, shut, folds.opened);
  const { width, height } = place(items);
  return { items, byId: new Map(items.map((item) => [item.id, item])), width, height };
}

/** Items in the order of a walk that takes a node before its children; no recursion, chains are deep. */
function grown(
  nodes: readonly Node[],
  keep: ReadonlySet<string>,
  shut: (id: string) => boolean,
  opened: ReadonlySet<string>,
): Item[] {
  const below = childrenOf(nodes);
  const items: Item[] = [];
  const waiting: Item[] = [item(ROOT, null, null)];
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    items.push(next);
    if (below.has(next.id) && shut(next.id)) {
      next.closed = true;
      next.hidden = count(next.id, below);
      continue;
    }
    next.children = next.folded.length > 0 ? crowd(next, opened) : family(next, below, keep);
    for (let i = next.children.length - 1; i >= 0; i -= 1) waiting.push(next.children[i] as Item);
  }
  return items;
}

function item(id: string, node: Node | null, parent: Item | null, folded: Node[] = []): Item {
  const level = parent === null ? 0 : parent.level + 1;
  return { id, node, folded, closed: false, hidden: 0, parent, children: [], level, x: 0, y: 0 };
}

/** By parent; one that does not come before its child is none, so a ring loses no node. */
function childrenOf(nodes: readonly Node[]): Map<string, Node[]> {
  const seen = new Set<string>();
  const below = new Map<string, Node[]>();
  for (const node of nodes) {
    const parent = node.parent !== null && seen.has(node.parent) ? node.parent : ROOT;
    seen.add(node.id);
    const list = below.get(parent);
    if (list === undefined) below.set(parent, [node]);
    else list.push(node);
  }
  return below;
}

/** Children of a candidate; failures that led nowhere become one item once they are many. */
function family(of: Item, below: Map<string, Node[]>, keep: ReadonlySet<string>): Item[] {
  const children = below.get(of.id) ?? [];
  const failed = children.filter((c) => !correct(c.verdict) && !below.has(c.id) && !keep.has(c.id));
  if (failed.length <= FOLD_ABOVE) return children.map((child) => item(child.id, child, of));
  const hidden = new Set(failed);
  return children.flatMap((child) => {
    if (child === failed[0]) return [item(`${of.id}/failed`, null, of, failed)];
    return hidden.has(child) ? [] : [item(child.id, child, of)];
  });
}

function crowd(of: Item, opened: ReadonlySet<string>): Item[] {
  if (opened.has(of.id)) return of.folded.map((node) => item(node.id, node, of));
  of.closed = true;
  of.hidden = of.folded.length;
  return [];
}

/** Candidates anywhere below one. */
function count(id: string, below: Map<string, Node[]>): number {
  let found = 0;
  const waiting = [id];
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    for (const child of below.get(next) ?? []) {
      found += 1;
      waiting.push(child.id);
    }
  }
  return found;
}

/** Rows and columns: a chain of first children shares a row, the next sibling gets the first free one. */
function place(items: readonly Item[]): { width: number; height: number } {
  const free: number[] = []; // first free row of each level
  let columns = 0;
  let rows = 0;
  for (const start of items) {
    if (start.parent?.children[0] === start) continue; // placed with its parent
    let row = 0;
    for (let at: Item | undefined = start; at !== undefined; at = at.children[0]) {
      row = Math.max(row, free[at.level] ?? 0);
    }
    for (let at: Item | undefined = start; at !== undefined; at = at.children[0]) {
      at.x = at.level * COLUMN;
      at.y = row * ROW;
      free[at.level] = row + 1;
      columns = Math.max(columns, at.level);
    }
    // The line down from the parent to here stays free of its younger siblings.
    if (start.parent !== null) free[start.parent.level] = row + 1;
    rows = Math.max(rows, row);
  }
  return { width: columns * COLUMN, height: rows * ROW };
}

/** The line from a parent: down its column, round the corner, along the child's row. */
export function edge(child: Item): string {
  const { parent, x, y } = child;
  if (parent === null) return "";
  if (parent.y === y) return `M${parent.x} ${y}H${x}`;
  return `M${parent.x} ${parent.y}V${y - CORNER}q0 ${CORNER} ${CORNER} ${CORNER}H${x}`;
}
