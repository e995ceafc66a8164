import { expect, test } from "vitest";
import * as format from "../src/view/format";

test("clocks are written out", () => {
  expect([59.6, 190, 3661].map((s) => format.clock(s))).toEqual(["1:00", "3:10", "1:01:01"]);
});

test("an error of exactly nothing is 0 and others keep their magnitude", () => {
  expect([0, 0.0017, null].map((v) => format.error(v))).toEqual(["0", "1.7e-3", "–"]);
});
