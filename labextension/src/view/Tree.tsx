/** The search tree of one target: size by visits, shape and colour by verdict, best path thick. */
import type { JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { pathTo } from "./derive";
import type { Node, Target } from "./document";
import * as format from "./format";
import { type Item, items, layout, type Placed } from "./layout";
import { Mark } from "./Mark";
import { look } from "./verdicts";

/** Closer than this to the frame's edge, a mark's words may be cut off. */
const EDGE = 40;

interface Props {
  target: Target;
  nodes: Node[];
  selected: string | null;
  onSelect: (id: string) => void;
}

export function Tree({ target, nodes, selected, onSelect }: Props): JSX.Element {
  const path = useMemo(() => pathTo(nodes, target.best), [nodes, target.best]);
  const drawn = useMemo(() => layout(items(nodes, path)), [nodes, path]);
  const svg = useRef<SVGSVGElement>(null);
  const byId = new Map(drawn.placed.map((p) => [p.item.id, p]));
  const current = selected !== null && byId.has(selected) ? selected : "";
  const { x, y } = byId.get(current) ?? { x: 0, y: 0 };
  const frame = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const box = frame.current;
    if (box === null) return;
    const { scrollLeft: left, scrollTop: top, clientWidth: wide, clientHeight: high } = box;
    const seen = x > left + EDGE && x < left + wide - EDGE && y > top && y < top + high - EDGE;
    if (seen) return;
    box.scrollLeft = x - wide / 2;
    box.scrollTop = y - high / 2;
  }, [x, y, target.index]);

  const move = (event: KeyboardEvent): void => {
    const next = neighbour(event.key, byId.get(current), byId);
    if (next === null) return;
    event.preventDefault();
    onSelect(next);
    const leaves = svg.current?.querySelectorAll<SVGGElement>("[data-id]") ?? [];
    [...leaves].find((leaf) => leaf.dataset["id"] === next)?.focus();
  };

  return (
    <div>
      <h3>
        Search tree of {target.index} {target.name}
      </h3>
      <p class="kforge-note">
        {target.state}
        {target.state_reason !== "" && `: ${target.state_reason}`}
      </p>
      {nodes.length > 0 && (
        <div class="kforge-tree" ref={frame}>
          <svg
            ref={svg}
            role="tree"
            aria-label={`Candidates for ${target.name}`}
            width={drawn.width}
            height={drawn.height}
            onKeyDown={move}
          >
            {drawn.placed.map((p) => (
              <Edge key={p.item.id} to={p} from={byId.get(p.parent ?? "none")} best={path.has(p.item.id)} />
            ))}
            {drawn.placed.map((p) => (
              <Leaf
                key={p.item.id}
                placed={p}
                best={p.item.id === target.best}
                selected={p.item.id === current}
                onSelect={onSelect}
              />
            ))}
          </svg>
        </div>
      )}
    </div>
  );
}

interface EdgeProps {
  from: Placed | undefined;
  to: Placed;
  best: boolean;
}

function Edge({ from, to, best }: EdgeProps): JSX.Element | null {
  if (from === undefined) return null;
  const middle = (from.y + to.y) / 2;
  const d = `M${from.x} ${from.y}C${from.x} ${middle} ${to.x} ${middle} ${to.x} ${to.y}`;
  return <path class={best ? "kforge-edge best" : "kforge-edge"} d={d} />;
}

interface LeafProps {
  placed: Placed;
  best: boolean;
  selected: boolean;
  onSelect: (id: string) => void;
}

function Leaf({ placed, best, selected, onSelect }: LeafProps): JSX.Element {
  const { item, level, x, y } = placed;
  const choose = (): void => {
    if (item.node !== null) onSelect(item.id);
  };
  return (
    <g
      role="treeitem"
      data-id={item.id}
      aria-level={level}
      aria-selected={selected}
      aria-label={spoken(item, best)}
      tabindex={selected ? 0 : -1}
      transform={`translate(${x} ${y})`}
      class={selected ? "kforge-leaf on" : "kforge-leaf"}
      onClick={choose}
    >
      <title>{spoken(item, best)}</title>
      <Mark node={item.node} best={best} />
      <text x={14} y={4}>
        {written(item)}
      </text>
    </g>
  );
}

/** What stands under the mark. */
function written({ node, folded }: Item): string {
  if (node !== null) return node.speedup === null ? look(node.verdict).word : format.ratio(node.speedup);
  return folded.length > 0 ? `${folded.length} failed` : "eager 1×";
}

/** The same with everything a mark says by shape and colour. */
function spoken({ node, folded }: Item, best: boolean): string {
  if (node === null) {
    return folded.length > 0 ? `${folded.length} failed candidates` : "eager, the original";
  }
  const speed = node.speedup === null ? "" : `, ${format.ratio(node.speedup)} over eager`;
  return `${best ? "best: " : ""}${node.title}, ${look(node.verdict).word}${speed}`;
}

/** Up: parent. Down: first child. Left and right: siblings. Only real candidates are stopped at. */
function neighbour(
  key: string,
  from: Placed | undefined,
  byId: ReadonlyMap<string, Placed>,
): string | null {
  if (from === undefined) return null;
  const real = (item: Item | undefined): string | null => (item?.node ? item.id : null);
  if (key === "ArrowUp") return real(byId.get(from.parent ?? "none")?.item);
  if (key === "ArrowDown") return real(from.item.children.find((child) => child.node !== null));
  const step = key === "ArrowRight" ? 1 : key === "ArrowLeft" ? -1 : 0;
  const siblings = byId.get(from.parent ?? "none")?.item.children ?? [];
  return step === 0 ? null : real(siblings[siblings.findIndex((s) => s.id === from.item.id) + step]);
}
