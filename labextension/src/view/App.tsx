/** The whole view: headline, targets, the selected target's tree, progress and the guard. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Prompt, RunSource } from "../source";
import { Calls, Prompts } from "./Asking";
import { Cost } from "./Cost";
import costCss from "./cost.css";
import type { RunDocument } from "./document";
import { Guard } from "./Guard";
import guardCss from "./guard.css";
import { Headline } from "./Headline";
import { Notes } from "./Notes";
import { filled } from "./older";
import panelCss from "./panel.css";
import { Progress } from "./Progress";
import progressCss from "./progress.css";
import { Search } from "./Search";
import css from "./style.css";
import { Targets } from "./Targets";
import targetsCss from "./targets.css";
import { Tell } from "./Tell";
import treeCss from "./tree.css";

interface Shown {
  document: RunDocument | null;
  prompts: readonly Prompt[];
}

/** Re-renders on each new snapshot of the source. */
function useSnapshot(source: RunSource): Shown {
  const read = (): Shown => {
    const newest = source.snapshot();
    return { document: newest && filled(newest), prompts: source.prompts?.() ?? [] };
  };
  const [shown, setShown] = useState(read);
  useEffect(() => {
    const update = (): void => setShown(read());
    update();
    return source.subscribe(update);
  }, [source]);
  return shown;
}

export function App({ source }: { source: RunSource }): JSX.Element {
  const { document, prompts } = useSnapshot(source);
  const [target, setTarget] = useState<number | null>(null);
  const [node, setNode] = useState<string | null>(null);
  if (document === null) return <div class="kforge">Waiting for the first figures…</div>;

  const shown = document.targets.find((t) => t.index === target) ?? firstOfInterest(document);
  const nodes = document.nodes.filter((n) => n.target === shown?.index);
  const selected = nodes.find((n) => n.id === node) ?? nodes.find((n) => n.id === shown?.best);
  const select = (index: number): void => {
    setTarget(index);
    setNode(null);
  };
  return (
    <div class="kforge" role="region" aria-label={`Run ${document.name}`}>
      <style>{css + progressCss + costCss + targetsCss + guardCss + treeCss + panelCss}</style>
      <Tell source={source} node={selected?.id ?? null} />
      <Headline document={document} />
      <Progress document={document} source={source} />
      {source.stop && <Calls calls={document.progress.calls} targets={document.targets} />}
      <Prompts prompts={prompts} source={source} />
      <Targets document={document} selected={shown?.index ?? null} onSelect={select} />
      {shown !== undefined && (
        <Search document={document} source={source} target={shown} selected={selected} onSelect={setNode} />
      )}
      <Cost document={document} selected={shown?.index ?? null} onSelect={select} />
      <Guard document={document} />
      <Notes document={document} />
    </div>
  );
}

/**
 * The target to show before anyone has chosen: one with an accepted candidate, one with any that is
 * the best so far, one that was searched, one that will be, any; of several the one that takes most
 * time. `kforge_nb/view/svg.py` draws the same.
 */
function firstOfInterest({ nodes, targets }: RunDocument): RunDocument["targets"][number] | undefined {
  const tried = new Set(nodes.map((n) => n.target));
  const accepted = new Set(nodes.filter((n) => n.verdict === "accepted").map((n) => n.id));
  const ranked = [...targets].sort((a, b) => (b.share ?? 0) - (a.share ?? 0));
  return (
    ranked.find((t) => t.best !== null && accepted.has(t.best)) ??
    ranked.find((t) => t.best !== null) ??
    ranked.find((t) => tried.has(t.index)) ??
    ranked.find((t) => t.state === "searching" || t.state === "waiting") ??
    ranked[0]
  );
}
