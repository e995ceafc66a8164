/** Every timing sample as a dot, ours above each baseline's, and the ratio with its interval. */
import type { JSX } from "preact";
import { ratioAxis } from "./axis";
import type { Details, Timing } from "./document";
import * as format from "./format";
import { finite, linear, type Scale } from "./scale";
import { round } from "./ticks";

const WIDTH = 480;
const LEFT = 66;
const RIGHT = 12;
const LANE = 30;
const AXIS = 20;
/** More dots than this cannot be told apart; the rest is thinned out evenly. */
const DOTS = 400;

const WHAT: Record<string, string> = {
  warm: "eager on the same inputs again and again; decides nothing",
  call: "time of a call from the host; decides nothing",
};

export function Strips({ details }: { details: Details }): JSX.Element {
  const timings = details.timings.filter((timing) => timing.ours_us !== null);
  if (timings.length === 0) return <p class="kforge-note">It was not timed.</p>;
  return (
    <>
      <Ratios timings={timings} />
      {timings.map((timing) => (
        <Strip key={timing.against} timing={timing} />
      ))}
    </>
  );
}

function Strip({ timing }: { timing: Timing }): JSX.Element {
  const ours = finite(timing.ours_samples_us);
  const theirs = finite(timing.against_samples_us);
  const most = Math.max(...finite([...ours, ...theirs, timing.ours_us, timing.against_us]), 1e-9) * 1.02;
  const x = linear(0, most, LEFT, WIDTH - RIGHT);
  const what = WHAT[timing.against];
  const said = `this ${format.time(timing.ours_us)}, ${timing.against} ${format.time(timing.against_us)}`;
  return (
    <figure class="kforge-plot">
      <figcaption>
        {format.count(ours.length, "sample")} against <b>{timing.against}</b>
        {what !== undefined && <span class="kforge-note"> · {what}</span>}
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${2 * LANE + AXIS}`} role="img" aria-label={`Times of a call: ${said}`}>
        <Lane name="this" tone="kforge-good" y={LANE / 2} samples={ours} middle={timing.ours_us} x={x} />
        <Lane name={timing.against} tone="kforge-quiet" y={1.5 * LANE} samples={theirs} middle={timing.against_us} x={x} />
        <path class="axis" d={`M${LEFT} ${2 * LANE}H${WIDTH - RIGHT}`} />
        {round(0, most, 4).map((value) => (
          <text key={value} class="tick" x={x(value)} y={2 * LANE + 14} text-anchor="middle">
            {value === 0 ? "0" : format.time(value)}
          </text>
        ))}
      </svg>
    </figure>
  );
}

interface LaneProps {
  name: string;
  tone: string;
  y: number;
  samples: readonly number[];
  middle: number | null;
  x: Scale;
}

function Lane({ name, tone, y, samples, middle, x }: LaneProps): JSX.Element {
  const every = Math.max(1, Math.ceil(samples.length / DOTS));
  const dots = samples.filter((_, i) => i % every === 0);
  return (
    <g class={tone}>
      <text x={LEFT - 8} y={y + 4} text-anchor="end">
        {name.slice(0, 10)}
      </text>
      {dots.map((value, i) => (
        <circle key={i} class="sample" cx={x(value).toFixed(1)} cy={y + (((i * 7) % 11) - 5) * 0.9} r={2} />
      ))}
      {middle !== null && <path class="middle" d={`M${x(middle)} ${y - 11}v22`} />}
    </g>
  );
}

/** The ratio over each baseline on one axis; 1 is no gain. */
function Ratios({ timings }: { timings: readonly Timing[] }): JSX.Element {
  const axis = ratioAxis(timings.flatMap((t) => [t.ratio, t.low, t.high]));
  const x = (ratio: number | null): number | null => {
    const at = axis.at(ratio);
    return at === null ? null : LEFT + (at / 100) * (WIDTH - LEFT - RIGHT - 110);
  };
  const high = timings.length * 20;
  const words = timings.map((t) => `${format.ratio(t.ratio)} over ${t.against}`).join(", ");
  return (
    <figure class="kforge-plot">
      <figcaption>How many times faster, with the 95% interval</figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${high + AXIS}`} role="img" aria-label={words}>
        <path class="axis" d={`M${x(1)} 0V${high}`} />
        {timings.map((t, i) => (
          <Ratio key={t.against} timing={t} y={i * 20 + 10} x={x} />
        ))}
        {axis.ticks.map((tick) => (
          <text
            key={tick.label}
            class="tick"
            x={LEFT + (tick.at / 100) * (WIDTH - LEFT - RIGHT - 110)}
            y={high + 14}
            text-anchor="middle"
          >
            {tick.label}
          </text>
        ))}
      </svg>
    </figure>
  );
}

interface RatioProps {
  timing: Timing;
  y: number;
  x: (ratio: number | null) => number | null;
}

function Ratio({ timing, y, x }: RatioProps): JSX.Element {
  const { ratio, low, high } = timing;
  const tone = low !== null && low > 1 ? "good" : high !== null && high < 1 ? "bad" : "quiet";
  const [from, at, to] = [x(low), x(ratio), x(high)];
  return (
    <g class={`kforge-${tone}`}>
      <text x={LEFT - 8} y={y + 4} text-anchor="end">
        {timing.against.slice(0, 10)}
      </text>
      {from !== null && to !== null && <path class="whisker" d={`M${from} ${y}H${to}M${from} ${y - 4}v8M${to} ${y - 4}v8`} />}
      {at !== null && <circle class="point" cx={at} cy={y} r={4} />}
      <text class="value" x={WIDTH - RIGHT} y={y + 4} text-anchor="end">
        {format.ratio(ratio)} {low !== null && `(${format.interval(low, high)})`}
      </text>
    </g>
  );
}
