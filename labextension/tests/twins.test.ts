/** The browser's figures against the ones that Python's views are held to. */
import { expect, test } from "vitest";
import expected from "../../tests/view/expected.json";
import { headline, savedMs } from "../src/view/derive";
import { wholeEntries } from "../src/view/entries";
import * as format from "../src/view/format";
import { example } from "./example";

test("figures are written as Python writes them", () => {
  for (const [value, text] of expected.ratio) expect(format.ratio(value as number)).toBe(text);
  for (const [value, text] of expected.time) expect(format.time(value as number)).toBe(text);
  for (const [value, text] of expected.money) expect(format.usd(value as number)).toBe(text);
  for (const [value, text] of expected.percent) expect(format.percent(value as number)).toBe(text);
  for (const [value, text] of expected.change) expect(format.change(value as number)).toBe(text);
  for (const [low, high, text] of expected.interval) {
    expect(format.interval(low as number, high as number)).toBe(text);
  }
});

test("the headline is Python's headline", () => {
  const lead = headline(example());
  expect(lead.rest).toBe(expected.rest);
  expect(lead.overEmpty?.ratio).toBe(expected.over_empty);
  expect(lead.overEager?.ratio).toBe(expected.over_eager);
  expect(lead.estimate).toBeCloseTo(expected.estimate, 4);
});

test("what is saved is Python's figure", () => {
  expect(savedMs(example())).toBeCloseTo(expected.saved_ms, 3);
});

test("the ways to run the model are Python's", () => {
  const found = wholeEntries(example()).map((e) => [e.label, Math.round((e.us ?? 0) * 10) / 10, e.recommended]);
  expect(found).toEqual(expected.whole);
});
