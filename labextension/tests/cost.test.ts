import { act } from "preact/test-utils";
import { afterEach, beforeEach, expect, test } from "vitest";
import { fixedSource } from "../src/source";
import type { RunDocument } from "../src/view/document";
import { mountRun } from "../src/view/mount";
import { round, steps } from "../src/view/ticks";
import { curve, total, uniform, units } from "../src/view/worth";
import expected from "../../tests/view/worth.json";
import { example } from "./example";

let host: HTMLElement;
let dispose = (): void => undefined;
beforeEach(() => {
  host = document.createElement("div");
  document.body.append(host);
});
afterEach(() => {
  dispose();
  host.remove();
});

async function show(run: RunDocument): Promise<HTMLElement> {
  await act(() => {
    dispose = mountRun(host, fixedSource(run));
  });
  const section = host.querySelector<HTMLElement>(".kforge-cost");
  if (section === null) throw new Error("no cost view");
  return section;
}

/** The example with two dear calls a candidate, one of which failed, and one call that was lost. */
function paid(): RunDocument {
  const run = example();
  const [first] = run.costs;
  if (first === undefined) throw new Error("the example has no costs");
  run.costs = run.nodes.flatMap((node, i) =>
    [0.02, 0.01].map((usd, j) => ({
      ...first,
      target: node.target,
      node: node.id,
      created: node.created,
      calls: 1,
      usd,
      tokens_in: 1500,
      tokens_out: 400,
      problem: i === 0 && j === 0 ? "the answer holds no kernel" : "",
    })),
  );
  const lost = { ...first, target: 0, node: null, calls: 1, usd: 0.5, created: "2026-03-14T09:01:00Z" };
  run.costs.push({ ...lost, state: "lost", problem: "the process ended" });
  return run;
}

const lineOf = (section: HTMLElement, kind: string): string | null =>
  section.querySelector(`.kforge-costchart path.${kind}`)?.getAttribute("d") ?? null;

test("the figures are Python's figures", () => {
  for (const [name, run] of [["example", example()], ["paid", paid()]] as const) {
    const wanted = expected[name];
    const way = curve(run);
    expect(way).toHaveLength(wanted.spots);
    expect(way.at(-1)).toEqual(near(wanted.last));
    for (const [index, spot] of Object.entries(wanted.targets)) {
      expect(curve(run, Number(index)).at(-1)).toEqual(near(spot));
    }
    const equal = uniform(run);
    expect([equal?.rounds, equal?.targets]).toEqual([wanted.rounds, wanted.shared]);
    expect(equal?.spent).toEqual(near(wanted.spent));
    expect(equal?.ours).toEqual(near(wanted.ours));
  }
});

function near(spot: Record<string, number>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(spot).map(([k, v]) => [k, expect.closeTo(v, 4) as unknown]));
}

test("where nothing is paid there are no dollars: candidates and time instead", async () => {
  const section = await show(example());
  const choices = [...section.querySelectorAll(".kforge-toggle label")].map((l) => l.textContent);
  expect(choices).toEqual(["candidates", "time"]);
  expect(section.querySelector(".kforge-cost-sum")?.textContent).toMatch(/^26 candidates judged in \d+:\d\d · /);
  expect(section.querySelector("table.kforge-costs")?.textContent).not.toContain("$");
});

test("a paid run is drawn against dollars, and against calls or time when that is chosen", async () => {
  const section = await show(paid());
  const axis = (): string => section.querySelector(".kforge-costchart .axis")?.textContent ?? "";
  expect(axis()).toContain("$");
  const before = lineOf(section, "gain");
  for (const [name, word] of [["calls", "calls"], ["time", "searched"]] as const) {
    const label = [...section.querySelectorAll("label")].find((l) => l.textContent === name);
    await act(() => label?.querySelector("input")?.click());
    expect(axis()).toContain(word);
    expect(axis()).not.toContain("$");
  }
  expect(lineOf(section, "gain")).not.toBe(before);
});

