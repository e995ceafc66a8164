import { expect, test } from "vitest";
import type { RunDocument } from "../src/view/document";
import { example } from "./example";
import { host } from "./host";
import { invented } from "./invented";

const { show, all, text, click } = host();
const GUARD = ".kforge-guard";

test("each decision stands with its reason, both ratios, and what it saves in a run", async () => {
  await show(example());
  const [first, , third] = all(`${GUARD} tbody tr`).map((row) => row.textContent);
  expect(first).toContain("0 gelu● replaced: faster in the model");
  expect(first).toContain("alone 2.31× (2.26 to 2.36)in the model 1.13× (1.12 to 1.14)");
  expect(first).toContain("−4.65 ms");
  expect(third).toMatch(/0\.998× \(0\.993 to 1\.004\)–$/);
});

test("installed kernels come first, and those without anything to try wait behind a button", async () => {
  await show(invented(60));
  const rows = (): string[] => all(`${GUARD} div > .kforge-scroll, ${GUARD} > .kforge-scroll`)
    .slice(0, 1)
    .flatMap((table) => [...table.querySelectorAll("tbody tr")].map((row) => row.textContent));
  const verdicts = rows().map((row) => row.includes("● replaced"));
  expect(verdicts).toEqual([...verdicts].sort((a, b) => Number(b) - Number(a)));
  expect(verdicts).toHaveLength(7);
  await click("Show 53 more, kept original without a kernel to try");
  expect(rows()).toHaveLength(60);
});

test("after apply() launches and fallbacks with their reasons stand with the kernel", async () => {
  await show(invented(60));
  expect(text(GUARD)).toContain("at run time 3,708 launches, 18 fallbacks: another shape 18");
  expect(text(GUARD)).toContain("412 calls of the model since apply(), 410 compiled, 2 ran plain, past the kernels.");
});

test("marks of all rows lie on one axis with a line at 1", async () => {
  await show(example());
  const ones = all(`${GUARD} tbody .one`).map((line) => line.style.left);
  const [decisions] = [ones.slice(0, 4)];
  expect(new Set(decisions).size).toBe(1);
  const place = (selector: string): number => parseFloat(all(selector)[0]?.style.left ?? "");
  const at = parseFloat(ones[0] ?? "");
  expect(place(`${GUARD} tbody tr:first-child .second b`)).toBeGreaterThan(place(`${GUARD} tbody tr:first-child .first b`));
  expect(place(`${GUARD} tbody tr:nth-child(3) .first b`)).toBeLessThan(at);
});

test("what the layout alone brings stands apart from what kernels bring", async () => {
  const run = example();
  const row = run.whole.find((r) => r.name === "guarded" && r.against === "empty");
  if (row === undefined) throw new Error("the example has no such row");
  run.whole.push({ ...row, against: "layout", ratio: 1.28, low: 1.16, high: 1.55 });
  await show(run);
  const line = all(".kforge-whole .kforge-line").find((l) => l.textContent.startsWith("laid out, no kernels"));
  expect(line?.textContent).toBe("laid out, no kernels 1.28× (1.16 to 1.55)");
});

test("the whole model shows every way with its time, against eager and against the same rest", async () => {
  await show(example());
  const rows = all(".kforge-whole tbody tr").map((row) => row.textContent);
  expect(rows.map((row) => row.split(/[\d.]+ ms/)[0])).toEqual([
    "untouched model",
    "torch.compile",
    "rest eager alone",
    "rest eager with kernels",
    "rest inductor alone",
    "rest inductor with kernels recommended",
  ]);
  expect(rows[2]).toContain("the untouched model no difference shown (0.981 to 1.001)");
  expect(rows[5]).toContain("the untouched model 1.30× (1.29 to 1.31)the same rest alone 1.06× (1.05 to 1.07)");
});

test("an interval that holds 1 is no gain in the headline, whatever its middle says", async () => {
  const run = example();
  for (const row of run.whole) if (row.against === "empty") Object.assign(row, { ratio: 1.04, low: 0.99, high: 1.09 });
  await show(run);
  expect(text("header")).toContain("no difference shown (0.99 to 1.09)against the same rest (inductor) without kernels");
  expect(text("header")).not.toContain("1.04");
});

test("a model that the guard would leave alone is headed so", async () => {
  await show(example({ recommendation: { rest: "none", reason: "the untouched model is fastest" } }));
  expect(text("header")).toContain("advice: leave the model alone");
  expect(text(GUARD)).toContain("The guard recommends to leave the model alone, the untouched model is fastest");
});

/** The run without any figure: nothing was measured, nothing is known. */
function blank(run: RunDocument): RunDocument {
  const without = (value: unknown): unknown => {
    if (typeof value === "number") return null;
    if (Array.isArray(value)) return value.map(without);
    if (typeof value !== "object" || value === null) return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, kept.has(k) ? v : without(v)]));
  };
  const kept = new Set(["index", "target", "calls", "n", "visits", "judged", "prompts"]);
  return without(run) as RunDocument;
}

test("a document without a single figure is shown with dashes and claims nothing", async () => {
  await show(blank(example()));
  expect(text("header")).toContain("not measured");
  expect(document.body.textContent).not.toMatch(/NaN|Infinity|undefined|null/);
});

test.each([
  ["no targets", { targets: [], nodes: [], decisions: [], whole: [], costs: [] }, "Nothing in this workload can be replaced"],
  ["no decisions", { decisions: [], whole: [], recommendation: null }, "Nothing is installed before it has won"],
])("a run with %s says what that means", async (_, changes: Partial<RunDocument>, words) => {
  await show(example(changes));
  expect(document.body.textContent).toContain(words);
});

test("documents of versions 1 and 1.1, which know no calls and no counters, are shown whole", async () => {
  const run = example() as unknown as Record<string, unknown>;
  run["schema"] = "kforge.run/1.1";
  await show(run as unknown as RunDocument);
  expect(all(`${GUARD} tbody tr`).length).toBeGreaterThan(4);
  const { paused, prompts, calls, ...progress } = run["progress"] as Record<string, unknown>;
  expect([paused, prompts, calls]).toEqual([false, 0, []]);
  const costs = (run["costs"] as Record<string, unknown>[]).map(({ target, node, calls, tokens_in, tokens_out, usd, seconds, created }) => ({
    target, node, calls, tokens_in, tokens_out, usd, seconds, created,
  }));
  await show({ ...run, schema: "kforge.run/1", progress, costs } as unknown as RunDocument);
  expect(document.body.textContent).toContain("1.30× (1.29 to 1.31)");
});

test("figures out of all measure neither break the picture nor leave it", async () => {
  const run = invented(20);
  const odd = [1e300, -3, 0, 1e-300];
  run.whole.forEach((row, i) => Object.assign(row, { ratio: odd[i % 4], low: odd[(i + 1) % 4], ours_us: odd[i % 4] }));
  run.decisions.forEach((d, i) => Object.assign(d.isolated ?? {}, { ratio: odd[i % 4], high: odd[(i + 2) % 4] }));
  run.targets.forEach((t, i) => Object.assign(t, { share: odd[i % 4], roofline_us: odd[(i + 1) % 4], calls: 9e15 }));
  await show(run);
  const styles = all("[style]").map((e) => e.getAttribute("style") ?? "");
  const places = styles.flatMap((style) => [...style.matchAll(/(?:left|width): ([^;]+)%/g)].map((m) => Number(m[1])));
  expect(places.length).toBeGreaterThan(50);
  expect(places.every((place) => place >= 0 && place <= 100)).toBe(true);
});
