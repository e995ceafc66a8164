/** What the marks of the tree mean; only those that there are. */
import type { JSX } from "preact";
import type { Node } from "./document";
import { hasHostCode, LETTER } from "./hostcode";
import type { Item } from "./layout";
import { Mark } from "./Mark";
import { look } from "./verdicts";

interface Props {
  nodes: readonly Node[];
  /** Whether there is a way to a best candidate, and whether that one was accepted. */
  way: boolean;
  won: boolean;
}

export function Legend({ nodes, way, won }: Props): JSX.Element {
  const counts = new Map<Node["verdict"], number>();
  for (const node of nodes) counts.set(node.verdict, (counts.get(node.verdict) ?? 0) + 1);
  const examples = new Map(nodes.map((node) => [node.verdict, node]));
  const marked = nodes.filter(hasHostCode);
  return (
    <ul class="kforge-marks" aria-label="What the marks mean">
      {[...counts].map(([verdict, count]) => (
        <li key={verdict}>
          <Sign node={examples.get(verdict) ?? null} /> {look(verdict).word} <b>{count}</b>
        </li>
      ))}
      {marked.length > 0 && (
        <li>
          <svg width="14" height="12" viewBox="-7 -6 14 12" aria-hidden="true">
            <rect class="frame" x={-5} y={-5} width={10} height={10} />
          </svg>{" "}
          {LETTER}, framed: torch extension with host code <b>{marked.length}</b>
        </li>
      )}
      <li>larger: visited more often</li>
      {way && (
        <li>
          <svg width="26" height="12" aria-hidden="true">
            <path class={won ? "kforge-edge best" : "kforge-edge way"} d="M2 6H24" />
          </svg>{" "}
          {won ? "way to the best" : "way to the fastest, which is no proven gain"}
        </li>
      )}
    </ul>
  );
}

function Sign({ node }: { node: Node | null }): JSX.Element {
  const item = { node: node && { ...node, visits: 1, language: "cpp" }, folded: [], closed: false } as unknown as Item;
  return (
    <svg width="14" height="12" viewBox="-7 -6 14 12" aria-hidden="true">
      <Mark item={item} best={false} />
    </svg>
  );
}
