/** The answer at a glance: what the whole model gained, against what, and what it took. */
import type { ComponentChildren, JSX } from "preact";
import * as claims from "./claims";
import { headline, running, spent } from "./derive";
import type { RunDocument, WholeRow } from "./document";
import { scaledTimes } from "./entries";
import * as format from "./format";
import { beyond, launchBound, rough } from "./profiled";

export function Headline({ document }: { document: RunDocument }): JSX.Element {
  const remarks = [launchBound(document), rough(document), beyond(document)].filter((text) => text !== "");
  return (
    <>
      <header>
        <Gain document={document} />
        <Facts document={document} />
      </header>
      {remarks.map((text) => (
        <p key={text} class="kforge-banner">
          {text}
        </p>
      ))}
    </>
  );
}

/** Two measured figures side by side, or one that says it is none. */
function Gain({ document }: { document: RunDocument }): JSX.Element {
  const { nothingWon, overEmpty, overEager, overCompile, uncompared, rest, estimate } = headline(document);
  const eager = "the untouched eager model";
  if (nothingWon) {
    return (
      <>
        <Stat figure="0 replaced" below={claims.nothingWon(document.decisions)} />
        {overEager && (
          <Measured document={document} row={overEager} lead={`rest ${rest ?? ""} alone, `} what={eager} second />
        )}
      </>
    );
  }
  if (overEmpty === null && overEager === null) return <Estimate gain={estimate} document={document} />;
  return (
    <>
      {overEmpty && <Measured document={document} row={overEmpty} what={`the same rest (${rest ?? ""}) without kernels`} />}
      {overEager && <Measured document={document} row={overEager} what={eager} second={overEmpty !== null} />}
      {overCompile && <Measured document={document} row={overCompile} what="torch.compile" second />}
      {uncompared !== "" && <Stat figure="not measured" below={`over torch.compile: ${uncompared}`} second />}
    </>
  );
}

function Estimate({ gain, document }: { gain: number | null; document: RunDocument }): JSX.Element {
  const live = running(document);
  if (gain === null) return <Stat figure="–" below={live ? "no figure yet" : "no figure"} second />;
  if (gain <= 1) {
    if (!live) return <Stat figure="no gain" below="no candidate is faster" second />;
    return <Stat figure="no gain yet" below="no candidate is faster so far" second />;
  }
  return (
    <Stat
      figure={`≈ ${format.ratio(gain)}`}
      below={`estimated for the whole model${rough(document) === "" ? "" : " from rough shares"}, not yet measured in it`}
      second
    />
  );
}

interface MeasuredProps {
  document: RunDocument;
  row: WholeRow;
  what: string;
  lead?: string;
  second?: boolean;
}

function Measured({ document, row, what, lead = "", second = false }: MeasuredProps): JSX.Element {
  const { figure, spread, link } = claims.claim(row);
  const moved = ["faster", "slower"].includes(claims.shown(row));
  const { against, ours } = scaledTimes(document, row);
  return (
    <Stat
      figure={figure}
      spread={spread}
      second={second || claims.shown(row) !== "faster"}
      below={
        <>
          {lead}
          {link} {what}
          {moved && (
            <>
              <br />
              <span class="kforge-times-of">
                {format.time(against)} → {format.time(ours)}
              </span>
            </>
          )}
        </>
      }
    />
  );
}

interface StatProps {
  figure: string;
  spread?: string;
  below: ComponentChildren;
  second?: boolean;
}

function Stat({ figure, spread = "", below, second = false }: StatProps): JSX.Element {
  return (
    <div class="kforge-stat">
      <div class={second ? "kforge-big second" : "kforge-big"}>
        {figure} {spread !== "" && <small>{spread}</small>}
      </div>
      <div class="kforge-note">{below}</div>
    </div>
  );
}

function Facts({ document }: { document: RunDocument }): JSX.Element {
  const { usd, calls } = spent(document);
  const { judged, budget } = document.progress;
  const limit = document.options["max_cost"];
  const most = typeof limit === "number" ? ` of ${format.usd(limit)}` : "";
  return (
    <>
      {document.decisions.length > 0 && <Decided document={document} />}
      <Pair
        top={`${format.thousands(judged)}${budget === null ? "" : ` of ${format.thousands(budget)}`} judged`}
        below={calls > 0 ? `${format.usd(usd)}${most}, ${format.count(calls, "call")}` : "no paid calls"}
      />
    </>
  );
}

function Decided({ document }: { document: RunDocument }): JSX.Element {
  const installed = document.decisions.filter((d) => d.installed).length;
  return (
    <Pair
      top={`${installed} of ${document.decisions.length} replaced`}
      below={
        <>
          fidelity {claims.fidelity(document.fidelity)}
          {document.recommendation?.rest === "none" && (
            <>
              <br />
              advice: leave the model alone
            </>
          )}
        </>
      }
    />
  );
}

function Pair({ top, below }: { top: ComponentChildren; below: ComponentChildren }): JSX.Element {
  return (
    <div class="kforge-pair">
      <b>{top}</b>
      <br />
      {below}
    </div>
  );
}
