/** Error of each output on each input set against what it may be, on a logarithmic scale. */
import type { JSX } from "preact";
import type { Details, ErrorFigure } from "./document";
import * as format from "./format";
import { finite, logarithmic, powers, type Scale } from "./scale";

const WIDTH = 480;
const LEFT = 150;
const RIGHT = 66;
const LINE = 22;
const AXIS = 20;
/** Bars that are drawn; the nearest to their budget come first, all are in the table. */
const SHOWN = 12;

export function Errors({ details }: { details: Details }): JSX.Element {
  const { errors, mismatches, repeatable } = details;
  if (errors.length === 0) {
    return <p class="kforge-note">No outputs were compared.</p>;
  }
  const ranked = [...errors].sort((a, b) => strain(b) - strain(a));
  return (
    <>
      <Bars rows={ranked.slice(0, SHOWN)} of={errors.length} />
      {repeatable === false && <p class="kforge-warn">Two runs on the same inputs gave different outputs.</p>}
      {mismatches.length > 0 && <Mismatches rows={mismatches} />}
      <details>
        <summary>As a table</summary>
        <ErrorTable rows={ranked} />
      </details>
    </>
  );
}

/** How much of its budget an error takes; what is not finite is over it. */
function strain({ candidate, budget }: ErrorFigure): number {
  if (candidate === null) return Infinity;
  if (candidate === 0) return 0;
  return budget === null || budget === 0 ? Infinity : candidate / budget;
}

function Bars({ rows, of }: { rows: readonly ErrorFigure[]; of: number }): JSX.Element {
  const values = finite(rows.flatMap((r) => [r.candidate, r.eager, r.budget])).filter((v) => v > 0);
  const low = Math.min(...values, 1e-6) / 3;
  const high = Math.max(...values, low * 100) * 2;
  const x = logarithmic(low, high, LEFT, WIDTH - RIGHT);
  const bottom = rows.length * LINE;
  const over = rows.filter((row) => strain(row) > 1).length;
  return (
    <figure class="kforge-plot">
      <figcaption>
        Error against float64: <b class="kforge-accent">▬</b> this, <b>│</b> eager, <b class="kforge-bad">┃</b>{" "}
        allowed{of > rows.length && ` · the ${rows.length} nearest to it of ${of}`}
      </figcaption>
      <svg
        viewBox={`0 0 ${WIDTH} ${bottom + AXIS}`}
        role="img"
        aria-label={`${of} errors against their budgets, ${over === 0 ? "none" : over} above it`}
      >
        {rows.map((row, i) => (
          <Bar key={`${row.output} ${row.input_set}`} row={row} y={i * LINE + LINE / 2} x={x} />
        ))}
        {powers(low, high, 5).map((value) => (
          <text key={value} class="tick" x={x(value)} y={bottom + 14} text-anchor="middle">
            {value.toExponential(0)}
          </text>
        ))}
      </svg>
    </figure>
  );
}

function Bar({ row, y, x }: { row: ErrorFigure; y: number; x: Scale }): JSX.Element {
  const over = strain(row) > 1;
  const tone = over ? "bad" : "accent";
  const end = row.candidate === null ? x(Infinity) : x(row.candidate);
  return (
    <g class={`kforge-${tone}`}>
      <text x={LEFT - 8} y={y + 4} text-anchor="end" class="name">
        {`${row.output} ${row.input_set}`.slice(0, 24)}
      </text>
      <path class="bar" d={`M${LEFT} ${y}H${end}`} />
      {row.eager !== null && <path class="eager" d={`M${x(row.eager)} ${y - 6}v12`} />}
      {row.budget !== null && <path class="budget" d={`M${x(row.budget)} ${y - 8}v16`} />}
      <text class="value" x={WIDTH} y={y + 4} text-anchor="end">
        {row.candidate === null ? "not finite" : format.error(row.candidate)}
        {over && " over"}
      </text>
    </g>
  );
}

function ErrorTable({ rows }: { rows: readonly ErrorFigure[] }): JSX.Element {
  return (
    <div class="kforge-scroll kforge-short">
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
          {rows.slice(0, 500).map((row) => (
            <tr key={`${row.output} ${row.input_set}`}>
              <td>{row.output}</td>
              <td>{row.input_set}</td>
              <td class={`n${strain(row) > 1 ? " kforge-bad" : ""}`}>{format.error(row.candidate)}</td>
              <td class="n">{format.error(row.eager)}</td>
              <td class="n">{format.error(row.budget)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** The first places where outputs differ, with whatever the judge noted of each. */
function Mismatches({ rows }: { rows: Details["mismatches"] }): JSX.Element {
  const keys = [...new Set(rows.slice(0, 50).flatMap((row) => Object.keys(row)))].slice(0, 8);
  return (
    <>
      <h4>Where it differs</h4>
      <div class="kforge-scroll kforge-short">
        <table>
          <thead>
            <tr>
              {keys.map((key) => (
                <th key={key} scope="col">
                  {key}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, 50).map((row, i) => (
              <tr key={i}>
                {keys.map((key) => (
                  <td key={key}>{plain(row[key])}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function plain(value: unknown): string {
  if (value === undefined) return "–";
  return (typeof value === "string" ? value : JSON.stringify(value)).slice(0, 200);
}
