/** How the whole model runs in each way that was measured, in time and against two baselines. */
import type { JSX } from "preact";
import { ratioAxis } from "./axis";
import { Lanes, Span, Ticks } from "./Bars";
import * as claims from "./claims";
import { uncompared } from "./derive";
import type { RunDocument, WholeRow } from "./document";
import { type WholeEntry, wholeEntries } from "./entries";
import * as format from "./format";

export function Whole({ document }: { document: RunDocument }): JSX.Element | null {
  const entries = wholeEntries(document);
  if (entries.length === 0) return null;
  const why = uncompared(document);
  const compared = entries.flatMap((e) => [e.overEager, e.overEmpty]);
  const axis = ratioAxis(compared.flatMap((row) => [row?.ratio, row?.low, row?.high]));
  const longest = Math.max(...entries.map((e) => Math.max(e.us ?? 0, e.high ?? 0)), 1e-9);
  return (
    <div class="kforge-whole">
      <h4>The whole model, one run</h4>
      <div class="kforge-scroll">
        <table>
          <thead>
            <tr>
              <th scope="col">model</th>
              <th scope="col">time</th>
              <th scope="col">compared with</th>
              <th scope="col" class="kforge-axis">
                <span class="kforge-hidden">intervals</span>
                <Ticks axis={axis} />
              </th>
            </tr>
          </thead>
          <tbody>
            {entries.map((e) => (
              <tr key={e.label} class={e.recommended ? "best" : ""}>
                <th scope="row">
                  {e.label}
                  {e.recommended && <span class="kforge-note"> recommended</span>}
                </th>
                <td>
                  <Time entry={e} longest={longest} />
                </td>
                <td>
                  <Compared what="the untouched model" row={e.overEager} />
                  <Compared what="the same rest alone" row={e.overEmpty} />
                  <Compared what="laid out, no kernels" row={e.overLayout} />
                  <Compared what="torch.compile" row={e.overCompile} />
                </td>
                <td>
                  <Lanes axis={axis} lines={lines(e)}>
                    {[
                      <Span key="eager" axis={axis} {...figures(e.overEager)} look="first" line={0} />,
                      <Span
                        key="empty"
                        axis={axis}
                        {...figures(e.overEmpty)}
                        look="second"
                        line={e.overEager === null ? 0 : 1}
                      />,
                    ]}
                  </Lanes>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="kforge-note">
        <Key look="first" /> against the untouched model <Key look="second" /> against the same rest alone ·
        95% intervals; what holds 1× shows no difference · times are the untouched model's, divided by each
        paired ratio
      </p>
      {why !== "" && <p class="kforge-note">Over torch.compile: not measured: {why}.</p>}
      {document.recommendation && (
        <p>
          {document.recommendation.rest === "none" ? (
            <b>The guard recommends to leave the model alone</b>
          ) : (
            <>
              Recommended rest: <b>{document.recommendation.rest}</b>
            </>
          )}
          <span class="kforge-note">, {document.recommendation.reason}</span>
        </p>
      )}
    </div>
  );
}

/** What a mark on the axis stands for. */
export function Key({ look }: { look: string }): JSX.Element {
  return (
    <span class="kforge-key" aria-hidden="true">
      <span class={`kforge-span ${look}`} style={{ top: "1px" }}>
        <i style={{ left: "0", width: "100%" }} />
        <b style={{ left: "50%" }} />
      </span>
    </span>
  );
}

function lines({ overEager, overEmpty, overLayout, overCompile }: WholeEntry): number {
  return [overEager, overEmpty, overLayout, overCompile].filter((row) => row !== null).length;
}

function figures(row: WholeRow | null): Pick<WholeRow, "ratio" | "low" | "high"> {
  return { ratio: row?.ratio ?? null, low: row?.low ?? null, high: row?.high ?? null };
}

/** One comparison a line, so that lines and marks on the axis beside them go together. */
function Compared({ what, row }: { what: string; row: WholeRow | null }): JSX.Element | null {
  if (row === null) return null;
  const { figure, spread } = claims.claim(row);
  const tone = { faster: "kforge-good", slower: "kforge-warn", same: "", open: "", none: "" };
  return (
    <div class="kforge-line wide">
      <span class="kforge-note">{what}</span>{" "}
      <span class={`kforge-tab ${tone[claims.shown(row)]}`}>
        {figure} {spread}
      </span>
    </div>
  );
}

function Time({ entry, longest }: { entry: WholeEntry; longest: number }): JSX.Element {
  const part = (us: number): string => `${((us / longest) * 100).toFixed(1)}%`;
  return (
    <>
      <span class="kforge-num">{format.time(entry.us)}</span>
      <span class="kforge-track kforge-long" aria-hidden="true">
        {entry.us !== null && (
          <i class={entry.kernels ? "fill ours" : "fill quiet"} style={{ width: part(entry.us) }} />
        )}
        {entry.low !== null && entry.high !== null && (
          <u style={{ left: part(entry.low), width: part(entry.high - entry.low) }} />
        )}
      </span>
    </>
  );
}