test("failed and lost calls are told, for the run and for the target that they were made for", async () => {
  const section = await show(paid());
  expect(section.querySelector(".kforge-cost-sum")?.textContent).toContain(
    "53 calls (1 failed, 1 lost, counted at the most they may cost)",
  );
  const row = [...section.querySelectorAll(".kforge-costs tbody tr")].find((tr) =>
    tr.querySelector("th")?.textContent.startsWith("0 "),
  );
  expect([...(row?.querySelectorAll("td") ?? [])].map((td) => td.textContent)).toContain("1, 1");
});

test("expected and measured gain, and equal budgets, are told apart by words and by their lines", async () => {
  const section = await show(paid());
  const text = section.querySelector(".kforge-costchart")?.textContent ?? "";
  expect(text).toContain("1.10× expected");
  expect(text).toContain("1.06× measured");
  expect(text).toContain("equal budgets (estimate)");
  expect(lineOf(section, "measured")).not.toBeNull();
  expect(section.querySelector(".kforge-equal")?.textContent).toContain("An estimate from this run's own");
  const none = example({ whole: [], recommendation: null });
  dispose();
  const other = await show(none);
  expect(lineOf(other, "measured")).toBeNull();
  expect(other.querySelector(".kforge-costchart")?.textContent).not.toContain("measured");
});

test.each([
  [0.99, 1.8, "no difference shown"],
  [0.9, 0.97, "slower: 1.38×"],
])("a ratio whose interval does not lie above 1 (%d to %d) is drawn as no measured gain", async (low, high, words) => {
  const run = example();
  for (const row of run.whole) if (row.against === "empty") Object.assign(row, { ratio: 1.38, low, high });
  const section = await show(run);
  expect(section.querySelector(".kforge-costchart path.measured")).toBeNull();
  expect(section.querySelector(".kforge-costchart")?.textContent).toContain(words);
  expect(section.querySelector(".kforge-costchart")?.textContent).not.toContain("measured");
});

test("a mark stands where a target's rule fired, and none where the whole run ended", async () => {
  const run = example();
  const stopped = { at: run.updated, calls: 0, usd: 0, seconds: 20, judged: 12 };
  const reason = "12 candidates in a row brought no new best";
  for (const target of run.targets) {
    if (target.index === 1) target.stopped = { ...stopped, by: "rule", reason };
    if (target.index === 0) target.stopped = { ...stopped, by: "run", reason: "the budget is used up" };
  }
  const section = await show(run);
  const marks = [...section.querySelectorAll(".kforge-costchart .end")];
  expect(marks.map((mark) => mark.querySelector("text")?.textContent)).toEqual(["1"]);
  expect(marks[0]?.querySelector("title")?.textContent).toContain(reason);
  expect(section.querySelectorAll(".kforge-costline .end path")).toHaveLength(1);
  expect(section.querySelector(".kforge-costs")?.textContent).toContain(reason);
});

test("every chart is a table too: each rise of each line", async () => {
  const section = await show(example());
  const steps = section.querySelector("details");
  if (steps === null) throw new Error("no table");
  expect(steps.querySelector("table")).toBeNull(); // made only while it is looked at
  await act(() => {
    steps.open = true;
    steps.dispatchEvent(new Event("toggle"));
  });
  const names = [...section.querySelectorAll("details tbody th")].map((th) => th.textContent);
  expect(new Set(names)).toEqual(
    new Set(["whole model, expected", "equal budgets, estimate", ...targets(example())]),
  );
});

function targets(run: RunDocument): string[] {
  return run.targets
    .filter((t) => run.nodes.some((n) => n.target === t.index))
    .map((t) => `${t.index} ${t.name}`);
}

test("choosing a target in the table chooses it in the whole view", async () => {
  const section = await show(example());
  const button = [...section.querySelectorAll("button")].find((b) => b.textContent.trim().startsWith("1 "));
  await act(() => button?.click());
  expect(button?.getAttribute("aria-pressed")).toBe("true");
  expect(host.querySelector('[role="tree"]')?.getAttribute("aria-label")).toContain("dropout_add_layer_norm");
});

test.each([
  ["searching", "Nothing has been judged yet.", "no gain yet"],
  ["failed", "Nothing was judged.", "no candidate is faster"],
] as const)("a run that has judged nothing says so and draws no axes: %s", async (state, says, headline) => {
  await act(() => {
    dispose = mountRun(host, fixedSource(example({ state, nodes: [], costs: [], whole: [], decisions: [] })));
  });
  expect(host.textContent).toContain(says);
  expect(host.querySelector("header")?.textContent).toContain(headline);
  expect(host.querySelector(".kforge-costchart")).toBeNull();
});

