/** One target's search: its tree, and the candidate that is looked at. */
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { RunSource } from "../source";
import type { Node, RunDocument, Target } from "./document";
import { NodePanel } from "./NodePanel";
import { Tree } from "./Tree";

interface Props {
  document: RunDocument;
  source: RunSource;
  target: Target;
  selected: Node | undefined;
  onSelect: (id: string) => void;
}

export function Search({ document, source, target, selected, onSelect }: Props): JSX.Element {
  const { nodes } = document;
  const own = useMemo(() => nodes.filter((node) => node.target === target.index), [nodes, target.index]);
  return (
    <section class="kforge-two">
      <Tree target={target} nodes={own} selected={selected?.id ?? null} onSelect={onSelect} />
      {selected === undefined ? (
        <p class="kforge-note">
          {own.length > 0 && "Choose a candidate of the tree to see its source, timing and errors."}
        </p>
      ) : (
        <NodePanel
          node={selected}
          nodes={own}
          target={target}
          document={document}
          source={source}
          onSelect={onSelect}
        />
      )}
    </section>
  );
}
