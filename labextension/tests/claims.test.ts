import { expect, test } from "vitest";
import expected from "../../tests/view/expected.json";
import * as claims from "../src/view/claims";
import { ratioAxis } from "../src/view/axis";
import { moduleOf } from "../src/view/rows";
import { example } from "./example";

test("what a comparison shows is said as Python says it", () => {
  for (const [ratio, low, high, text] of expected.versus as [number | null, number | null, number | null, string][]) {
    expect(claims.versus({ ratio, low, high }, "eager")).toBe(text);
  }
});

test("run-time counters are told as Python tells them", () => {
  for (const { counters, text } of expected.counted) {
    expect(claims.counted(counters as unknown as Parameters<typeof claims.counted>[0])).toBe(text);
  }
  for (const [counters, text] of expected.at_run_time) {
    expect(claims.atRunTime(counters as Parameters<typeof claims.atRunTime>[0])).toBe(text);
  }
});

test("what each rest does with a kernel is told as Python tells it", () => {
  for (const { rests, text } of expected.by_rest) expect(claims.byRest({ rests })).toBe(text);
  for (const { decisions, text } of expected.nothing_won) {
    expect(claims.nothingWon(decisions as Parameters<typeof claims.nothingWon>[0])).toBe(text);
  }
});

test("what became of a target, or of its Pause and Stop, is told as Python tells it", () => {
  for (const [target, tried, text] of expected.state) {
    expect(claims.state(target as Parameters<typeof claims.state>[0], tried as number)).toBe(text);
  }
});

test("on the axis twice and half as fast lie equally far from 1, and rubbish lies nowhere", () => {
  const axis = ratioAxis([0.5, 2, null, Infinity, -1]);
  const [half, one, twice] = [axis.at(0.5), axis.at(1), axis.at(2)] as [number, number, number];
  expect(twice - one).toBeCloseTo(one - half);
  expect([axis.at(0), axis.at(-1), axis.at(NaN), axis.at(null)]).toEqual([null, null, null, null]);
  expect(axis.ticks.map((tick) => tick.label)).toContain("1×");
});

test("an axis of near ratios still has ticks beside 1, and one of far ratios not too many", () => {
  expect(ratioAxis([0.99, 1.01]).ticks.length).toBeGreaterThan(1);
  expect(ratioAxis([0.001, 9000]).ticks.length).toBeLessThan(9);
});

test("a target stands where its places agree", () => {
  const [target] = example().targets;
  if (target === undefined) throw new Error("the example has no target");
  const at = (...modules: string[]): string => moduleOf({ ...target, modules });
  expect(at("a.0.norm", "a.11.norm")).toBe("a.*.norm");
  expect(at("a.0.norm.x", "a.1.mlp")).toBe("a.*");
  expect(at("head", "tail")).toBe("(the whole model)");
  expect(at()).toBe("(the whole model)");
});
