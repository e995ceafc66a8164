/** Expected whole-model gain against cost, with the places where targets ended, and equal budgets. */
import type { JSX, RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { claim, shown } from "./claims";
import { headline } from "./derive";
import type { RunDocument } from "./document";
import * as format from "./format";
import { rough } from "./profiled";
import { round, steps } from "./ticks";
import type { Spot, Uniform, Unit } from "./worth";

const WIDEST = 600;
const NARROWEST = 300;
const HEIGHT = 220;
/** Least room for the words of the axis, which take what they need. */
const LEFT = 40;
const RIGHT = 118;
const TOP = 28;
const BOTTOM = 24;
/** Words nearer than this are moved apart. */
const APART = 13;
/** Width of a letter, about; of a figure with its sign, at most. */
const LETTER = 6;
const DIGIT = 8;
/** Room that the words at the dashed line take. */
const WORDS = 140;

interface Props {
  document: RunDocument;
  spots: Spot[];
  equal: Uniform | null;
  unit: Unit;
}

export function CostChart({ document, spots, equal, unit }: Props): JSX.Element {
  const [box, width] = useWidth();
  const { overEmpty } = headline(document);
  const measured = shown(overEmpty) === "faster" ? (overEmpty?.ratio ?? null) : null;
  const final = spots.at(-1);
  const gain = final?.gain ?? 1;
  const others = equal?.spots ?? [];
  const end = Math.max(...spots.map((s) => s[unit]), ...others.map((s) => s[unit]), 1e-9);
  const [low, high] = [Math.min(1, measured ?? 1), Math.max(1.02, gain, measured ?? 1)];
  const right = width - RIGHT;
  const marks = round(low, high, 4).map((value) => ({ value, text: `${Number(value.toPrecision(6))}×` }));
  const left = Math.max(LEFT, ...marks.map(({ text }) => text.length * DIGIT + 8));
  const x = (value: number): number => left + (value / end) * (right - left);
  const y = (value: number): number => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const labels = [
    { text: `${format.about(format.ratio(gain), rough(document) !== "")} expected`, at: y(gain), kind: "gain" },
    ...(measured === null ? [] : [{ text: `${format.ratio(measured)} measured`, at: y(measured), kind: "measured" }]),
    ...(overEmpty === null || measured !== null ? [] : [{ text: claim(overEmpty).figure, at: y(1), kind: "unshown" }]),
  ];
  return (
    <svg
      ref={box}
      class="kforge-costchart"
      viewBox={`0 0 ${width} ${HEIGHT}`}
      role="img"
      aria-label={`Expected gain ${format.ratio(gain)} after ${worded(unit, final?.[unit] ?? 0)}`}
    >
      <Axes x={x} y={y} right={right} end={end} marks={marks} unit={unit} />
      {measured !== null && <path class="measured" d={`M${left} ${y(measured)}H${right}`} />}
      {others.length > 1 && <path class="equal" d={stairs(others, unit, x, y)} />}
      <path class="gain" d={stairs(spots, unit, x, y)} />
      {others.length > 1 && <EqualLabel spots={others} ours={spots} unit={unit} x={x} y={y} right={right} />}
      <Ends document={document} spots={spots} unit={unit} x={x} y={y} />
      {apart(labels).map((label) => (
        <text key={label.kind} class={label.kind} x={right + 6} y={label.at + 4}>
          {label.text}
        </text>
      ))}
    </svg>
  );
}

type Scale = (value: number) => number;

/** The width that an element has, between bounds, so that words keep their size; a ref to set. */
function useWidth(): [RefObject<SVGSVGElement>, number] {
  const ref = useRef<SVGSVGElement>(null);
  const [width, setWidth] = useState(WIDEST);
  useEffect(() => {
    const place = ref.current?.parentElement;
    if (place == null || typeof ResizeObserver === "undefined") return;
    const observer = new ResizeObserver(() => {
      const room = Math.round(place.clientWidth);
      if (room > 0) setWidth(Math.min(WIDEST, Math.max(NARROWEST, room)));
    });
    observer.observe(place);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

interface AxesProps {
  x: Scale;
  y: Scale;
  right: number;
  end: number;
  marks: { value: number; text: string }[];
  unit: Unit;
}

function Axes({ x, y, right, end, marks, unit }: AxesProps): JSX.Element {
  const left = x(0);
  return (
    <g class="axis">
      {marks.map(({ value, text }) => (
        <g key={value}>
          <path d={`M${left} ${y(value)}H${right}`} />
          <text x={left - 6} y={y(value) + 4} text-anchor="end">
            {text}
          </text>
        </g>
      ))}
      {steps(unit, end).map((value) => (
        <text key={value} x={x(value)} y={HEIGHT - 7} text-anchor={value === 0 ? "start" : x(value) > right - 20 ? "end" : "middle"}>
          {plain(unit, value)}
        </text>
      ))}
      <text x={right + 6} y={HEIGHT - 7}>
        {unit === "seconds" ? "searched" : unit === "usd" ? "spent" : unit === "calls" ? "calls" : "candidates"}
      </text>
    </g>
  );
}

/** A gain holds from where it was reached to where the next one is. */
export function stairs(spots: readonly Spot[], unit: Unit, x: Scale, y: Scale): string {
  const at = (n: number): string => n.toFixed(1);
  return spots
    .map((s, i) => (i === 0 ? `M${at(x(s[unit]))} ${at(y(s.gain))}` : `H${at(x(s[unit]))}V${at(y(s.gain))}`))
    .join("");
}

interface EqualProps {
  spots: Spot[];
  ours: Spot[];
  unit: Unit;
  x: Scale;
  y: Scale;
  right: number;
}

/**
 * The words at the dashed line: at its end, on the side where there is room. Neither line ever falls:
 * right of the end it is free below both, left of it above both.
 */
function EqualLabel({ spots, ours, unit, x, y, right }: EqualProps): JSX.Element {
  const last = spots.at(-1);
  const end = last?.[unit] ?? 0;
  const gains = [last?.gain ?? 1, ours.filter((s) => s[unit] <= end).at(-1)?.gain ?? 1];
  const room = x(end) < right - WORDS;
  const below = y(Math.min(...gains)) + 17;
  const low = below > HEIGHT - BOTTOM - 3;
  const at = room && !low ? below : y(Math.max(...gains)) - 8;
  return (
    <text class="equal" x={x(end) + (room ? 7 : -7)} y={at} text-anchor={room ? "start" : "end"}>
      equal budgets (estimate)
    </text>
  );
}

interface EndsProps {
  document: RunDocument;
  spots: Spot[];
  unit: Unit;
  x: Scale;
  y: Scale;
}

/** A diamond where a target's own rule, or the user, ended it; the numbers are those of the targets. */
function Ends({ document, spots, unit, x, y }: EndsProps): JSX.Element {
  const groups: { x: number; y: number; names: string[]; words: string[] }[] = [];
  const ended = document.targets
    .flatMap((t) => (t.stopped == null || t.stopped.by === "run" ? [] : [{ t, stopped: t.stopped }]))
    .sort((a, b) => a.stopped.judged - b.stopped.judged);
  for (const { t, stopped } of ended) {
    const spot = spots[Math.min(stopped.judged, spots.length - 1)];
    if (spot === undefined) continue;
    const words = `target ${t.index} ${t.name}: ${stopped.reason || "its stop rule"}`;
    const near = groups.at(-1);
    if (near !== undefined && x(spot[unit]) - near.x < room(near.names)) {
      near.names.push(String(t.index));
      near.words.push(words);
    } else groups.push({ x: x(spot[unit]), y: y(spot.gain), names: [String(t.index)], words: [words] });
  }
  return (
    <>
      {groups.map((group) => (
        <g key={group.x} class="end" transform={`translate(${group.x.toFixed(1)} ${group.y.toFixed(1)})`}>
          <title>{group.words.join("\n")}</title>
          <path d="M0 -5L5 0L0 5L-5 0Z" />
          <text y={-9} text-anchor="middle">
            {named(group.names)}
          </text>
        </g>
      ))}
    </>
  );
}

/** The words at a mark that several targets share. */
function named(names: string[]): string {
  return names.length > 2 ? `${names.length} targets` : names.join(", ");
}

/** How near the next mark may come before it shares this one's words. */
function room(names: string[]): number {
  return (LETTER * (named(names).length + 3)) / 2 + 6;
}

/** The labels, moved apart from top to bottom. */
function apart<Label extends { at: number }>(labels: Label[]): Label[] {
  const sorted = [...labels].sort((a, b) => a.at - b.at);
  let free = -Infinity;
  return sorted.map((label) => {
    const at = Math.max(label.at, free);
    free = at + APART;
    return { ...label, at };
  });
}

function plain(unit: Unit, value: number): string {
  if (unit === "usd") return value === 0 ? "$0" : format.usd(value);
  return unit === "seconds" ? format.clock(value) : String(value);
}

function worded(unit: Unit, value: number): string {
  return unit === "calls" ? `${value} calls` : unit === "judged" ? `${value} candidates` : plain(unit, value);
}
