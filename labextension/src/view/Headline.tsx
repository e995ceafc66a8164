/** The answer at a glance: what the whole model gained, against what, and what it took. */
import type { ComponentChildren, JSX } from "preact";
import { headline, spent } from "./derive";
import type { RunDocument, WholeRow } from "./document";
import * as format from "./format";

export function Headline({ document }: { document: RunDocument }): JSX.Element {
  return (
    <>
      <header>
        <Gain document={document} />
        <Facts document={document} />
      </header>
      {document.workload.launch_bound === true && (
        <p class="kforge-banner">
          Launch-bound: the model waits for its host, not for its device. Faster kernels alone
          change little here; a rest with CUDA graphs does.
        </p>
      )}
    </>
  );
}

function Gain({ document }: { document: RunDocument }): JSX.Element {
  const { nothingWon, overEmpty, overEager, rest, estimate } = headline(document);
  const lead = overEmpty ?? overEager;
  if (lead === null && !nothingWon) {
    return (
      <div class="kforge-big">
        {format.ratio(estimate)} <small>estimated for the whole model, not yet measured in it</small>
      </div>
    );
  }
  return (
    <>
      {nothingWon ? (
        <div class="kforge-big">
          0 replaced <small>nothing won inside the model</small>
        </div>
      ) : (
        <div class="kforge-big">
          {format.ratio(lead?.ratio)} <small>{format.interval(lead?.low, lead?.high)}</small>
        </div>
      )}
      {overEmpty && <Versus row={overEmpty} what={`same rest (${rest ?? ""}) without kernels`} />}
      {overEager && (
        <Versus
          row={overEager}
          what="untouched eager model"
          by={nothingWon ? `rest ${rest ?? ""} alone gives ` : ""}
        />
      )}
    </>
  );
}

function Versus({ row, what, by = "" }: { row: WholeRow; what: string; by?: string }): JSX.Element {
  return (
    <Pair
      top={`${format.time(row.against_us)} → ${format.time(row.ours_us)}`}
      below={`${by}${format.ratio(row.ratio)} (${format.interval(row.low, row.high)}) over the ${what}`}
    />
  );
}

function Facts({ document }: { document: RunDocument }): JSX.Element {
  const { usd, calls } = spent(document);
  const installed = document.decisions.filter((d) => d.installed).length;
  const { judged, budget } = document.progress;
  return (
    <>
      {document.decisions.length > 0 && (
        <Pair
          top={`${installed} of ${document.decisions.length} replaced`}
          below={
            document.fidelity === null
              ? "fidelity not measured"
              : `fidelity ${format.ratio(document.fidelity.ratio)} eager's error`
          }
        />
      )}
      <Pair
        top={`${judged}${budget === null ? "" : ` of ${budget}`} judged`}
        below={calls > 0 ? `${format.usd(usd)}, ${format.count(calls, "call")}` : "no paid calls"}
      />
    </>
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
