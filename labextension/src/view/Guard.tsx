/** What the guard decided for each target, and how the whole model runs in each way measured. */
import type { JSX } from "preact";
import type { Decision, RunDocument } from "./document";
import * as format from "./format";

export function Guard({ document }: { document: RunDocument }): JSX.Element {
  const names = new Map(document.targets.map((t) => [t.index, t.name]));
  return (
    <div>
      <h3>Guard</h3>
      {document.decisions.length === 0 ? (
        <p class="kforge-note">Nothing is installed before it has won inside the model.</p>
      ) : (
        <div class="kforge-scroll">
          <table>
            <thead>
              <tr>
                <th scope="col">target</th>
                <th scope="col" class="n">alone</th>
                <th scope="col" class="n">in the model</th>
                <th scope="col">decision</th>
              </tr>
            </thead>
            <tbody>
              {document.decisions.map((d) => (
                <Row key={d.fingerprint} decision={d} name={names.get(d.target) ?? d.fingerprint} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      <Whole document={document} />
    </div>
  );
}

function Row({ decision, name }: { decision: Decision; name: string }): JSX.Element {
  const { installed, isolated, in_model: inModel } = decision;
  return (
    <tr>
      <th scope="row">
        {decision.target} {name}
      </th>
      <td class="n">{format.ratio(isolated?.ratio)}</td>
      <td class="n">
        {format.ratio(inModel?.ratio)}{" "}
        <span class="kforge-note">{format.interval(inModel?.low, inModel?.high)}</span>
      </td>
      <td class={installed ? "kforge-good wrap" : "kforge-quiet wrap"}>
        {installed ? "● replaced" : "○ kept original"}: {decision.reason}
      </td>
    </tr>
  );
}

function Whole({ document }: { document: RunDocument }): JSX.Element | null {
  if (document.whole.length === 0) return null;
  return (
    <>
      <h3>Whole model</h3>
      <table>
        <thead>
          <tr>
            <th scope="col">model</th>
            <th scope="col">rest</th>
            <th scope="col">against</th>
            <th scope="col" class="n">before</th>
            <th scope="col" class="n">after</th>
            <th scope="col" class="n">ratio</th>
          </tr>
        </thead>
        <tbody>
          {document.whole.map((row) => (
            <tr key={`${row.name} ${row.rest} ${row.against}`}>
              <th scope="row">{row.name}</th>
              <td>{row.rest}</td>
              <td>{row.against}</td>
              <td class="n">{format.time(row.against_us)}</td>
              <td class="n">{format.time(row.ours_us)}</td>
              <td class="n">
                {format.ratio(row.ratio)}{" "}
                <span class="kforge-note">{format.interval(row.low, row.high)}</span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {document.recommendation && (
        <p class="kforge-note">
          Recommended rest: <b>{document.recommendation.rest}</b>, {document.recommendation.reason}
        </p>
      )}
    </>
  );
}
