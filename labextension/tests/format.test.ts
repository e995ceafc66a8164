import { expect, test } from "vitest";
import * as format from "../src/view/format";

test("figures keep three meaningful digits and say when there is none", () => {
  expect([0.991, 2.314, 17.06, 342.4, null].map((v) => format.ratio(v))).toEqual([
    "0.99×", "2.31×", "17.1×", "342×", "–",
  ]);
  expect(format.interval(2.27, 2.35)).toBe("2.27 to 2.35");
  expect(format.interval(null, 2)).toBe("");
});

test("times take the unit that fits", () => {
  expect([0.5, 48.28, 812.4, 40980, 12_000_000].map((v) => format.time(v))).toEqual([
    "500 ns", "48.3 µs", "812 µs", "41.0 ms", "12.0 s",
  ]);
});

test("clocks and money are written out", () => {
  expect([59.6, 190, 3661].map((s) => format.clock(s))).toEqual(["1:00", "3:10", "1:01:01"]);
  expect([0, 0.0123, 2].map((v) => format.usd(v))).toEqual(["$0.00", "$0.0123", "$2.00"]);
});
