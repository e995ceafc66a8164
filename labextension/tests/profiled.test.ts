import { expect, test } from "vitest";
import expected from "../../tests/view/expected.json";
import type { RunDocument } from "../src/view/document";
import { beyond, launchBound, rough } from "../src/view/profiled";
import { example } from "./example";
import { host } from "./host";

const { show, all, text } = host();
const BUSY = "other processes kept 1.7 cores busy while the targets were timed: take the times as rough";

/** The example, its workload and the ceiling of every target changed. */
function changed(workload: object, ceiling: number | null = null): RunDocument {
  const run = example({ device: { kind: "cpu" } });
  Object.assign(run.workload, workload);
  for (const target of run.targets) target.ceiling = ceiling ?? target.ceiling;
  return run;
}

test.each(expected.profiled)("what a profile may say is said as Python says it: $what", (wanted) => {
  const run = changed(wanted.workload);
  expect([rough(run), launchBound(run)]).toEqual([wanted.rough, wanted.launch_bound]);
});

test("being launch-bound on a GPU, and a gain above its ceiling, are told as Python tells them", () => {
  expect(launchBound({ ...changed({ launch_bound: true }), device: { kind: "cuda" } })).toBe(expected.launch_bound);
  for (const [ceiling, text] of expected.beyond as [number | null, string][]) {
    expect(beyond(changed({}, ceiling))).toBe(text);
  }
});

test("shares and ceilings of a busy moment are marked wherever they stand, those of a quiet one nowhere", async () => {
  const places = ".kforge-tools .kforge-note, .kforge-targets tbody td, .kforge-costchart";
  const marked = (): string[] => all(places).flatMap((place) => [...place.textContent.matchAll(/≈ [\d.]+[%×]/g)].flat());
  await show(example());
  expect(marked()).toEqual([]);
  await show(changed({ notes: [BUSY], launch_bound: true }));
  expect(marked()).toHaveLength(3 + 2 * 4 + 1);
  await show(changed({ notes: [BUSY], launch_bound: true }, 1.001));
  const banners = all(".kforge-banner").map((banner) => banner.textContent);
  expect(banners.join()).toContain("Shares and ceilings are rough: other programs kept the machine busy");
  expect(banners.at(-1)).toContain("more than the ceilings of their targets together allow (1.00×)");
  expect(banners.join()).not.toContain("Launch-bound");
});

test("an estimate that rests on a busy moment says so", async () => {
  const early: Partial<RunDocument> = { state: "searching", whole: [], decisions: [], recommendation: null };
  const run = { ...changed({ notes: [BUSY] }), ...early };
  await show(run);
  expect(text("header")).toContain("estimated for the whole model from rough shares, not yet measured in it");
});
