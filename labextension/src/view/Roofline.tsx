/** How near the machine's limits a candidate comes: work a second against work a byte, log by log. */
import type { JSX } from "preact";
import type { Details, Node, RunDocument, Target } from "./document";
import * as format from "./format";
import { logarithmic, powers } from "./scale";

const WIDTH = 480;
const HEIGHT = 210;
const LEFT = 56;
const RIGHT = 112;
const TOP = 12;
const BOTTOM = 34;
const LABELS_APART = 13;

interface Props {
  document: RunDocument;
  target: Target;
  node: Node;
  nodes: readonly Node[];
  details: Details;
}

/** GB/s and GFLOP/s that the device was measured to reach; null where a document does not say. */
interface Limits {
  bandwidth: number | null;
  flops: number | null;
}

interface Point {
  name: string;
  us: number;
  tone: string;
  ring: boolean;
}

export function Roofline(props: Props): JSX.Element | null {
  const { target, details, node } = props;
  const limits = limitsOf(props.document, target);
  const points = pointsOf(props);
  const { bytes, flops } = target;
  const words = said(limits, node, target, details);
  if (points.length === 0 || !bytes || !flops || limits.bandwidth === null) {
    return words === "" ? null : <p class="kforge-note">{words}</p>;
  }
  return (
    <figure class="kforge-plot">
      <figcaption>
        Roofline: a call moves at least {megabytes(bytes)} and does {(flops / 1e6).toPrecision(3)} million operations
      </figcaption>
      <Chart points={points} intensity={flops / bytes} flops={flops} limits={limits} />
      <p class="kforge-note">
        {words}
        {points.length > 1 && " · the other times are this one's, by the paired ratios"}
      </p>
    </figure>
  );
}

function limitsOf(document: RunDocument, target: Target): Limits {
  const { bandwidth_gbs: bandwidth, flops_gflops: peaks } = document.device;
  const dtype = target.inputs[0]?.dtype ?? "float32";
  const known = typeof peaks === "object" && peaks !== null ? (peaks as Record<string, unknown>) : {};
  const flops = known[dtype] ?? known["float32"];
  return {
    bandwidth: typeof bandwidth === "number" && bandwidth > 0 ? bandwidth : null,
    flops: typeof flops === "number" && flops > 0 ? flops : null,
  };
}

/**
 * This candidate as it was timed, and the others by paired ratios from there: each was timed at a
 * moment of its own, and a busy machine is slower, so that only ratios compare. What has none is left out.
 */
function pointsOf({ node, nodes, target, details }: Props): Point[] {
  const { ours_us: ours } = node;
  if (ours === null || ours <= 0) return [];
  const eager = times(ours, node.speedup);
  const best = nodes.find((other) => other.id === target.best && other.id !== node.id);
  const compile = details.timings.find((timing) => timing.against === "compile");
  const found: [string, number | null, string, boolean][] = [
    ["this", ours, "good", true],
    ["best", times(eager, over(1, best?.speedup)), "good", false],
    ["compile", times(ours, compile?.ratio) ?? times(eager, over(best?.compile_us, best?.eager_us)), "quiet", false],
    ["eager", eager, "quiet", false],
  ];
  return found.flatMap(([name, us, tone, ring]) => (us !== null && us > 0 ? [{ name, us, tone, ring }] : []));
}

function times(us: number | null, ratio: number | null | undefined): number | null {
  return us === null || ratio == null ? null : us * ratio;
}

function over(part: number | null | undefined, whole: number | null | undefined): number | null {
  return part == null || !whole ? null : part / whole;
}

function said(limits: Limits, node: Node, target: Target, details: Details): string {
  const parts = [];
  const moved = details.bandwidth_gbs ?? (target.bytes && node.ours_us ? target.bytes / node.ours_us / 1e3 : null);
  if (moved !== null) {
    const most = limits.bandwidth === null ? "" : ` of ${limits.bandwidth.toFixed(1)}`;
    parts.push(`moves ${moved.toFixed(1)}${most} GB/s`);
  }
  if (details.roofline_share != null && details.roofline_share <= 1) parts.push(`${format.percent(details.roofline_share)} of the roofline`);
  if (target.roofline_us !== null) parts.push(`at the roofline a call takes ${format.time(target.roofline_us)}`);
  return parts.join(" · ");
}

