/** The tree as a drawing to move about in. Only what is near the frame is in the page. */
import type { JSX, RefObject } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { fitted, inside } from "./camera";
import { dots, lines } from "./drawing";
import type { Item, Layout } from "./layout";
import { COLUMN, ROOT, ROW } from "./layout";
import { Leaf } from "./Leaf";
import { type Drawn, type Eye, useEye } from "./useEye";
import { correct } from "./verdicts";
import { walked } from "./walk";

const STEP = 1.3;
const PUSH = 60;
/** Room right of the last column for its words. */
const WORDS = 100;

export interface TreeMapProps {
  label: string;
  tree: Layout;
  /** Ids on the way to the best candidate. */
  path: ReadonlySet<string>;
  /** Whether the best candidate was accepted: only then the way to it looks like success. */
  won: boolean;
  best: string | null;
  newest: string | null;
  selected: string | null;
  /** Whether the camera goes to each newest candidate. */
  follow: boolean;
  onMoved: () => void;
  onSelect: (id: string) => void;
  onToggle: (item: Item) => void;
}

export function TreeMap(props: TreeMapProps): JSX.Element {
  const { tree, path, won, best, newest, selected, follow } = props;
  const frame = useRef<SVGSVGElement>(null);
  const stage = useRef<SVGGElement>(null);
  const [eye, drawn] = useEye(frame, stage, props.onMoved);
  const cursor = useCursor(tree, selected);
  useAnchor(eye, tree, cursor.id);
  useFirstLook(eye, tree, selected ?? newest);
  useReveal(eye, tree, follow ? newest : cursor.id);

  const go = (item: Item): void => {
    cursor.set(item.id);
    if (item.node !== null) props.onSelect(item.id);
  };
  const choose = (item: Item): void => {
    if (item.folded.length > 0) props.onToggle(item);
    go(item);
  };
  const press = (event: KeyboardEvent): void => {
    const from = tree.byId.get(cursor.id);
    if (event.altKey || event.ctrlKey || event.metaKey || from === undefined) return;
    focus.current = true; // the item with the focus may leave the page with the next picture
    if (!keyed(event, from, tree, eye, { go, toggle: props.onToggle })) return;
    event.preventDefault();
    event.stopPropagation();
  };
  const focus = useFocus(frame, cursor);

  const seen = useMemo(() => shown(tree, drawn, new Set([cursor.id, best ?? ROOT])), [
    tree, drawn, cursor.id, best,
  ]);
  return (
    <div class="kforge-map">
      <svg ref={frame} role="tree" aria-label={props.label} onKeyDown={press}>
        <g ref={stage} role="none">
          <path class="kforge-edge" d={lines(tree, drawn, null)} />
          <path class="kforge-edge way" d={lines(tree, drawn, path)} />
          {won && <path class="kforge-edge best" d={lines(tree, drawn, rightOf(tree, path))} />}
          {!drawn.near && dots(tree).map(([tone, d]) => <path key={tone} class={`kforge-dots kforge-${tone}`} d={d} />)}
          {seen.map((item) => (
            <Leaf
              key={item.id}
              item={item}
              best={item.id === best}
              selected={item.id === selected}
              cursor={item.id === cursor.id}
              newest={item.id === newest}
              set={placeOf(item)}
              onChoose={choose}
              onToggle={props.onToggle}
            />
          ))}
        </g>
      </svg>
      <Lens eye={eye} tree={tree} />
    </div>
  );
}

/** Buttons that move the camera. */
function Lens({ eye, tree }: { eye: Eye; tree: Layout }): JSX.Element {
  return (
    <div class="kforge-lens" role="group" aria-label="Zoom">
      <button type="button" aria-label="Zoom in" onClick={() => eye.zoom(STEP)}>+</button>
      <button type="button" aria-label="Zoom out" onClick={() => eye.zoom(1 / STEP)}>−</button>
      <button type="button" onClick={() => fit(eye, tree)}>Fit</button>
    </div>
  );
}

function fit(eye: Eye, tree: Layout): void {
  eye.onMoved();
  eye.glide(whole(eye, tree));
}

function whole(eye: Eye, tree: Layout): Eye["camera"] {
  const area = { left: -10, top: -ROW / 2, right: tree.width + WORDS, bottom: tree.height + ROW / 2 };
  return fitted(area, eye.size, 16);
}

interface Acts {
  go: (item: Item) => void;
  toggle: (item: Item) => void;
}

