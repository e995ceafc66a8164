/** How the search of one target is going: its tree as a drawing or as a table, and what the marks mean. */
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import * as claims from "./claims";
import { pathTo } from "./derive";
import type { Node, Target } from "./document";
import { type Folds, type Layout, layout, NO_FOLDS, ROOT, toggled } from "./layout";
import { Legend } from "./Legend";
import { TreeMap } from "./TreeMap";
import { TreeTable } from "./TreeTable";

/** From here on it helps to close what lies beside the way to the best. */
const MANY = 20;

interface Props {
  target: Target;
  nodes: Node[];
  selected: string | null;
  onSelect: (id: string) => void;
}

export function Tree({ target, nodes, selected, onSelect }: Props): JSX.Element {
  const live = target.state === "searching";
  const [folds, setFolds] = useState<Folds>(NO_FOLDS);
  const [following, setFollowing] = useState(true);
  const [mainOnly, setMainOnly] = useState(false);
  const [asTable, setAsTable] = useState(false);
  const path = useMemo(() => pathTo(nodes, target.best), [nodes, target.best]);
  const keep = useMemo(() => new Set([...path, ...pathTo(nodes, selected)]), [nodes, path, selected]);
  const tree = useMemo(() => layout(nodes, keep, folds, mainOnly), [nodes, keep, folds, mainOnly]);
  const newest = live ? placeOf(tree, nodes, latest(nodes)) : null;
  const tried = nodes.length;
  const won = nodes.some((node) => node.id === target.best && node.verdict === "accepted");
  return (
    <div class="kforge-search">
      <div class="kforge-headrow">
        <h3>
          Search tree of {target.index} {target.name}
        </h3>
        {live && !asTable && (
          <button type="button" aria-pressed={following} onClick={() => setFollowing(!following)}>
            Follow the newest
          </button>
        )}
        {tried > MANY && !asTable && (
          <button type="button" aria-pressed={mainOnly} onClick={() => setMainOnly(!mainOnly)}>
            Main line only
          </button>
        )}
        {tried > 0 && (
          <button type="button" aria-pressed={asTable} onClick={() => setAsTable(!asTable)}>
            As a table
          </button>
        )}
      </div>
      <p class="kforge-note">
        {tried === 1 ? "1 candidate" : `${tried} candidates`}, {claims.standing(target)}
        {target.state_reason !== "" && `: ${target.state_reason}`}
      </p>
      {tried > 0 && !asTable && (
        <>
          <TreeMap
            key={target.index}
            label={`Candidates for ${target.name}`}
            tree={tree}
            path={path}
            won={won}
            best={target.best}
            newest={newest}
            selected={selected}
            follow={live && following}
            onMoved={() => setFollowing(false)}
            onSelect={onSelect}
            onToggle={(item) => setFolds(toggled(folds, item))}
          />
          <Legend nodes={nodes} way={path.size > 0} won={won} />
        </>
      )}
      {tried > 0 && asTable && <TreeTable nodes={nodes} best={target.best} selected={selected} onSelect={onSelect} />}
    </div>
  );
}

/** The candidate that was judged last. */
function latest(nodes: readonly Node[]): Node | null {
  let found: Node | null = null;
  for (const node of nodes) if (found === null || node.created >= found.created) found = node;
  return found;
}

/** The item under which a node is seen: itself, the crowd it is in, or the closed branch above it. */
function placeOf(tree: Layout, nodes: readonly Node[], node: Node | null): string | null {
  const byId = new Map(nodes.map((n) => [n.id, n]));
  let at = node;
  for (let steps = 0; at !== null && steps <= nodes.length; steps += 1) {
    if (tree.byId.has(at.id)) return at.id;
    const crowd = `${at.parent ?? ROOT}/failed`;
    if (tree.byId.has(crowd)) return crowd;
    at = byId.get(at.parent ?? ROOT) ?? null;
  }
  return null;
}
