/** Was it worth it: the gain so far against money, or against candidates where nothing is paid. */
import type { JSX } from "preact";
import { progress, type ProgressPoint, savedMs, spent } from "./derive";
import type { RunDocument } from "./document";
import * as format from "./format";

const WIDTH = 480;
const HEIGHT = 150;
const LEFT = 44;
const RIGHT = 12;
const TOP = 12;
const BOTTOM = 24;

export function Cost({ document }: { document: RunDocument }): JSX.Element {
  const points = progress(document);
  const last = points.at(-1);
  return (
    <div>
      <h3>Gain against cost</h3>
      {last === undefined ? (
        <p class="kforge-note">Nothing has been judged yet.</p>
      ) : (
        <>
          <Chart points={points} paid={last.usd > 0} />
          <p class="kforge-note">
            Whole-model gain if the best candidates hold in the model; the guard measures it.
            {price(document)}
          </p>
          <Table points={points} />
        </>
      )}
    </div>
  );
}

/** What a saved millisecond has cost, where anything was paid. */
function price(document: RunDocument): string {
  const { usd } = spent(document);
  const saved = savedMs(document);
  if (usd === 0 || saved === 0) return "";
  return ` ${format.usd(usd)} for ${saved.toFixed(2)} ms saved a run: ${format.usd(usd / saved)} a millisecond.`;
}

function Chart({ points, paid }: { points: ProgressPoint[]; paid: boolean }): JSX.Element {
  const at = (p: ProgressPoint): number => (paid ? p.usd : p.judged);
  const end = Math.max(...points.map(at), paid ? 0 : 1);
  const top = Math.max(1.01, ...points.map((p) => p.gain));
  const x = (value: number): number => LEFT + (value / end) * (WIDTH - LEFT - RIGHT);
  const y = (gain: number): number => HEIGHT - BOTTOM - ((gain - 1) / (top - 1)) * (HEIGHT - TOP - BOTTOM);
  const label = (value: number): string => (paid ? format.usd(value) : String(value));
  const line = points.map((p) => `H${x(at(p)).toFixed(1)}V${y(p.gain).toFixed(1)}`).join("");
  const final = points.at(-1)?.gain ?? 1;
  return (
    <svg
      class="kforge-chart"
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      role="img"
      aria-label={`Estimated gain ${format.ratio(final)} after ${label(end)}${paid ? "" : " candidates"}`}
    >
      <path class="axis" d={`M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}`} />
      <path class="gain" d={`M${x(0)} ${y(1)}${line}`} />
      <text x={LEFT - 6} y={y(1) + 4} text-anchor="end">
        1×
      </text>
      <text x={LEFT - 6} y={y(top) + 4} text-anchor="end">
        {format.ratio(top)}
      </text>
      <text x={LEFT} y={HEIGHT - 8}>
        {paid ? "$0" : "0"}
      </text>
      <text x={WIDTH - RIGHT} y={HEIGHT - 8} text-anchor="end">
        {label(end)}
        {paid ? " spent" : " judged"}
      </text>
    </svg>
  );
}

/** The same as a table: one row for each step up. */
function Table({ points }: { points: ProgressPoint[] }): JSX.Element {
  const steps = points.filter((p, i) => i === 0 || p.gain > (points[i - 1]?.gain ?? 0));
  return (
    <details>
      <summary>As a table</summary>
      <table>
        <thead>
          <tr>
            <th scope="col" class="n">judged</th>
            <th scope="col" class="n">spent</th>
            <th scope="col" class="n">time</th>
            <th scope="col" class="n">gain</th>
          </tr>
        </thead>
        <tbody>
          {steps.map((p) => (
            <tr key={p.judged}>
              <td class="n">{p.judged}</td>
              <td class="n">{format.usd(p.usd)}</td>
              <td class="n">{format.clock(p.seconds)}</td>
              <td class="n">{format.ratio(p.gain)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </details>
  );
}
