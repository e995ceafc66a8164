/** Lines and far-off dots of the tree as few long paths: a browser draws these faster than many short ones. */
import { edge, type Item, type Layout } from "./layout";
import type { Drawn } from "./useEye";
import { look, type Tone } from "./verdicts";

/** Lines to the items of a set, or to all of them; only those that cross the drawn area. */
export function lines(tree: Layout, drawn: Drawn, only: ReadonlySet<string> | null): string {
  const { area } = drawn;
  let d = "";
  for (const item of tree.items) {
    const { parent } = item;
    if (parent === null || (only !== null && !only.has(item.id))) continue;
    if (parent.x > area.right || item.x < area.left) continue;
    if (parent.y > area.bottom || item.y < area.top) continue;
    d += edge(item);
  }
  return d;
}

/** One path of dots for each tone. */
export function dots(tree: Layout): [Tone, string][] {
  const paths = new Map<Tone, string>();
  for (const item of tree.items) {
    const tone = toneOf(item);
    paths.set(tone, `${paths.get(tone) ?? ""}M${item.x} ${item.y}h.1`);
  }
  return [...paths];
}

function toneOf(item: Item): Tone {
  if (item.node !== null) return look(item.node.verdict).tone;
  return item.folded.length > 0 ? "bad" : "quiet";
}
