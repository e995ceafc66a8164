/** What the judge did with a candidate: seconds of each stage, what the kernels take, its conditions. */
import type { JSX } from "preact";
import type { Details, Node } from "./document";
import { record } from "./launches";

/** Facts of one level that are told line by line. */
const LINES = 60;
/** Beside its stages the judge notes what all took together, which is no stage. */
const TOTAL = "total";
/** Seconds that nobody looks for. */
const LITTLE = 0.05;

export function Judged({ node, details }: { node: Node; details: Details }): JSX.Element {
  const stages = stagesOf(details);
  const judged = details.seconds?.[TOTAL] ?? null;
  return (
    <>
      {stages.length > 0 && <Stages stages={stages} judged={judged} whole={node.seconds} />}
      <Kernels resources={details.resources} />
      <Facts resources={details.resources} />
      {details.log !== "" && (
        <details open={node.verdict === "compile_failed"}>
          <summary>Compiler log</summary>
          <pre class="kforge-code" tabIndex={0}>
            {details.log}
          </pre>
        </details>
      )}
      {details.log === "" && <p class="kforge-note">The compiler said nothing.</p>}
    </>
  );
}

const WIDTH = 480;

/** Seconds of each stage, and what of the total lies between them: a stage may wait for its turn. */
function stagesOf(details: Details): [string, number][] {
  const { [TOTAL]: total, ...parts } = details.seconds ?? {};
  const stages = Object.entries(parts).filter((part): part is [string, number] => (part[1] ?? 0) > 0);
  const between = (total ?? 0) - sumOf(stages);
  return between > LITTLE && stages.length > 0 ? [...stages, ["between stages", between]] : stages;
}

function sumOf(stages: readonly [string, number][]): number {
  return stages.reduce((all, [, seconds]) => all + seconds, 0);
}

interface StagesProps {
  stages: readonly [string, number][];
  judged: number | null;
  whole: number | null;
}

function Stages({ stages, judged, whole }: StagesProps): JSX.Element {
  const sum = sumOf(stages);
  const took = judged ?? sum;
  let at = 0;
  return (
    <figure class="kforge-plot">
      <figcaption>
        Judged in {took.toFixed(1)} s{sum > took + LITTLE && `, ${sum.toFixed(1)} s of stages, some side by side`}
        {whole !== null && whole > took + LITTLE && `; ${whole.toFixed(1)} s with proposing and waiting`}
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} 18`} role="img" aria-label="Seconds of each stage">
        {stages.map(([name, seconds], i) => {
          const [from, width] = [at, (seconds / sum) * WIDTH];
          at += width;
          return <rect key={name} class={`stage s${i % 4}`} x={from} width={Math.max(0.5, width - 1)} height={16} />;
        })}
      </svg>
      <ul class="kforge-marks">
        {stages.map(([name, seconds], i) => (
          <li key={name}>
            <svg width="10" height="10" aria-hidden="true">
              <rect class={`stage s${i % 4}`} width="10" height="10" />
            </svg>
            {name} {seconds.toFixed(2)} s
          </li>
        ))}
      </ul>
    </figure>
  );
}

/** Registers, spills, stack and shared memory, a row a kernel. */
function Kernels({ resources }: { resources: Details["resources"] }): JSX.Element | null {
  const kernels = Object.entries(record(resources["kernels"])).slice(0, 64);
  const keys = [...new Set(kernels.flatMap(([, of]) => Object.keys(record(of))))].slice(0, 8);
  if (keys.length === 0) return null;
  return (
    <div class="kforge-scroll">
      <table>
        <thead>
          <tr>
            <th scope="col">kernel</th>
            {keys.map((key) => (
              <th key={key} scope="col" class="n">
                {key.replaceAll("_", " ")}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {kernels.map(([name, of]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              {keys.map((key) => (
                <td key={key} class="n">
                  {plain(record(of)[key])}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Facts({ resources }: { resources: Details["resources"] }): JSX.Element | null {
  const facts = Object.entries(resources).filter(([key]) => key !== "kernels").slice(0, LINES);
  if (facts.length === 0) return null;
  return (
    <details>
      <summary>What else the judge noted</summary>
      <dl class="kforge-facts">
        {facts.map(([key, value]) => (
          <>
            <dt>{key.replaceAll("_", " ")}</dt>
            <dd>{plain(value)}</dd>
          </>
        ))}
      </dl>
    </details>
  );
}

function plain(value: unknown): string {
  if (value === undefined || value === null) return "–";
  if (typeof value === "string") return value.slice(0, 2000);
  return JSON.stringify(value).slice(0, 2000);
}
