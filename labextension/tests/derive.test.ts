import { expect, test } from "vitest";
import { estimate, headline, pathTo, progress } from "../src/view/derive";
import { example } from "./example";

test("the headline takes the recommended rest, against empty and against eager", () => {
  const lead = headline(example());
  expect(lead.rest).toBe("inductor");
  expect(lead.overEmpty?.against).toBe("empty");
  expect(lead.overEager?.ratio).toBeGreaterThan(lead.overEmpty?.ratio ?? Infinity);
});

test("a recommended rest without kernels leads with its own row, and with no gain of kernels", () => {
  const run = example();
  for (const decision of run.decisions) decision.installed = false;
  const alone = run.whole.filter((row) => row.rest === "inductor" && row.against === "eager");
  const others = run.whole.filter((row) => row.rest === "eager");
  run.whole = [...others, ...alone.map((row) => ({ ...row, name: "empty" }))];
  const lead = headline(run);
  expect(lead).toMatchObject({ nothingWon: true, rest: "inductor", overEmpty: null });
  expect(lead.overEager?.name).toBe("empty");
});

test("before the guard has measured there is an estimate and no measured row", () => {
  const lead = headline(example({ whole: [], recommendation: null }));
  expect(lead).toMatchObject({ rest: null, overEmpty: null, overEager: null });
  expect(lead.estimate).toBeGreaterThan(1);
});

test("a target of half the time made twice as fast gains a third", () => {
  const [first] = example().targets;
  if (first === undefined) throw new Error("the example has no target");
  expect(estimate([{ ...first, share: 0.5 }], new Map([[first.index, 2]]))).toBeCloseTo(4 / 3);
  expect(estimate([{ ...first, share: null }], new Map())).toBeNull();
});

test("the gain never falls as candidates are judged, and starts from what was created first", () => {
  const shuffled = [...example().nodes].reverse();
  const gains = progress(example({ nodes: shuffled })).map((p) => p.gain);
  expect(gains).toHaveLength(shuffled.length);
  expect(gains).toEqual([...gains].sort((a, b) => a - b));
});

test("money counts up to the candidate it was spent on", () => {
  const [node] = example().nodes;
  const [cost] = example().costs;
  if (node === undefined || cost === undefined) throw new Error("the example is empty");
  const late = { ...cost, usd: 5, created: "2099-01-01T00:00:00Z" };
  const [point] = progress(example({ nodes: [node], costs: [{ ...cost, usd: 2 }, late] }));
  expect(point?.usd).toBe(2);
});

test("the path to a node ends at its draft, also when parents form a loop", () => {
  const nodes = example().nodes;
  const best = example().targets[0]?.best ?? null;
  const path = pathTo(nodes, best);
  expect(path.has(best ?? "")).toBe(true);
  expect(nodes.filter((n) => path.has(n.id) && n.parent === null)).toHaveLength(1);
  const looped = nodes.map((n) => ({ ...n, parent: best }));
  expect(pathTo(looped, best).size).toBe(1);
});
