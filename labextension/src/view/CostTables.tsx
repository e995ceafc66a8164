/** What each target cost and brought, a line of its own in each row; and every step as a table. */
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { stairs } from "./CostChart";
import type { RunDocument, Target } from "./document";
import * as format from "./format";
import { tokens } from "./spoken";
import { curve, type Spot, total, type Total, type Uniform, type Unit } from "./worth";

const WIDTH = 150;
const HEIGHT = 24;
const PAD = 5;

interface Props {
  document: RunDocument;
  unit: Unit;
  selected: number | null;
  onSelect: ((index: number) => void) | undefined;
}

interface RowFacts {
  target: Target;
  spots: Spot[];
  sums: Total;
}

export function TargetCosts({ document, unit, selected, onSelect }: Props): JSX.Element | null {
  const rows = useMemo(() => factsOf(document), [document]);
  const paid = rows.some((row) => row.sums.calls > 0);
  if (rows.length === 0) return null;
  const end = Math.max(...rows.map((row) => row.sums[unit]), 1e-9);
  const top = Math.max(...rows.map((row) => row.sums.gain), 1.1);
  return (
    <div class="kforge-scroll kforge-costs-box" tabIndex={0}>
      <table class="kforge-costs">
        <caption class="kforge-hidden">What each target cost and brought</caption>
        <thead>
          <tr>
            <th scope="col">target</th>
            <th scope="col">best so far, to {format.ratio(top)}, by cost</th>
            <th scope="col" class="n">best</th>
            <th scope="col" class="n">saved a run</th>
            <th scope="col" class="n">judged</th>
            <th scope="col" class="n">time</th>
            {paid && <PaidHead />}
            <th scope="col">ended</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(({ target, spots, sums }) => (
            <tr key={target.index} class={target.index === selected ? "on" : ""}>
              <th scope="row">
                <button
                  type="button"
                  class="kforge-link"
                  aria-pressed={target.index === selected}
                  onClick={() => onSelect?.(target.index)}
                >
                  {target.index} {target.name}
                </button>
              </th>
              <td>
                <Line spots={spots} unit={unit} end={end} top={top} target={target} />
              </td>
              <td class="n">{sums.gain > 1 ? format.ratio(sums.gain) : "–"}</td>
              <td class="n">{sums.savedMs ? `${sums.savedMs.toFixed(2)} ms` : "–"}</td>
              <td class="n">{sums.judged}</td>
              <td class="n">{format.clock(sums.seconds)}</td>
              {paid && <Paid sums={sums} />}
              <td class="kforge-cut" title={ending(target)}>
                {ending(target)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function PaidHead(): JSX.Element {
  return (
    <>
      <th scope="col" class="n">calls</th>
      <th scope="col" class="n">failed, lost</th>
      <th scope="col" class="n">tokens in, out</th>
      <th scope="col" class="n">spent</th>
      <th scope="col" class="n">per ms saved</th>
    </>
  );
}

function Paid({ sums }: { sums: Total }): JSX.Element {
  return (
    <>
      <td class="n">{sums.calls}</td>
      <td class="n">{sums.failed + sums.lost === 0 ? "–" : `${sums.failed}, ${sums.lost}`}</td>
      <td class="n">
        {tokens(sums.tokensIn)}, {tokens(sums.tokensOut)}
      </td>
      <td class="n">{format.usd(sums.usd)}</td>
      <td class="n">{sums.savedMs ? format.usd(sums.usd / sums.savedMs) : "–"}</td>
    </>
  );
}

/** Targets that anything was spent on, the one that saves most first. */
function factsOf(document: RunDocument): RowFacts[] {
  return document.targets
    .map((target) => ({
      target,
      spots: curve(document, target.index),
      sums: total(document, target.index),
    }))
    .filter(({ sums }) => sums.judged > 0 || sums.calls > 0)
    .sort((a, b) => (b.sums.savedMs ?? 0) - (a.sums.savedMs ?? 0));
}

function ending(target: Target): string {
  const reason = target.stopped?.reason || target.state_reason;
  return reason === "" ? target.state : reason;
}

interface LineProps {
  spots: Spot[];
  unit: Unit;
  end: number;
  top: number;
  target: Target;
}

/** A target's own line: both axes are those of every row, the height is the logarithm. */
function Line({ spots, unit, end, top, target }: LineProps): JSX.Element {
  const x = (value: number): number => PAD + (value / end) * (WIDTH - 2 * PAD);
  const y = (gain: number): number => HEIGHT - PAD - (Math.log(gain) / Math.log(top)) * (HEIGHT - 2 * PAD);
  const last = spots.at(-1);
  const by = target.stopped?.by;
  return (
    <svg class="kforge-costline" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} width={WIDTH} height={HEIGHT} aria-hidden="true">
      <path class="base" d={`M${PAD} ${y(1)}H${WIDTH - PAD}`} />
      <path class="gain" d={stairs(spots, unit, x, y)} />
      {last !== undefined && (
        <g class="end" transform={`translate(${x(last[unit]).toFixed(1)} ${y(last.gain).toFixed(1)})`}>
          {by === "rule" && <path d="M0 -4L4 0L0 4L-4 0Z" />}
          {by === "user" && <path d="M-3 -3H3V3H-3Z" />}
        </g>
      )}
    </svg>
  );
}

interface StepsProps {
  document: RunDocument;
  spots: Spot[];
  equal: Uniform | null;
}

/** Each rise of each line, made only while it is looked at. */
export function Steps(props: StepsProps): JSX.Element {
  const [open, setOpen] = useState(false);
  return (
    <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>As a table</summary>
      {open && <StepTable {...props} />}
    </details>
  );
}

/** The rises of the whole model, of equal budgets, and of every target. */
function StepTable({ document, spots, equal }: StepsProps): JSX.Element {
  const lines = [
    { name: "whole model, expected", spots },
    ...(equal === null ? [] : [{ name: "equal budgets, estimate", spots: equal.spots }]),
    ...document.targets.map((t) => ({ name: `${t.index} ${t.name}`, spots: curve(document, t.index) })),
  ];
  return (
    <table>
      <thead>
        <tr>
          <th scope="col">line</th>
          <th scope="col" class="n">judged</th>
          <th scope="col" class="n">calls</th>
          <th scope="col" class="n">spent</th>
          <th scope="col" class="n">time</th>
          <th scope="col" class="n">gain</th>
        </tr>
      </thead>
      <tbody>
        {lines.flatMap((line) =>
          rises(line.spots).map((s) => (
            <tr key={`${line.name} ${s.judged} ${s.gain}`}>
              <th scope="row">{line.name}</th>
              <td class="n">{s.judged}</td>
              <td class="n">{Math.round(s.calls)}</td>
              <td class="n">{format.usd(s.usd)}</td>
              <td class="n">{format.clock(s.seconds)}</td>
              <td class="n">{format.ratio(s.gain)}</td>
            </tr>
          )),
        )}
      </tbody>
    </table>
  );
}

function rises(spots: Spot[]): Spot[] {
  return spots.filter((s, i) => i > 0 && (s.gain > (spots[i - 1]?.gain ?? 1) || i === spots.length - 1));
}
