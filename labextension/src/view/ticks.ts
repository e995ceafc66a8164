/** Round numbers for axes. */
import type { Unit } from "./worth";

/** At most `most` + 1 round numbers from low to high, evenly spaced by 1, 2 or 5 times a power of ten. */
export function round(low: number, high: number, most: number): number[] {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((n) => n * power >= rough * 0.999) ?? 10);
  return multiples(low, high, step);
}

const CLOCK = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 86_400];

/** Marks for an axis of cost from 0 to end: whole where the unit is counted, round on a clock. */
export function steps(unit: Unit, end: number): number[] {
  if (unit === "usd") return round(0, end, 4);
  if (unit === "seconds" && end > 4) {
    const step = CLOCK.find((n) => n >= end / 4) ?? Math.ceil(end / 4 / 86_400) * 86_400;
    return multiples(0, end, step);
  }
  return round(0, end, 4).filter(Number.isInteger);
}

function multiples(low: number, high: number, step: number): number[] {
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => tidy((first + i) * step));
}

/** Without the dust of binary fractions. */
function tidy(value: number): number {
  return Number(value.toPrecision(12));
}
