/** One candidate: why its verdict, how it was timed, what it got wrong, its source and log. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { RunSource } from "../source";
import type { Details, Node } from "./document";
import * as format from "./format";
import { look } from "./verdicts";

interface Props {
  node: Node;
  source: RunSource;
}

type Loaded = Details | "loading" | "absent";

/** Details come on demand; an answer that arrives after the panel has moved on is dropped. */
function useDetails(source: RunSource, id: string): Loaded {
  const [details, setDetails] = useState<Loaded>("loading");
  useEffect(() => {
    let wanted = true;
    void source.detail(id).then((found) => {
      if (wanted) setDetails(found ?? "absent");
    });
    return () => {
      wanted = false;
    };
  }, [source, id]);
  return details;
}

export function NodePanel({ node, source }: Props): JSX.Element {
  const details = useDetails(source, node.id);
  const { tone, word } = look(node.verdict);
  return (
    <div>
      <h3>
        Node {node.id}: {node.title}
      </h3>
      <p>
        <b class={`kforge-${tone}`}>{word}</b>: {node.reason}
      </p>
      <p class="kforge-note">
        {node.action} in {node.language}
        {node.speedup !== null &&
          ` · ${format.ratio(node.speedup)} (${format.interval(node.low, node.high)}) over eager`}
        {node.ours_us !== null && ` · ${format.time(node.ours_us)} a call`}
        {node.seconds !== null && ` · judged in ${node.seconds.toFixed(1)} s`}
      </p>
      {details === "loading" && <p class="kforge-note">Fetching source and log…</p>}
      {details === "absent" && (
        <p class="kforge-note">Source and log are not to be had here: the kernel did not answer.</p>
      )}
      {typeof details === "object" && <Evidence details={details} />}
    </div>
  );
}

function Evidence({ details }: { details: Details }): JSX.Element {
  return (
    <>
      {details.source !== "" && (
        <pre class="kforge-code" tabIndex={0} aria-label="source">
          {details.source}
        </pre>
      )}
      {details.log !== "" && (
        <details>
          <summary>Compiler log</summary>
          <pre class="kforge-code" tabIndex={0}>
            {details.log}
          </pre>
        </details>
      )}
      <Text title="Prompt" text={details.prompt} />
      <Text title="Answer" text={details.answer} />
      {details.errors.length > 0 && <Errors details={details} />}
      {Object.keys(details.plan).length > 0 && (
        <details>
          <summary>Launch plan</summary>
          <pre class="kforge-code" tabIndex={0}>
            {JSON.stringify(details.plan, null, 2)}
          </pre>
        </details>
      )}
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

function Errors({ details }: { details: Details }): JSX.Element {
  return (
    <details>
      <summary>Errors against float64</summary>
      <table>
        <thead>
          <tr>
            <th scope="col">output</th>
            <th scope="col">inputs</th>
            <th scope="col" class="n">candidate</th>
            <th scope="col" class="n">eager</th>
            <th scope="col" class="n">allowed</th>
          </tr>
        </thead>
        <tbody>
          {details.errors.map((row) => (
            <tr key={`${row.output} ${row.input_set}`}>
              <td>{row.output}</td>
              <td>{row.input_set}</td>
              <td class="n">{format.error(row.candidate)}</td>
              <td class="n">{format.error(row.eager)}</td>
              <td class="n">{format.error(row.budget)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </details>
  );
}
