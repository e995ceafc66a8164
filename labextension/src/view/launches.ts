/** What a launch is on the device: threads, warps, waves. Sums only; `LaunchPlan.tsx` draws them. */
import type { Details, Launched, RunDocument } from "./document";

export const WARP = 32;

export interface Shape {
  name: string;
  grid: readonly [number, number, number];
  block: readonly [number, number, number];
  shared: number;
  blocks: number;
  /** Threads of a block. */
  threads: number;
  warps: number;
  /** Lanes of the last warp that have no thread. */
  idle: number;
  registers: number | null;
  spills: number | null;
  /** Blocks that the whole device runs at once, and how often it has to; null where not known. */
  atOnce: number | null;
  waves: number | null;
}

/** The launches of a plan, in order. */
export function shapes(details: Details, document: RunDocument): Shape[] {
  return (details.launch?.calls ?? []).map((call, i) => shape(call, i, details, document));
}

function shape(call: Launched, place: number, details: Details, document: RunDocument): Shape {
  const [grid, block] = [triple(call.grid), triple(call.block)];
  const blocks = grid[0] * grid[1] * grid[2];
  const threads = block[0] * block[1] * block[2];
  const warps = Math.ceil(threads / WARP);
  const kernel = record(record(details.resources["kernels"])[call.name]);
  const together = number(record(details.resources["blocks_a_multiprocessor"])[place]); // by launch
  const processors = number(document.device["multiprocessors"]);
  const atOnce = together === null || processors === null ? null : together * processors;
  const [stores, loads] = [number(kernel["spill_stores"]), number(kernel["spill_loads"])];
  return {
    name: call.name,
    grid,
    block,
    shared: call.shared,
    blocks,
    threads,
    warps,
    idle: warps * WARP - threads,
    registers: number(kernel["registers"]),
    spills: stores === null && loads === null ? null : (stores ?? 0) + (loads ?? 0),
    atOnce,
    waves: atOnce === null || atOnce === 0 ? null : blocks / atOnce,
  };
}

function triple(sizes: readonly number[]): [number, number, number] {
  return [sizes[0] ?? 1, sizes[1] ?? 1, sizes[2] ?? 1];
}

/** The fields of a value that came from anybody; none where it is no record. */
export function record(value: unknown): Record<string | number, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string | number, unknown>) : {};
}

function number(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}
