/** One candidate: why its verdict, what it is, how it was timed, and what it got wrong. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { RunSource } from "../source";
import type { Details, Node, RunDocument, Target } from "./document";
import { Errors } from "./Errors";
import * as format from "./format";
import { HostCode, HostCodeNote, writtenAs } from "./hostcode";
import { Judged } from "./Judged";
import { LaunchPlan } from "./LaunchPlan";
import { Roofline } from "./Roofline";
import { Source } from "./Source";
import { Strips } from "./Strip";
import { type Tab, Tabs } from "./Tabs";
import { useDetails } from "./useDetails";
import { look } from "./verdicts";

export interface PanelProps {
  node: Node;
  nodes: readonly Node[];
  target: Target;
  document: RunDocument;
  source: RunSource;
  onSelect: (id: string) => void;
}

export function NodePanel(props: PanelProps): JSX.Element {
  const { node, source } = props;
  const details = useDetails(source, node.id, judgement(node));
  const [tab, setTab] = useState("code");
  const [asDiff, setAsDiff] = useState(false);
  return (
    <div class="kforge-panel">
      <Head {...props} />
      {details === "loading" && <p class="kforge-note">Fetching source and figures…</p>}
      {details === "absent" && <p class="kforge-note">{absent(source)}</p>}
      {typeof details === "object" && (
        <>
          <LeftOut details={details} />
          <Tabs
            label={`Details of ${node.id}`}
            tabs={tabsOf(props, details, asDiff, setAsDiff)}
            chosen={tab}
            onChoose={setTab}
          />
        </>
      )}
    </div>
  );
}

/** Another text once a node was judged again. */
function judgement(node: Node | undefined): string {
  return node === undefined ? "" : `${node.verdict} ${node.ours_us ?? ""} ${node.reason}`;
}

function absent(source: RunSource): string {
  return source.stop === undefined
    ? "Source and figures of this candidate were left out to keep the saved document small; the run's store has them."
    : "Source and figures are not to be had here: the kernel did not answer.";
}

function LeftOut({ details }: { details: Details }): JSX.Element | null {
  const fields = details.left_out ?? [];
  if (fields.length === 0) return null;
  return (
    <p class="kforge-note">
      Left out to keep the saved document small: {fields.join(", ").replaceAll("_", " ")}. The run's store has them.
    </p>
  );
}

function Head({ node, onSelect, nodes }: PanelProps): JSX.Element {
  const { tone, word } = look(node.verdict);
  const { parent } = node;
  const known = nodes.some((other) => other.id === parent);
  return (
    <>
      <h3>
        Node {node.id}: {node.title}
        <HostCode node={node} />
      </h3>
      <p class="kforge-verdict">
        <b class={`kforge-${tone}`}>{word}</b>
        {node.reason !== "" && <>: {node.reason}</>}
      </p>
      <HostCodeNote node={node} />
      {node.speedup !== null && (
        <p class="kforge-figures">
          <b>{format.ratio(node.speedup)}</b> over eager <span class="kforge-note">{format.interval(node.low, node.high)}</span>
          <b>{format.time(node.ours_us)}</b> a call{" "}
          <span class="kforge-note">
            eager {format.time(node.eager_us)}
            {node.compile_us !== null && `, compile ${format.time(node.compile_us)}`}
          </span>
        </p>
      )}
      <p class="kforge-note">
        {node.action}
        {parent !== null && known && (
          <>
            {" of "}
            <button type="button" class="kforge-link" onClick={() => onSelect(parent)}>
              <u>{parent}</u>
            </button>
          </>
        )}{" "}
        in {writtenAs(node)}
        {typeof node.origin["proposer"] === "string" && ` by ${node.origin["proposer"]}`}
        {" · "}
        {format.count(node.visits, "visit")}
        {node.seconds !== null && ` · ${node.seconds.toFixed(1)} s`}
      </p>
    </>
  );
}

function tabsOf(
  { node, nodes, target, document, source }: PanelProps,
  details: Details,
  asDiff: boolean,
  onDiff: (on: boolean) => void,
): Tab[] {
  const tabs: Tab[] = [
    {
      id: "code",
      name: "Code",
      show: () => (
        <Source
          node={node}
          details={details}
          source={source}
          parentJudgement={judgement(nodes.find((other) => other.id === node.parent))}
          asDiff={asDiff}
          onDiff={onDiff}
        />
      ),
    },
    {
      id: "launch",
      name: "Launch",
      show: () => <LaunchPlan node={node} details={details} document={document} target={target} />,
    },
    {
      id: "timing",
      name: "Timing",
      show: () => (
        <>
          <Strips details={details} />
          <Roofline document={document} target={target} node={node} nodes={nodes} details={details} />
        </>
      ),
    },
    { id: "errors", name: "Errors", show: () => <Errors details={details} /> },
    { id: "judge", name: "Judge", show: () => <Judged node={node} details={details} /> },
  ];
  if (details.prompt || details.answer) {
    tabs.push({ id: "asked", name: "Prompt", show: () => <Asked details={details} /> });
  }
  return tabs;
}

/** What a language model was asked, and what it said. */
function Asked({ details }: { details: Details }): JSX.Element {
  return (
    <>
      <Text title="Prompt" text={details.prompt} />
      <Text title="Answer" text={details.answer} />
    </>
  );
}

function Text({ title, text }: { title: string; text: string | undefined }): JSX.Element | null {
  if (!text) return null;
  return (
    <details>
      <summary>{title}</summary>
      <pre class="kforge-code" tabIndex={0}>
        {text}
      </pre>
    </details>
  );
}
