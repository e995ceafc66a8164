/** One node's mark: shape and tone by verdict, size by visits, a ring around the best. */
import type { JSX } from "preact";
import type { Node } from "./document";
import { look, type Shape } from "./verdicts";

export function Mark({ node, best }: { node: Node | null; best: boolean }): JSX.Element {
  const size = node === null ? 7 : 5 + Math.min(6, Math.log2(1 + node.visits));
  const { shape, tone } = node === null ? ({ shape: "ring", tone: "quiet" } as const) : look(node.verdict);
  return (
    <g class={`kforge-mark kforge-${tone}`}>
      {best && <circle class="halo" r={size + 4} />}
      {draw(shape, size)}
    </g>
  );
}

function draw(shape: Shape, r: number): JSX.Element {
  switch (shape) {
    case "disc":
      return <circle class="solid" r={r} />;
    case "ring":
      return <circle class="line" r={r} />;
    case "square":
      return <rect class="solid" x={-r * 0.8} y={-r * 0.8} width={r * 1.6} height={r * 1.6} />;
    case "cross":
      return <path class="line" d={`M${-r * 0.7} ${-r * 0.7}L${r * 0.7} ${r * 0.7}M${-r * 0.7} ${r * 0.7}L${r * 0.7} ${-r * 0.7}`} />;
    case "triangle":
      return <path class="line" d={`M0 ${-r}L${r} ${r * 0.8}L${-r} ${r * 0.8}Z`} />;
  }
}
