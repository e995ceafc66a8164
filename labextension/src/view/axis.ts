/** One logarithmic axis of ratios for many rows: twice as fast and half as fast lie equally far. */

export interface Tick {
  at: number;
  label: string;
}

export interface RatioAxis {
  /** Place of a ratio in percent of the axis; null where it cannot be shown. */
  at(ratio: number | null | undefined): number | null;
  ticks: Tick[];
}

const ROUND = [
  1, 0.001, 0.01, 0.1, 10, 100, 1000, 10_000, 2, 5, 0.5, 0.2, 20, 50, 200, 500, 3, 1.5, 0.7, 0.8,
  1.2, 0.9, 1.1, 0.95, 1.05,
];
const LEAST = 1e-3;
const MOST = 1e4;
const MARGIN = 0.06;
const APART = 17;

/** An axis on which all the values and 1 have room. */
export function ratioAxis(values: readonly (number | null | undefined)[]): RatioAxis {
  const logs = values.filter(usable).map((value) => Math.log(clamp(value)));
  let low = Math.min(...logs, Math.log(0.95));
  let high = Math.max(...logs, Math.log(1.05));
  const margin = (high - low) * MARGIN;
  low -= margin;
  high += margin;
  const at = (ratio: number | null | undefined): number | null =>
    usable(ratio) ? ((Math.log(clamp(ratio)) - low) / (high - low)) * 100 : null;
  return { at, ticks: ticks(at) };
}

/** Round ratios that lie on the axis, the rounder ones first, none too near to another. */
function ticks(at: (ratio: number) => number | null): Tick[] {
  const found: Tick[] = [];
  for (const value of ROUND) {
    const place = at(value);
    if (place === null || place < 3 || place > 97) continue;
    if (found.some((tick) => Math.abs(tick.at - place) < APART)) continue;
    found.push({ at: place, label: `${value}×` });
  }
  return found.sort((a, b) => a.at - b.at);
}

function usable(value: number | null | undefined): value is number {
  return value != null && Number.isFinite(value) && value > 0;
}

function clamp(value: number): number {
  return Math.min(MOST, Math.max(LEAST, value));
}