test("one target has no equal budgets to be compared with, nor has a run without gain", () => {
  const run = example();
  const alone = { ...run, targets: run.targets.filter((t) => t.index === 0) };
  expect(uniform({ ...alone, nodes: run.nodes.filter((n) => n.target === 0) })).toBeNull();
  expect(uniform({ ...run, nodes: run.nodes.map((n) => ({ ...n, verdict: "wrong" as const })) })).toBeNull();
});

test("pauses and nights between sessions are no time searched", () => {
  const run = example();
  const late = (when: string): string => when.replace("2026-03-14", "2026-03-20");
  const half = run.nodes.length / 2;
  const slept = run.nodes.map((n, i) => (i < half ? n : { ...n, created: late(n.created) }));
  const [before, after] = [total(run).seconds, total({ ...run, nodes: slept }).seconds];
  expect(Math.abs(after - before)).toBeLessThan(60);
});

/** How many places of lists `act` goes through. */
function walked(act: () => void): number {
  const list = Array.prototype as unknown as Record<string | symbol, (...given: unknown[]) => unknown>;
  const names = ["map", "filter", "reduce", "find", "some", "flat", "flatMap", Symbol.iterator];
  const before = names.map((name) => [name, list[name]] as const);
  let places = 0;
  for (const [name, method] of before) {
    list[name] = function counted(this: unknown[], ...given) {
      places += this.length;
      return method?.apply(this, given);
    };
  }
  try {
    act();
  } finally {
    for (const [name, method] of before) if (method !== undefined) list[name] = method;
  }
  return places;
}

/** A run of many targets, of which the last has most candidates and wins at its last one only. */
function uneven(targets: number, candidates: number): RunDocument {
  const run = example();
  const [target] = run.targets;
  const [node] = run.nodes;
  const [cost] = run.costs;
  if (target === undefined || node === undefined || cost === undefined) throw new Error("the example is empty");
  const many = Array.from({ length: targets }, (_, index) => ({
    ...target,
    index,
    state: "done" as const,
    share: 0.9 / targets,
  }));
  const nodes = Array.from({ length: candidates }, (_, i) => {
    const of = i < targets / 2 ? i : targets - 1; // the other targets have none
    const speedup = i === candidates - 1 ? 2 : 1;
    const created = new Date(Date.UTC(2026, 2, 14, 10) + i * 1000).toISOString();
    return { ...node, id: `${of}.${i}`, target: of, verdict: "accepted" as const, speedup, created };
  });
  const costs = nodes.map(({ id, target: of, created }) => ({ ...cost, node: id, target: of, created, calls: 1, usd: 0.01 }));
  return { ...run, targets: many, nodes, costs };
}

test("equal budgets and the lines of all targets take no more work than there are candidates", () => {
  const all = (targets: number, candidates: number): number => {
    const run = uneven(targets, candidates);
    return walked(() => {
      expect(uniform(run)?.rounds).toBe(candidates - targets / 2);
      for (const target of run.targets) curve(run, target.index);
    });
  };
  const [small, more, wider] = [all(100, 500), all(100, 1000), all(200, 500)];
  expect(more / small).toBeLessThan(2.5);
  expect(wider / small).toBeLessThan(2.5);
  expect(small).toBeLessThan(20 * (100 + 500));
});

test("units name what was really spent", () => {
  expect(units(example())).toEqual(["judged", "seconds"]);
  expect(units(paid())).toEqual(["usd", "calls", "seconds"]);
  const free = { ...paid(), costs: paid().costs.map((c) => ({ ...c, usd: 0 })) };
  expect(units(free)).toEqual(["calls", "seconds"]);
});

test("axes have round marks, whole ones for what is counted, clock ones for time", () => {
  expect(round(1, 1.31, 4)).toEqual([1, 1.1, 1.2, 1.3]);
  expect(steps("judged", 3)).toEqual([0, 1, 2, 3]);
  expect(steps("seconds", 410)).toEqual([0, 120, 240, 360]);
  expect(steps("usd", 0.42)).toEqual([0, 0.2, 0.4]);
});