/** Acts on a key; false where it means nothing here. */
function keyed(event: KeyboardEvent, from: Item, tree: Layout, eye: Eye, acts: Acts): boolean {
  const { key, shiftKey } = event;
  const pushes: Record<string, [number, number]> = {
    ArrowLeft: [PUSH, 0], ArrowRight: [-PUSH, 0], ArrowUp: [0, PUSH], ArrowDown: [0, -PUSH],
  };
  const push = pushes[key];
  if (shiftKey && push !== undefined) eye.pan(...push);
  else if (key === "+" || key === "=") eye.zoom(STEP);
  else if (key === "-" || key === "_") eye.zoom(1 / STEP);
  else if (key === "0") fit(eye, tree);
  else if (key === "Enter" || key === " " || (key === "ArrowRight" && from.closed)) acts.toggle(from);
  else {
    const next = walked(key, from, tree.items);
    if (next !== null) acts.go(next);
    return next !== null || push !== undefined;
  }
  return true;
}

interface Cursor {
  id: string;
  set: (id: string) => void;
}

/** Where the keyboard stands: at the selected node, until it is moved to the root or to a crowd. */
function useCursor(tree: Layout, selected: string | null): Cursor {
  const [at, set] = useState<string | null>(null);
  useEffect(() => set(null), [selected]);
  const wanted = at ?? selected ?? ROOT;
  return { id: tree.byId.has(wanted) ? wanted : ROOT, set };
}

/** The focus goes where the keyboard goes; true in the reference asks for it once. */
function useFocus(frame: RefObject<SVGSVGElement>, cursor: Cursor): { current: boolean } {
  const wanted = useRef(false);
  useLayoutEffect(() => {
    const svg = frame.current;
    if (svg === null || !wanted.current) return;
    wanted.current = false;
    const leaves = [...svg.querySelectorAll<SVGGElement>("[data-id]")];
    leaves.find((leaf) => leaf.dataset["id"] === cursor.id)?.focus({ preventScroll: true });
  });
  return wanted;
}

/** Keeps what the user looks at where it is on the screen while the tree grows around it. */
function useAnchor(eye: Eye, tree: Layout, id: string): void {
  const before = useRef({ tree, id });
  useLayoutEffect(() => {
    const old = before.current.tree.byId.get(id);
    const now = tree.byId.get(id);
    before.current = { tree, id };
    if (old === undefined || now === undefined) return;
    const { camera } = eye;
    const dx = (old.x - now.x) * camera.k;
    const dy = (old.y - now.y) * camera.k;
    if (dx !== 0 || dy !== 0) eye.look({ ...camera, x: camera.x + dx, y: camera.y + dy });
  }, [tree]);
}

/** At first all of a small tree is seen, and the most interesting place of a large one. */
function useFirstLook(eye: Eye, tree: Layout, id: string | null): void {
  const done = useRef(false);
  useEffect(() => {
    if (done.current || tree.items.length < 2) return;
    done.current = true;
    const all = whole(eye, tree);
    if (all.k >= 0.7) return eye.look(all);
    const { x, y } = tree.byId.get(id ?? ROOT) ?? { x: 0, y: 0 };
    eye.look({ k: 1, x: Math.min(24, eye.size.width * 0.7 - x), y: eye.size.height / 2 - y });
  }, [tree]);
}

/** The cursor, or the newest candidate while it is followed, is always in sight. */
function useReveal(eye: Eye, tree: Layout, id: string | null): void {
  const first = useRef(true);
  useEffect(() => {
    const item = id === null ? undefined : tree.byId.get(id);
    if (item !== undefined && !first.current) eye.reveal(item);
    first.current = false;
  }, [id]);
}

/** What is right on the way: a wrong candidate that was mended is no success of its own. */
function rightOf(tree: Layout, path: ReadonlySet<string>): ReadonlySet<string> {
  const right = (id: string): boolean => {
    const node = tree.byId.get(id)?.node;
    return node != null && correct(node.verdict);
  };
  return new Set([...path].filter(right));
}

/** Items that are put into the page one by one. */
function shown(tree: Layout, drawn: Drawn, always: ReadonlySet<string>): Item[] {
  return tree.items.filter(
    (item) => always.has(item.id) || (drawn.near && inside(drawn.area, item, COLUMN)),
  );
}

function placeOf(item: Item): { size: number; place: number } {
  const siblings = item.parent?.children ?? [item];
  return { size: siblings.length, place: siblings.indexOf(item) + 1 };
}
