/** Where the keyboard goes from one item of the tree: parent, child, sibling, or the next in the column. */
import type { Item } from "./layout";

/** The item that a key leads to; null where it leads nowhere. */
export function walked(key: string, from: Item, items: readonly Item[]): Item | null {
  switch (key) {
    case "ArrowLeft":
      return from.parent;
    case "ArrowRight":
      return from.children[0] ?? null;
    case "ArrowDown":
      return sibling(from, 1) ?? inColumn(from, items, 1);
    case "ArrowUp":
      return sibling(from, -1) ?? inColumn(from, items, -1);
    case "Home":
      return items[0] ?? null;
    case "End":
      return items.at(-1) ?? null;
    default:
      return null;
  }
}

function sibling(from: Item, step: number): Item | null {
  const siblings = from.parent?.children ?? [];
  return siblings[siblings.indexOf(from) + step] ?? null;
}

/** The next item of the same column, above or below: a cousin. */
function inColumn(from: Item, items: readonly Item[], step: number): Item | null {
  let nearest: Item | null = null;
  for (const item of items) {
    if (item.level !== from.level || (item.y - from.y) * step <= 0) continue;
    if (nearest === null || (item.y - nearest.y) * step < 0) nearest = item;
  }
  return nearest;
}
