/** From values to places on a drawing, linear or logarithmic. */

/** The place of a value; values outside are drawn at the nearer end. */
export type Scale = (value: number) => number;

export function linear(low: number, high: number, from: number, to: number): Scale {
  const span = high > low ? high - low : 1;
  return (value) => from + clamped((value - low) / span) * (to - from);
}

/** Both ends must be above 0. */
export function logarithmic(low: number, high: number, from: number, to: number): Scale {
  const place = linear(Math.log(low), Math.log(high), from, to);
  return (value) => (value > 0 ? place(Math.log(value)) : from);
}

/** Powers of ten from low to high, both included; every second or third where they are many. */
export function powers(low: number, high: number, most = 6): number[] {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  const found = [];
  for (let power = first; power <= last; power += step) found.push(10 ** power);
  return found;
}

/** The numbers among values that can stand on an axis. */
export function finite(values: readonly (number | null | undefined)[]): number[] {
  return values.filter((value): value is number => value != null && Number.isFinite(value));
}

function clamped(part: number): number {
  return Math.min(1, Math.max(0, part));
}
