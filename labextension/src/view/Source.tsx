/** A candidate's source with colours, or what it changed of its parent's. */
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { RunSource } from "../source";
import { Copy } from "./Copy";
import { counted, difference, type Line } from "./difference";
import type { Details, Node } from "./document";
import { highlighted } from "./highlight";
import { writtenAs } from "./hostcode";
import { useDetails } from "./useDetails";

interface Props {
  node: Node;
  details: Details;
  source: RunSource;
  /** Another text once the parent was judged again. */
  parentJudgement: string;
  asDiff: boolean;
  onDiff: (on: boolean) => void;
}

export function Source({ node, details, source, parentJudgement, asDiff, onDiff }: Props): JSX.Element {
  const { parent } = node;
  const text = details.source;
  if (text === "") return <p class="kforge-note">{missing(details)}</p>;
  return (
    <>
      <div class="kforge-coderow">
        {parent !== null && (
          <button type="button" aria-pressed={asDiff} onClick={() => onDiff(!asDiff)}>
            Changes from {parent}
          </button>
        )}
        <span class="kforge-note">
          {text.split("\n").length} lines of {writtenAs(node)}
        </span>
        <Copy key={node.id} what="source" text={text} />
      </div>
      {asDiff && parent !== null ? (
        <Changes
          parent={parent}
          judgement={parentJudgement}
          text={text}
          source={source}
          language={node.language}
        />
      ) : (
        <Coloured text={text} language={node.language} />
      )}
    </>
  );
}

function missing(details: Details): string {
  if (details.left_out?.includes("source")) return "The source was left out to keep the saved document small; the run's store has it.";
  return "There is no source: nothing was proposed, or the document was saved without it.";
}

function Coloured({ text, language }: { text: string; language: string }): JSX.Element {
  const lines = useMemo(() => highlighted(text, language), [text, language]);
  return (
    <pre class="kforge-code" tabIndex={0} role="region" aria-label="source">
      {lines === null ? (
        text
      ) : (
        // The library's own escaped output: markup in the source has become text.
        <code dangerouslySetInnerHTML={{ __html: lines.join("\n") }} />
      )}
    </pre>
  );
}

interface ChangesProps {
  parent: string;
  judgement: string;
  text: string;
  source: RunSource;
  language: string;
}

function Changes({ parent, judgement, text, source, language }: ChangesProps): JSX.Element {
  const found = useDetails(source, parent, judgement);
  const older = typeof found === "object" ? found.source : null;
  const lines = useMemo(() => (older === null ? null : difference(older, text)), [older, text]);
  const colours = useMemo(() => (lines === null ? [] : coloured(lines, language)), [lines, language]);
  if (found === "loading") return <p class="kforge-note">Fetching the source of {parent}…</p>;
  if (older === null || older === "") return <p class="kforge-note">The source of {parent} is not to be had here.</p>;
  if (lines === null) return <p class="kforge-note">The two sources have too little in common for a comparison.</p>;
  const { gone, new: come } = counted(lines);
  if (gone + come === 0) return <p class="kforge-note">The source is that of {parent}; only the plan may differ.</p>;
  return (
    <>
      <p class="kforge-note">
        <b class="kforge-good">+{come}</b> <b class="kforge-bad">−{gone}</b> lines
      </p>
      <pre class="kforge-code kforge-diff" tabIndex={0} role="region" aria-label={`changes from ${parent}`}>
        {lines.map((line, i) => (
          <Row key={i} line={line} html={colours[i] ?? null} />
        ))}
      </pre>
    </>
  );
}

const SIGNS = { same: " ", gone: "−", new: "+", skip: " " };

/** More than this in all stays plain: each line is coloured alone, which takes longer than at once. */
const MOST = 100_000;

/** Escaped HTML for each line; null where it stays plain. */
function coloured(lines: readonly Line[], language: string): (string | null)[] {
  const characters = lines.reduce((sum, line) => sum + line.text.length, 0);
  if (characters > MOST) return [];
  return lines.map((line) => (line.kind === "skip" ? null : (highlighted(line.text, language)?.join("") ?? null)));
}

function Row({ line, html }: { line: Line; html: string | null }): JSX.Element {
  return (
    <span class={line.kind}>
      <i aria-hidden="true">{line.new ?? line.old ?? ""}</i>
      {SIGNS[line.kind]}
      {html === null ? line.text : <code dangerouslySetInnerHTML={{ __html: html }} />}
      {"\n"}
    </span>
  );
}
