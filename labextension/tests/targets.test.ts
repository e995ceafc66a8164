import { expect, test } from "vitest";
import { example } from "./example";
import { host } from "./host";
import { invented } from "./invented";

const { show, all, text, click, type, press } = host();
const ROW = ".kforge-targets tbody tr[data-target]";
const names = (): (string | undefined)[] => all(ROW).map((row) => row.dataset["target"]);
const column = (place: number): string[] =>
  all(ROW).map((row) => row.children[place]?.textContent ?? "");

test("the largest share stands on top, and the head says so to everybody", async () => {
  await show(example());
  expect(names()).toEqual(["3", "0", "1", "2"]);
  const sorts = all(".kforge-targets th[scope=col]").map((th) => th.getAttribute("aria-sort"));
  expect(sorts.filter((sort) => sort !== "none")).toEqual(["descending"]);
});

test("a column sorts by its button, turns round on the second press, and leaves unknowns last", async () => {
  await show(example());
  await click(/^speed-up/);
  expect(names()).toEqual(["0", "1", "2", "3"]);
  await click(/^speed-up/);
  expect(names()).toEqual(["2", "1", "0", "3"]);
  expect(all('[aria-sort="ascending"]')[0]?.textContent).toContain("speed-up");
});

test.each([
  ["target", ["1", "0", "3", "2"]],
  ["calls", ["3", "1", "0", "2"]],
  ["eager", ["3", "0", "1", "2"]],
  ["compile", ["0", "1", "2", "3"]],
  ["best", ["0", "1", "2", "3"]],
  ["of roofline", ["1", "3", "0", "2"]],
  ["ceiling", ["0", "3", "1", "2"]],
  ["state", ["3", "0", "2", "1"]],
])("the column %s sorts", async (label, wanted) => {
  await show(example());
  await click(new RegExp(`^${label}`));
  expect(names()).toEqual(wanted);
});

test("what is faster than the roofline has no share of it", async () => {
  const document = example();
  const [first] = document.targets;
  if (first === undefined) throw new Error("the example has targets");
  first.roofline_us = 1e6;
  await show(document);
  const row = all(ROW).find((one) => one.dataset["target"] === String(first.index));
  expect(row?.children[7]?.textContent).toBe("–");
  for (const share of column(7)) expect(Number.parseFloat(share.replace("–", "0"))).toBeLessThanOrEqual(100);
});

test("words filter by name, shape and module at once, and nothing found is said", async () => {
  await show(example());
  await type("input[type=search]", "layer.3 OUTPUT");
  expect(names()).toEqual(["1"]);
  expect(text(".kforge-targets [role=status]")).toBe("1 of 4 targets match");
  await type("input[type=search]", "<script>");
  expect(names()).toEqual([]);
  expect(text(".kforge-targets")).toContain("No target matches the filter.");
});

test("a kind shows only its targets, and pressed again all of them", async () => {
  await show(example());
  await click("Vendor 1");
  expect(names()).toEqual(["3"]);
  await click("With kernels 3");
  expect(names()).toEqual(["0", "1", "2"]);
  await click("With kernels 3");
  expect(names()).toHaveLength(4);
});

test("one row is reached by Tab; arrows, Home and End move; Enter selects it", async () => {
  await show(example());
  const stops = (): (string | undefined)[] =>
    all(ROW).filter((row) => row.tabIndex === 0).map((row) => row.dataset["target"]);
  expect(stops()).toEqual(["0"]);
  all(`${ROW}[tabindex="0"]`)[0]?.focus();
  await press("ArrowDown");
  expect((document.activeElement as HTMLElement).dataset["target"]).toBe("1");
  await press("End");
  await press("ArrowDown");
  expect(stops()).toEqual(["2"]);
  await press("Enter");
  expect(all(`${ROW}[aria-selected="true"]`).map((row) => row.dataset["target"])).toEqual(["2"]);
  await press("Home");
  expect((document.activeElement as HTMLElement).dataset["target"]).toBe("3");
});

test("by module the same place in every layer is one group, with the sum of its shares", async () => {
  await show(example());
  await click("By module");
  const groups = all(".kforge-group").map((row) => row.textContent);
  expect(groups).toEqual([
    "encoder.layer.*.intermediate 76.5% of the time · 2 targets, 1 with kernels",
    "encoder.layer.*.output 5.0% of the time · 1 target, 1 with kernels",
    "pool 0.2% of the time · 1 target, 1 with kernels",
  ]);
  expect(names()).toEqual(["3", "0", "1", "2"]);
});

test("of 300 targets the tail waits behind a button that says what it weighs", async () => {
  await show(invented(300));
  expect(all(ROW).length).toBeLessThan(41);
  const more = all(".kforge-below button")[0]?.textContent ?? "";
  expect(more).toMatch(/^Show \d+ more, \d\.\d% of the time$/);
  await click(/^Show \d+ more, \d/);
  expect(names()).toHaveLength(300);
  await click("Show fewer");
  expect(all(ROW).length).toBeLessThan(41);
});

test("a row in which nothing changed is not drawn again when others sort around it", async () => {
  const run = invented(300);
  let reads = 0;
  Object.defineProperty(run.targets[200], "variant", { get: () => `read ${(reads += 1)} times` });
  await show(run);
  await click(/^Show \d+ more, \d/);
  const before = [reads, names().indexOf("200")];
  expect(before[0]).toBeGreaterThan(1);
  await click(/^calls/);
  expect(names().indexOf("200")).not.toBe(before[1]);
  expect(reads).toBe(before[0]);
});

test("words filter 300 targets at once", async () => {
  await show(invented(300));
  await type("input[type=search]", "silu");
  expect(names().length).toBeGreaterThan(30);
  expect(column(0).every((cell) => cell.includes("silu"))).toBe(true);
});

test("what a filter finds is shown however small, and a target selected in it stays", async () => {
  await show(invented(300));
  await type("input[type=search]", "1×64×32×32");
  const found = names();
  expect(found.length).toBeGreaterThan(10);
  all(`${ROW}[tabindex="0"]`)[0]?.focus();
  await press("End");
  await press("Enter");
  await type("input[type=search]", "");
  expect(names()).toContain(found.at(-1));
  expect(names()).not.toContain(found.at(-2));
});

test("a target whose interval holds 1 is not painted as a gain", async () => {
  const run = invented(20);
  await show(run);
  const cells = new Map(all(ROW).map((row) => [row.dataset["target"], row.querySelector(".kforge-speed")]));
  expect(cells.get("2")?.textContent).toBe("1.014× 0.998 to 1.029");
  expect(cells.get("2")?.querySelector(".kforge-good")).toBeNull();
  expect(cells.get("0")?.querySelector(".kforge-good")).not.toBeNull();
});

test("shares that sum to more than the whole are explained", async () => {
  const run = example();
  await show(run);
  expect(text(".kforge-tools")).not.toContain("more than the whole");
  for (const target of run.targets) target.share = 0.6;
  await show(run);
  expect(all(".kforge-tools").at(-1)?.textContent).toContain("timed alone, so together more than the whole");
});

test("what only the search accepted is marked, and not coloured as a gain", async () => {
  const run = example();
  const speed = (): Element | null | undefined =>
    all(ROW).filter((row) => row.dataset["target"] === "0").at(-1)?.querySelector(".kforge-speed");
  await show(run);
  expect(speed()?.textContent).not.toContain("not confirmed");
  for (const d of run.decisions) if (d.target === 0) Object.assign(d, { node: null, installed: false });
  await show(run);
  expect(speed()?.textContent).toContain(", not confirmed");
  expect(speed()?.querySelector(".kforge-good")).toBeNull();
});
