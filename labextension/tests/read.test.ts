import { expect, test } from "vitest";
import cases from "../../tests/store/broken.json";
import { readData, readText } from "../src/read/read";
import { example } from "./example";

type Path = (string | number)[];

interface Case {
  name: string;
  path: Path;
  value?: unknown;
  repeat?: [string, number];
  copy?: Path;
  says: string;
  why?: string;
}

function at(holder: unknown, path: Path): unknown {
  return path.reduce<unknown>((value, key) => (value as Record<string, unknown>)[key], holder);
}

function brokenBy({ path, value, repeat, copy }: Case): unknown {
  const run: unknown = example();
  const holder = at(run, path.slice(0, -1)) as Record<string, unknown>;
  holder[path.at(-1) ?? ""] = repeat ? repeat[0].repeat(repeat[1]) : copy ? at(run, copy) : value;
  return run;
}

function without(value: object, ...names: string[]): object {
  return Object.fromEntries(Object.entries(value).filter(([name]) => !names.includes(name)));
}

function problem(reading: ReturnType<typeof readData>): string {
  return "problem" in reading ? reading.problem : "";
}

test("a valid run is read as it is, from text and from data", () => {
  const run = example();
  expect(readData(run)).toEqual({ document: run });
  expect(readText(JSON.stringify(run))).toEqual({ document: run });
});

test.each(cases as Case[])("$name is refused with the place and the reason", (broken) => {
  const told = problem(readData(brokenBy(broken)));
  expect(told).toContain(broken.says);
  expect(told).toContain(broken.why ?? "");
});

test.each([
  ["", "empty"],
  ["{", "is no JSON"],
  ["[1]", "is a JSON object, not [1]"],
  ["NaN", "is no JSON"],
  ['"' + "x".repeat(500), "is no JSON"],
])("text %j is one sentence", (text, wanted) => {
  const told = problem(readText(text));
  expect(told).toContain(wanted);
  expect(told.length).toBeLessThan(300);
});

test("a run that is nested without end is refused, not followed", () => {
  const deep = `{"schema":"kforge.run/1","device":${"[".repeat(100)}${"]".repeat(100)}}`;
  expect(problem(readText(deep))).toContain("deeper than 60");
});

test("a missing field is named", () => {
  expect(problem(readData(without(example(), "nodes")))).toContain("lacks a field: nodes");
});

test("a run of the first version is read with what it could not say", () => {
  const run = example();
  const progress = without(run.progress, "paused", "prompts", "calls");
  const costs = run.costs.map(({ target, calls, tokens_in, tokens_out, usd, seconds, node, created }) => ({
    target, node, calls, tokens_in, tokens_out, usd, seconds, created,
  }));
  const reading = readData({ ...run, schema: "kforge.run/1", progress, costs });
  expect("document" in reading && reading.document.progress.calls).toEqual([]);
  expect("document" in reading && reading.document.costs[0]?.state).toBe("done");
});
