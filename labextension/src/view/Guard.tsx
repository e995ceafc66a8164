/** What the guard decided for each target, with the evidence and what happened at run time. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { type RatioAxis, ratioAxis } from "./axis";
import { Lanes, Span, Ticks } from "./Bars";
import * as claims from "./claims";
import type { Decision, Node, RunDocument, Target } from "./document";
import * as format from "./format";
import { HostCode } from "./hostcode";
import { Key, Whole } from "./Whole";

const FEW = 4;

export function Guard({ document }: { document: RunDocument }): JSX.Element {
  const [all, setAll] = useState(false);
  const targets = new Map(document.targets.map((t) => [t.index, t]));
  const nodes = new Map(document.nodes.map((n) => [n.id, n]));
  const ranked = ranking(document.decisions, targets);
  const tried = ranked.filter(hasEvidence);
  const hidden = ranked.length - tried.length;
  const shown = all || hidden < FEW ? ranked : tried;
  return (
    <section class="kforge-guard">
      <h3>Guard</h3>
      {ranked.length === 0 ? (
        <p class="kforge-note">Nothing is installed before it has won inside the model.</p>
      ) : (
        <>
          <p>{summary(document.decisions)}</p>
          {shown.length > 0 && <Decisions decisions={shown} targets={targets} nodes={nodes} />}
          <div class="kforge-below">
            {hidden >= FEW && (
              <button type="button" aria-expanded={all} onClick={() => setAll(!all)}>
                {all ? "Show fewer" : `Show ${hidden} more, kept original without a kernel to try`}
              </button>
            )}
            <span class="kforge-note">
              <Key look="second" /> alone, on the target's own inputs <Key look="first" /> in the model, at its
              places · 95% intervals
            </span>
          </div>
        </>
      )}
      <AtRunTime document={document} />
      <Whole document={document} />
    </section>
  );
}

/** Installed ones first, then those with evidence, then by share of the time. */
function ranking(decisions: readonly Decision[], targets: Map<number, Target>): Decision[] {
  const rank = (d: Decision): number => (d.installed ? 2 : hasEvidence(d) ? 1 : 0);
  const share = (d: Decision): number => targets.get(d.target)?.share ?? 0;
  return [...decisions].sort((a, b) => rank(b) - rank(a) || share(b) - share(a));
}

function hasEvidence(decision: Decision): boolean {
  return (
    decision.installed || decision.node !== null || decision.isolated !== null || decision.in_model !== null
  );
}

function summary(decisions: readonly Decision[]): JSX.Element {
  const installed = decisions.filter((d) => d.installed);
  const saved = installed.reduce((sum, d) => sum + (change(d) ?? 0), 0);
  if (installed.length === 0) {
    const won = claims.nothingWon(decisions);
    return (
      <b>
        {won.charAt(0).toUpperCase() + won.slice(1)}
        {won.includes(";") ? "." : ", so every target stays original."}
      </b>
    );
  }
  return (
    <>
      <b>
        {installed.length} of {format.count(decisions.length, "target")} replaced
      </b>
      {saved < 0 && `, ${format.change(saved)} a run, as measured at their places`}
    </>
  );
}

/** Microseconds of a run that a kernel changes at its places; null where no difference was shown. */
function change({ in_model: found }: Decision): number | null {
  if (!["faster", "slower"].includes(claims.shown(found))) return null;
  if (found?.ours_us == null || found.against_us === null) return null;
  return found.ours_us - found.against_us;
}

interface DecisionsProps {
  decisions: readonly Decision[];
  targets: Map<number, Target>;
  nodes: Map<string, Node>;
}

function Decisions({ decisions, targets, nodes }: DecisionsProps): JSX.Element {
  const compared = decisions.flatMap((d) => [d.isolated, d.in_model]);
  const axis = ratioAxis(compared.flatMap((row) => [row?.ratio, row?.low, row?.high]));
  return (
    <div class="kforge-scroll">
      <table>
        <thead>
          <tr>
            <th scope="col">target</th>
            <th scope="col">decision</th>
            <th scope="col">faster alone, and in the model</th>
            <th scope="col" class="kforge-axis">
              <span class="kforge-hidden">intervals</span>
              <Ticks axis={axis} />
            </th>
            <th scope="col" class="n">a run</th>
          </tr>
        </thead>
        <tbody>
          {decisions.map((d, i) => (
            <Row
              key={`${d.fingerprint} ${i}`}
              decision={d}
              target={targets.get(d.target)}
              node={d.node === null ? undefined : nodes.get(d.node)}
              axis={axis}
            />
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface RowProps {
  decision: Decision;
  target: Target | undefined;
  node: Node | undefined;
  axis: RatioAxis;
}

function Row({ decision, target, node, axis }: RowProps): JSX.Element {
  const { isolated, in_model: inModel, installed } = decision;
  const { verdict, why } = claims.decision(decision);
  const small = [claims.byRest(decision), aside(decision)].filter((part) => part !== "").join(" · ");
  return (
    <tr>
      <th scope="row" title={target?.variant}>
        {decision.target} {target?.name ?? decision.fingerprint.slice(0, 12)}
      </th>
      <td class="wrap">
        <span class={installed ? "kforge-good" : "kforge-quiet"}>{verdict}</span>
        <HostCode node={node} />
        {why !== "" && `: ${why}`}
        {small !== "" && <div class="kforge-note kforge-small">{small}</div>}
      </td>
      <td>
        <Figure what="alone" row={isolated} />
        <Figure what="in the model" row={inModel} />
      </td>
      <td>
        <Lanes axis={axis} lines={2}>
          {[
            <Span key="alone" axis={axis} {...figures(isolated)} look="second" line={0} />,
            <Span key="model" axis={axis} {...figures(inModel)} look="first" line={1} />,
          ]}
        </Lanes>
      </td>
      <td class="n">{format.change(change(decision))}</td>
    </tr>
  );
}

/** One comparison a line, so that lines and marks on the axis beside them go together. */
function Figure({ what, row }: { what: string; row: Decision["isolated"] }): JSX.Element {
  return (
    <div class="kforge-line">
      <span class="kforge-note">{what}</span> <span class="kforge-tab">{claims.measured(row)}</span>
    </div>
  );
}

function figures(row: Decision["isolated"]): claims.Compared {
  return { ratio: row?.ratio ?? null, low: row?.low ?? null, high: row?.high ?? null };
}

/** Fidelity of the model with the kernel, and what the kernel did since `apply()`. */
function aside({ fidelity, counters }: Decision): string {
  const ran = claims.counted(counters);
  return [
    fidelity === null ? "" : `fidelity ${claims.fidelity(fidelity)}`,
    ran === "" ? "" : `at run time ${ran}`,
  ]
    .filter((part) => part !== "")
    .join(" · ");
}

/** Calls of the modules since `apply()`: what ran compiled, and what went past the kernels. */
function AtRunTime({ document }: { document: RunDocument }): JSX.Element | null {
  const ran = claims.atRunTime(document.counters);
  return ran === "" ? null : <p class="kforge-note">{ran}</p>;
}
