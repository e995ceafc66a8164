/** Places the search tree: eager on top, candidates below, crowds of failures folded into one. */
import { hierarchy, tree } from "d3-hierarchy";
import type { Node } from "./document";
import { correct } from "./verdicts";

/** Failed leaves under one parent that are still shown one by one. */
const FOLD_ABOVE = 4;
const COLUMN = 104;
const ROW = 50;
const MARGIN = 20;
/** Room for the words right of the last mark. */
const LABEL = 110;

/** A drawn item: the eager root, one candidate, or several folded failures. */
export interface Item {
  id: string;
  node: Node | null;
  folded: Node[];
  children: Item[];
}

export interface Placed {
  item: Item;
  parent: string | null;
  level: number;
  x: number;
  y: number;
}

export interface Layout {
  placed: Placed[];
  width: number;
  height: number;
}

/** Root, children and folded crowds, as data; `keep` is never folded away. */
export function items(nodes: Node[], keep: ReadonlySet<string>): Item {
  const ids = new Set(nodes.map((node) => node.id));
  const below = new Map<string, Node[]>();
  for (const node of nodes) {
    const parent = node.parent !== null && ids.has(node.parent) ? node.parent : "";
    below.set(parent, [...(below.get(parent) ?? []), node]);
  }
  const grow = (id: string, node: Node | null): Item => {
    const children = below.get(id) ?? [];
    const failed = children.filter(
      (child) => !correct(child.verdict) && !below.has(child.id) && !keep.has(child.id),
    );
    const hidden = new Set(failed.length > FOLD_ABOVE ? failed : []);
    const shown = children.filter((c) => !hidden.has(c)).map((child) => grow(child.id, child));
    const folded: Item[] =
      hidden.size === 0
        ? []
        : [{ id: `${id}/folded`, node: null, folded: [...hidden], children: [] }];
    return { id, node, folded: [], children: [...shown, ...folded] };
  };
  return grow("", null);
}

/** Positions in pixels, and the size of the whole drawing. */
export function layout(root: Item): Layout {
  const laid = tree<Item>().nodeSize([COLUMN, ROW])(hierarchy(root));
  const all = laid.descendants();
  const left = Math.min(...all.map((d) => d.x));
  const right = Math.max(...all.map((d) => d.x));
  const placed = all.map((d) => ({
    item: d.data,
    parent: d.parent?.data.id ?? null,
    level: d.depth + 1,
    x: d.x - left + MARGIN,
    y: d.y + 24,
  }));
  return { placed, width: right - left + MARGIN + LABEL, height: Math.max(...all.map((d) => d.y)) + 48 };
}
