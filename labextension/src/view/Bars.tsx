/** Small bars in table cells. The figures stand beside them as text, so they are hidden from readers. */
import type { JSX } from "preact";
import type { RatioAxis } from "./axis";

/** Height of a line of figures, as in guard.css. */
const LINE = 17;

const percent = (part: number): string => `${(Math.min(1, Math.max(0, part)) * 100).toFixed(1)}%`;

/** A part of the largest part, from the left. */
export function ShareBar({ part }: { part: number }): JSX.Element {
  return (
    <span class="kforge-track" aria-hidden="true">
      <i class="fill" style={{ width: percent(part) }} />
    </span>
  );
}

/** Times of one target from top to bottom: eager, compile, ours; each in its own pattern. */
export function TimeBars({ times }: { times: readonly (number | null)[] }): JSX.Element {
  const longest = Math.max(0, ...times.map((us) => us ?? 0));
  return (
    <span class="kforge-times" aria-hidden="true">
      {times.map((us, i) => (
        <i
          key={i}
          class={["eager", "compile", "ours"][i]}
          style={{ width: us === null || longest === 0 ? "0" : percent(us / longest) }}
        />
      ))}
    </span>
  );
}

/** How near to the roofline: a bar for the best kernel, a notch for eager; the end is the roofline. */
export function RoofBar({ eager, ours }: { eager: number | null; ours: number | null }): JSX.Element {
  return (
    <span class="kforge-track kforge-roof" aria-hidden="true">
      <i class={ours === null ? "fill quiet" : "fill ours"} style={{ width: percent(ours ?? eager ?? 0) }} />
      {eager !== null && ours !== null && <b style={{ left: percent(eager) }} />}
    </span>
  );
}

interface SpanProps {
  axis: RatioAxis;
  ratio: number | null | undefined;
  low: number | null | undefined;
  high: number | null | undefined;
  look: string;
  /** Which line of text it belongs to, from 0. */
  line: number;
}

/** An interval on a ratio axis with its middle; only the middle where no interval is known. */
export function Span({ axis, ratio, low, high, look, line }: SpanProps): JSX.Element | null {
  const [middle, left, right] = [axis.at(ratio), axis.at(low), axis.at(high)];
  if (middle === null) return null;
  return (
    <span class={`kforge-span ${look}`} style={{ top: `${line * LINE + 5}px` }}>
      {left !== null && right !== null && (
        <i style={{ left: `${left}%`, width: `${Math.max(0, right - left)}%` }} />
      )}
      <b style={{ left: `${middle}%` }} />
    </span>
  );
}

/** The place where intervals are drawn, one a line of text: a line at 1 and one at each tick. */
export function Lanes({
  axis,
  lines,
  children,
}: {
  axis: RatioAxis;
  lines: number;
  children: JSX.Element[];
}): JSX.Element {
  return (
    <span class="kforge-lanes" style={{ height: `${Math.max(1, lines) * LINE}px` }} aria-hidden="true">
      {axis.ticks.map(({ at, label }) => (
        <u key={label} class={label === "1×" ? "one" : ""} style={{ left: `${at}%` }} />
      ))}
      {children}
    </span>
  );
}

/** The labels of the axis, for the head of its column. */
export function Ticks({ axis }: { axis: RatioAxis }): JSX.Element {
  return (
    <span class="kforge-ticks" aria-hidden="true">
      {axis.ticks.map(({ at, label }) => (
        <span key={label} style={{ left: `${at}%` }}>
          {label}
        </span>
      ))}
    </span>
  );
}