interface ChartProps {
  points: readonly Point[];
  intensity: number;
  flops: number;
  limits: Limits;
}

function Chart({ points, intensity, flops, limits }: ChartProps): JSX.Element {
  const bandwidth = limits.bandwidth ?? 1;
  const ridge = limits.flops === null ? null : limits.flops / bandwidth;
  const left = Math.min(intensity, ridge ?? intensity) / 8;
  const right = Math.max(intensity, ridge ?? intensity) * 8;
  const rates = points.map((point) => flops / point.us / 1e3);
  const top = Math.max(...rates, limits.flops ?? bandwidth * intensity) * 2;
  const low = Math.min(...rates, bandwidth * left, top / 100) / 1.5;
  const x = logarithmic(left, right, LEFT, WIDTH - RIGHT);
  const y = logarithmic(low, top, HEIGHT - BOTTOM, TOP);
  const roof = (at: number): number => Math.min(bandwidth * at, limits.flops ?? Infinity);
  const bend = ridge === null || ridge <= left || ridge >= right ? "" : `L${x(ridge)} ${y(roof(ridge))}`;
  const labels = apart(rates.map((rate) => y(rate)));
  const bottom = HEIGHT - BOTTOM;
  return (
    <svg
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      role="img"
      aria-label={points.map((p, i) => `${p.name} ${(rates[i] ?? 0).toPrecision(3)} GFLOP/s`).join(", ")}
    >
      <path class="axis" d={`M${LEFT} ${TOP}V${bottom}H${WIDTH - RIGHT}`} />
      {powers(left, right, 4).map((v) => (
        <text key={v} class="tick" x={x(v)} y={bottom + 14} text-anchor="middle">{short(v)}</text>
      ))}
      {powers(low, top, 4).map((v) => (
        <text key={v} class="tick" x={LEFT - 6} y={y(v) + 4} text-anchor="end">{short(v)}</text>
      ))}
      <text class="tick" x={(LEFT + WIDTH - RIGHT) / 2} y={HEIGHT - 4} text-anchor="middle">operations a byte</text>
      <text class="tick" x={LEFT + 6} y={TOP + 6}>GFLOP/s</text>
      <path class="roof" d={`M${x(left)} ${y(roof(left))}${bend}L${x(right)} ${y(roof(right))}`} />
      <path class="eager" d={`M${x(intensity)} ${TOP}V${bottom}`} stroke-dasharray="2 3" />
      {points.map((point, i) => {
        const [px, py, ly] = [x(intensity), y(rates[i] ?? low), labels[i] ?? 0];
        return (
          <g key={point.name} class={`kforge-${point.tone}`}>
            <path class="lead" d={`M${px} ${py}L${WIDTH - RIGHT + 4} ${ly}`} />
            <circle class={point.ring ? "ring" : "point"} cx={px} cy={py} r={point.ring ? 6 : 4} />
            <text x={WIDTH - RIGHT + 8} y={ly + 4}>
              {point.name} {format.time(point.us)}
            </text>
          </g>
        );
      })}
    </svg>
  );
}

/** Heights of labels, moved until none lies on another. */
function apart(places: readonly number[]): number[] {
  const order = places.map((_, i) => i).sort((a, b) => (places[a] ?? 0) - (places[b] ?? 0));
  const found = [...places];
  let free = 0;
  for (const i of order) {
    found[i] = Math.max(places[i] ?? 0, free);
    free = (found[i] ?? 0) + LABELS_APART;
  }
  const over = Math.max(0, free - LABELS_APART - (HEIGHT - BOTTOM));
  return found.map((place) => place - over);
}

function short(value: number): string {
  if (value < 0.01 || value >= 100_000) return value.toExponential(0);
  return value < 1000 ? String(Number(value.toPrecision(2))) : format.thousands(Math.round(value));
}

function megabytes(bytes: number): string {
  return bytes < 1e6 ? `${(bytes / 1e3).toPrecision(3)} kB` : `${(bytes / 1e6).toPrecision(3)} MB`;
}
