/** One item's mark: shape and tone by verdict, size by visits, a ring around the best, a frame around host code. */
import type { JSX } from "preact";
import { hasHostCode } from "./hostcode";
import type { Item } from "./layout";
import { look, type Shape } from "./verdicts";

/** Radius of a mark in pixels: each doubling of visits adds as much as the one before. */
export function radius({ node, folded }: Item): number {
  const visits = node === null ? folded.length : node.visits;
  return 4 + Math.min(6, 0.75 * Math.log2(1 + visits));
}

export function Mark({ item, best }: { item: Item; best: boolean }): JSX.Element {
  const size = radius(item);
  const { node, folded } = item;
  if (node === null && folded.length > 0) return <Crowd size={size} open={!item.closed} />;
  const { shape, tone } = node === null ? ROOT_LOOK : look(node.verdict);
  return (
    <g class={`kforge-mark kforge-${tone}`}>
      {best && <circle class="halo" r={size + 4} />}
      {hasHostCode(node) && <Frame size={size} />}
      {draw(shape, size)}
    </g>
  );
}

/** A broken line around the mark. */
function Frame({ size }: { size: number }): JSX.Element {
  const r = size + 2;
  return <rect class="frame" x={-r} y={-r} width={2 * r} height={2 * r} />;
}

const ROOT_LOOK = { shape: "ring", tone: "quiet" } as const;

/** Several failures as one: a tile with the sign of what a click does. */
function Crowd({ size, open }: { size: number; open: boolean }): JSX.Element {
  const sign = `M${-size / 2} 0H${size / 2}${open ? "" : `M0 ${-size / 2}V${size / 2}`}`;
  return (
    <g class="kforge-mark kforge-bad">
      <rect class="line" x={-size} y={-size} width={2 * size} height={2 * size} rx={3} />
      <path class="line" d={sign} />
    </g>
  );
}

function draw(shape: Shape, r: number): JSX.Element {
  const a = r * 0.75;
  switch (shape) {
    case "disc":
      return <circle class="solid" r={r} />;
    case "ring":
      return <circle class="line" r={r - 1} />;
    case "square":
      return <rect class="solid" x={-a} y={-a} width={2 * a} height={2 * a} />;
    case "cross":
      return <path class="line" d={`M${-a} ${-a}L${a} ${a}M${-a} ${a}L${a} ${-a}`} />;
    case "triangle":
      return <path class="line" d={`M0 ${-r}L${r} ${r * 0.8}H${-r}Z`} />;
  }
}
