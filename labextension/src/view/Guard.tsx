/** What the guard decided for each target, with the evidence. */
import type { JSX } from "preact";
import type { Decision, RunDocument } from "./document";
import * as format from "./format";

export function Guard({ document }: { document: RunDocument }): JSX.Element {
  const names = new Map(document.targets.map((t) => [t.index, t.name]));
  return (
    <section>
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
    </section>
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
        {words(decision)}
      </td>
    </tr>
  );
}

function words({ installed, reason }: Decision): string {
  const verdict = installed ? "● replaced" : "○ kept original";
  const why = reason.replace(/^(kept original|replaced)?[: ]*/, "");
  return why === "" ? verdict : `${verdict}: ${why}`;
}
