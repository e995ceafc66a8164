/** Amounts of cost as people write them. */
import * as format from "./format";
import type { Total, Unit } from "./worth";

/** An amount of a unit as people write it. */
export function amount(unit: Unit, value: number): string {
  if (unit === "usd") return format.usd(value);
  if (unit === "seconds") return format.clock(value);
  return format.count(Math.round(value), unit === "calls" ? "call" : "candidate");
}

/** Everything that was spent, and what a saved millisecond has cost. */
export function spoken(all: Total): string {
  const parts = [
    `${format.count(all.judged, "candidate")} judged in ${format.clock(all.seconds)}`,
    ...(all.calls > 0 ? [`${format.usd(all.usd)} for ${format.count(all.calls, "call")}${troubles(all)}`] : []),
    ...(all.tokensIn + all.tokensOut > 0
      ? [`${tokens(all.tokensIn)} tokens in, ${tokens(all.tokensOut)} out`]
      : []),
  ];
  const { savedMs: saved, usd } = all;
  if (saved !== null && saved > 0) {
    parts.push(`${saved.toFixed(2)} ms saved a run`);
    if (usd > 0) parts.push(`${format.usd(usd / saved)} a millisecond`);
  }
  return parts.join(" · ");
}

/** Calls that failed, were lost, or are under way, where there are any. */
function troubles({ failed, lost, open }: Total): string {
  const parts = [
    ...(failed > 0 ? [`${failed} failed`] : []),
    ...(lost > 0 ? [`${lost} lost, counted at the most they may cost`] : []),
    ...(open > 0 ? [`${open} under way`] : []),
  ];
  return parts.length > 0 ? ` (${parts.join(", ")})` : "";
}

/** 1234567 becomes `1.2M`. */
export function tokens(n: number): string {
  if (n < 1000) return String(n);
  return n < 1e6 ? `${(n / 1000).toFixed(n < 1e4 ? 1 : 0)}k` : `${(n / 1e6).toFixed(1)}M`;
}
