/** The panel of a candidate: what each tab says, and what it says where nothing is known. */
import hljs from "highlight.js/lib/core";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { fixedSource, type RunSource } from "../src/source";
import type { Details, RunDocument } from "../src/view/document";
import { mountRun } from "../src/view/mount";
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

async function show(run: RunDocument, more: Partial<RunSource> = {}): Promise<void> {
  await act(async () => {
    dispose = mountRun(host, { ...fixedSource(run), ...more });
    await Promise.resolve();
  });
}

const panel = (): Element => {
  const found = host.querySelector(".kforge-panel");
  if (found === null) throw new Error("no panel is shown");
  return found;
};

async function click(what: Element | null | undefined): Promise<void> {
  await act(async () => {
    what?.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    await Promise.resolve();
  });
}

const button = (name: string): Element | undefined =>
  [...panel().querySelectorAll("button")].find((b) => b.textContent.trim() === name);
const tab = (name: string): Promise<void> =>
  click([...panel().querySelectorAll('[role="tab"]')].find((t) => t.textContent === name));
const choose = (id: string): Promise<void> => click(host.querySelector(`[data-id="${id}"]`));

/** The example with other details of the node that is shown first. */
function changed(details: Partial<Details>): RunDocument {
  const run = example();
  run.details["0.5"] = { ...(run.details["0.5"] as Details), ...details };
  return run;
}

test("the source is coloured and stays text, whatever it holds", async () => {
  const evil = '// </code><img src=x onerror="alert(1)">\nint a = 1; /* two\nlines */ float b;\n<script>x</script>';
  await show(changed({ source: evil }));
  const code = panel().querySelector('[aria-label="source"]');
  expect(code?.textContent).toBe(evil);
  expect(panel().querySelectorAll("img, script")).toHaveLength(0);
  expect(code?.querySelector(".hljs-comment")).not.toBeNull();
});

test("a very long source is shown plain rather than late", async () => {
  const long = "int a = 1;\n".repeat(30_000);
  await show(changed({ source: long }));
  expect(panel().querySelector('[aria-label="source"]')?.textContent).toBe(long);
  expect(panel().querySelector(".hljs-type")).toBeNull();
});

test("what changed of the parent's source is shown on demand, and its details are fetched then", async () => {
  const asked: string[] = [];
  const run = changed({ source: "int a;\nint b2;\nint c;\n" });
  run.details["0.3"] = { ...(run.details["0.3"] as Details), source: "int a;\nint b;\nint c;\n" };
  const detail = (id: string): Promise<Details | null> => {
    asked.push(id);
    return Promise.resolve(run.details[id] ?? null);
  };
  await show(run, { detail });
  expect(asked).toEqual(["0.5"]);
  await click(button("Changes from 0.3"));
  await vi.waitFor(() => expect(panel().querySelector(".kforge-diff")).not.toBeNull());
  expect(asked).toEqual(["0.5", "0.3"]);
  const rows = [...panel().querySelectorAll(".kforge-diff > span")].map((row) => [row.className, row.textContent.trim()]);
  expect(rows).toContainEqual(["gone", "2−int b;"]);
  expect(rows).toContainEqual(["new", "2+int b2;"]);
  expect(panel().textContent).toContain("+1 −1 lines");
  await click(button("Changes from 0.3"));
  expect(panel().querySelector('[aria-label="source"]')).not.toBeNull();
});

/** A run of which newer snapshots can be shown, with the changes of 0.3's source to 0.5's open. */
async function changes(run: RunDocument, detail: RunSource["detail"]): Promise<(newer: RunDocument) => Promise<void>> {
  let shown = run;
  const listeners = new Set<() => void>();
  const subscribe = (changed: () => void): (() => void) => {
    listeners.add(changed);
    return () => listeners.delete(changed);
  };
  await show(run, { snapshot: () => shown, subscribe, detail });
  await click(button("Changes from 0.3"));
  await vi.waitFor(() => expect(panel().querySelector(".kforge-diff")).not.toBeNull());
  return (newer) =>
    act(async () => {
      shown = newer;
      listeners.forEach((changed) => changed());
      await Promise.resolve();
    });
}

test("changes are coloured once, not again at every snapshot", async () => {
  const run = changed({ source: "int a;\nint b2;\n" });
  run.details["0.3"] = { ...(run.details["0.3"] as Details), source: "int a;\nint b;\n" };
  const next = await changes(run, (id) => Promise.resolve(run.details[id] ?? null));
  expect(panel().querySelector(".kforge-diff .hljs-type")).not.toBeNull();
  const spy = vi.spyOn(hljs, "highlight");
  await next(structuredClone({ ...run, state: "guarding" }));
  expect(host.textContent).toContain("measuring in the model");
  expect(spy).not.toHaveBeenCalled();
  spy.mockRestore();
});

test("very long changes are shown plain rather than late", async () => {
  const run = changed({ source: `// ${"x".repeat(6000)}\n`.repeat(20) });
  run.details["0.3"] = { ...(run.details["0.3"] as Details), source: "float z;\n" };
  await changes(run, (id) => Promise.resolve(run.details[id] ?? null));
  expect(panel().querySelector(".kforge-diff")?.textContent).toContain("// xxx");
  expect(panel().querySelector(".kforge-diff .hljs-comment")).toBeNull();
});

test("a parent that was judged again is asked for again", async () => {
  const run = example();
  const asked: string[] = [];
  const next = await changes(run, (id) => {
    asked.push(id);
    return Promise.resolve(run.details[id] ?? null);
  });
  expect(asked).toEqual(["0.5", "0.3"]);
  await next({ ...run, nodes: run.nodes.map((node) => (node.id === "0.3" ? { ...node, reason: "timed again" } : node)) });
  expect(asked).toEqual(["0.5", "0.3", "0.3"]);
});

test("a parent without a source is named, not waited for", async () => {
  const run = example();
  Reflect.deleteProperty(run.details, "0.3");
  await show(run);
  await click(button("Changes from 0.3"));
  await vi.waitFor(() => expect(panel().textContent).toContain("source of 0.3 is not to be had"));
});

test("copying says whether it worked", async () => {
  const written: string[] = [];
  const clipboard = { writeText: (text: string) => Promise.resolve(written.push(text)) };
  Object.defineProperty(navigator, "clipboard", { configurable: true, value: clipboard });
  const run = example();
  await show(run);
  await click(button("Copy source"));
  expect(written).toEqual([run.details["0.5"]?.source]);
  await vi.waitFor(() => expect(panel().querySelector('[role="status"]')?.textContent).toBe("copied"));
  Object.defineProperty(navigator, "clipboard", { configurable: true, value: undefined });
  await click(button("Copy source"));
  await vi.waitFor(() => expect(panel().querySelector('[role="status"]')?.textContent).toContain("not copied"));
});

test("tabs are walked by arrow keys, and stay where they are when another node is chosen", async () => {
  await show(example());
  const tabs = panel().querySelector('[role="tablist"]');
  const press = (key: string): Promise<void> =>
    act(() => void tabs?.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true })));
  const now = (): string | undefined => panel().querySelector('[role="tab"][aria-selected="true"]')?.textContent;
  await press("ArrowRight");
  await press("ArrowRight");
  expect(now()).toBe("Timing");
  await press("End");
  expect(now()).toBe("Judge");
  await choose("0.0");
  expect([now(), panel().querySelector("h3")?.textContent]).toEqual(["Judge", "Node 0.0: gelu: vector width 16, one row a thread"]);
  await press("ArrowRight");
  expect(now()).toBe("Code");
});

/** A CUDA candidate of two launches on a device of 132 multiprocessors. */
function onGpu(): RunDocument {
  const calls = [
    { name: "stats", grid: [32, 33, 1], block: [250, 1, 1], shared: 4096 },
    { name: "apply", grid: [512, 128, 2], block: [256, 1, 1], shared: 0 },
  ];
  const run = changed({
    plan: { kernels: [{ name: "stats", args: ["in0", "i64:L"] }, { name: "apply", args: ["out0"] }], symbols: { L: "numel(in0)" }, scratch: {} },
    launch: { calls, symbols: { L: 1_572_864 }, scratch_bytes: 0 },
    resources: {
      kernels: { stats: { registers: 40, spill_stores: 0, spill_loads: 0 }, apply: { registers: 64, spill_stores: 8, spill_loads: 12 } },
      blocks_a_multiprocessor: [4, 3],
    },
  });
  run.device = { kind: "cuda", multiprocessors: 132, bandwidth_gbs: 4000, flops_gflops: { float32: 50_000 } };
  for (const node of run.nodes) node.language = "cuda";
  return run;
}

test("a CUDA launch is drawn and told: blocks, threads, warps, idle lanes, waves, registers", async () => {
  await show(onGpu());
  await tab("Launch");
  const text = panel().textContent;
  expect(text).toContain("grid 32 × 33 = 1,056 blocks");
  expect(text).toContain("250 threads, 8 warps (6 lanes of the last one idle)");
  expect(text).toContain("528 blocks at once: 2.0 waves"); // 132 multiprocessors with 4 each
  expect(text).toContain("40 registers a thread, no spills");
  expect(text).toContain("grid 512 × 128 × 2 = 131,072 blocks");
  expect(text).toContain("64 registers a thread, 20 bytes spilled");
  expect(text).toContain("L = numel(in0) = 1,572,864");
  const names = [...panel().querySelectorAll('[role="img"]')].map((img) => img.getAttribute("aria-label"));
  expect(names).toContain("Grid of 32 by 33 by 1, 1,056 blocks, drawn as 32 by 32");
  expect(names).toContain("Block of 250 threads, 8 warps");
});

test("a C++ plan tells its threads and what they share", async () => {
  await show(example());
  await tab("Launch");
  expect(panel().textContent).toContain("2 threads share 1,572,864 output elements: about 786,432 each");
  expect(panel().textContent).toContain("ROWS = 1,024");
});

test("a plan of an older document has no sizes, and says so", async () => {
  const run = onGpu();
  Reflect.deleteProperty(run.details["0.5"] as object, "launch");
  await show(run);
  await tab("Launch");
  expect(panel().textContent).toContain("sizes are not worked out");
  expect(panel().textContent).toContain("stats(in0, i64:L)");
});

test("each baseline has a strip of samples and a ratio with its interval", async () => {
  await show(example());
  await tab("Timing");
  const names = [...panel().querySelectorAll('[role="img"]')].map((img) => img.getAttribute("aria-label"));
  expect(names[0]).toBe("2.31× over eager, 1.96× over compile");
  expect(names).toContain("Times of a call: this 352 µs, eager 812 µs");
  expect(panel().querySelectorAll(".sample")).toHaveLength(4 * 15);
  expect(panel().textContent).toContain("2.31× (2.26 to 2.36)");
});

test("samples by the thousand are thinned out, figures that are no numbers are left out", async () => {
  const run = changed({});
  const [timing] = run.details["0.5"]?.timings ?? [];
  if (timing === undefined) throw new Error("the example was not timed");
  timing.ours_samples_us = Array.from({ length: 10_000 }, (_, i) => (i % 100 === 0 ? null : 300 + (i % 50)));
  Object.assign(timing, { low: null, high: null });
  await show(run);
  await tab("Timing");
  expect(panel().querySelectorAll(".sample").length).toBeLessThan(700);
  expect(panel().innerHTML).not.toContain("NaN");
});

test("the roofline shows this, the others and the machine's limits", async () => {
  await show(onGpu());
  await tab("Timing");
  const chart = [...panel().querySelectorAll('[role="img"]')].at(-1);
  expect(chart?.getAttribute("aria-label")).toMatch(/^this 53\.7 GFLOP\/s, compile 27\.4 GFLOP\/s, eager 23\.2/);
  expect(chart?.querySelector(".roof")).not.toBeNull();
  expect(panel().textContent).toContain("of 4000.0 GB/s");
});

test("times of other moments stand on the roofline by their paired ratios", async () => {
  const run = onGpu();
  const [best, other] = ["0.5", "0.3"].map((id) => run.nodes.find((node) => node.id === id));
  Object.assign(best ?? {}, { speedup: 4, ours_us: 2000, eager_us: 8000, compile_us: null }); // on a busy machine
  Object.assign(other ?? {}, { verdict: "accepted", speedup: 3, ours_us: 500, eager_us: 1800, compile_us: null });
  await show(run);
  await choose("0.3");
  await tab("Timing");
  const chart = [...panel().querySelectorAll('[role="img"]')].at(-1);
  const times = [...(chart?.querySelectorAll("g > text") ?? [])].map((text) => text.textContent);
  expect(times).toEqual(expect.arrayContaining(["this 500 µs", "best 375 µs", "eager 1.50 ms"]));
  expect(panel().textContent).toContain("by the paired ratios");
});

test("without the machine's limits the roofline is words", async () => {
  const run = example();
  run.device = {};
  await show(run);
  await tab("Timing");
  expect(panel().querySelector(".roof")).toBeNull();
  expect(panel().textContent).toContain("GB/s · 82.5% of the roofline");
});

test("errors are drawn nearest their budget first, and what is over it says so", async () => {
  await show(example());
  await choose("0.4");
  await tab("Errors");
  const bars = panel().querySelector('[role="img"]');
  expect(bars?.getAttribute("aria-label")).toBe("3 errors against their budgets, 3 above it");
  expect(bars?.textContent).toContain("3.1e-2 over");
  expect(panel().textContent).toContain("Where it differs");
  expect(panel().textContent).toContain("[0,3,17]");
});

test("errors of 0, not finite and without a budget are figures too", async () => {
  const error = { output: "out0", candidate: 0, eager: 0, budget: 0 };
  await show(
    changed({
      errors: [
        { ...error, input_set: "zeros" },
        { ...error, input_set: "huge", candidate: null },
        { ...error, input_set: "none", candidate: 1e-3, budget: null },
      ],
    }),
  );
  await tab("Errors");
  expect(panel().querySelector('[role="img"]')?.getAttribute("aria-label")).toBe("3 errors against their budgets, 2 above it");
  expect(panel().textContent).toContain("not finite over");
  expect(panel().innerHTML).not.toContain("NaN");
});

test("the judge's tab has seconds, registers and the compiler's log, open where it failed", async () => {
  const run = onGpu();
  await show(run);
  await tab("Judge");
  expect(panel().textContent).toContain("compile 0.71 s");
  expect(panel().querySelector("table")?.textContent).toContain("64");
  await choose("0.2");
  expect(panel().querySelector("details[open] pre")?.textContent).toContain("was not declared");
});

test("the judge's total is the sum of its stages, and no stage of its own", async () => {
  await show(changed({ seconds: { compile: 0.5, wait: 1.25, timing: 0.25, total: 3 } }));
  await tab("Judge");
  const marks = [...panel().querySelectorAll(".kforge-marks li")].map((li) => li.textContent);
  expect(marks).toEqual(["compile 0.50 s", "wait 1.25 s", "timing 0.25 s", "between stages 1.00 s"]);
  expect(panel().querySelectorAll("rect.stage")).toHaveLength(8);
  expect(panel().querySelector(".kforge-plot figcaption")?.textContent).toMatch(/^Judged in 3\.0 s/);
});

test("prompt and answer have a tab where a model was asked, and none else", async () => {
  await show(example());
  expect(panel().textContent).not.toContain("Prompt");
  dispose();
  await show(changed({ prompt: "<b>write</b> a kernel", answer: "here" }));
  await tab("Prompt");
  expect(panel().textContent).toContain("<b>write</b> a kernel");
});

test("what was left out of a saved document is told, in whole and in part", async () => {
  const run = changed({ prompt: "", answer: "a kernel", left_out: ["prompt"] });
  Reflect.deleteProperty(run.details, "0.3");
  await show(run);
  expect(panel().textContent).toContain("Left out to keep the saved document small: prompt.");
  await choose("0.3");
  expect(panel().textContent).toContain("were left out to keep the saved document small");
});

test("a kernel that does not answer is told as that", async () => {
  await show(example(), { stop: () => undefined, detail: () => Promise.resolve(null) });
  expect(panel().textContent).toContain("the kernel did not answer");
});

test("an answer that comes after another node was chosen is dropped", async () => {
  const run = example();
  const waiting = new Map<string, (details: Details | null) => void>();
  const detail = (id: string): Promise<Details | null> => new Promise((resolve) => waiting.set(id, resolve));
  await show(run, { detail });
  await choose("0.0");
  await act(async () => {
    waiting.get("0.0")?.(run.details["0.0"] ?? null);
    waiting.get("0.5")?.(run.details["0.5"] ?? null);
    await Promise.resolve();
  });
  expect(panel().querySelector('[aria-label="source"]')?.textContent).toBe(run.details["0.0"]?.source);
});

test("the parent's name leads to it", async () => {
  await show(example());
  await click(button("0.3"));
  expect(panel().querySelector("h3")?.textContent).toContain("Node 0.3");
});

test("hostile words of plan, resources and mismatches stay text", async () => {
  const evil = "<img src=x onerror=alert(1)>";
  const run = onGpu();
  run.details["0.5"] = {
    ...(run.details["0.5"] as Details),
    plan: { kernels: [{ name: evil, args: [evil, { a: evil }] }, null, 7], symbols: { [evil]: evil }, scratch: { [evil]: 5 } },
    resources: { [evil]: evil, kernels: { [evil]: { [evil]: evil } }, blocks_a_multiprocessor: evil },
    mismatches: [{ [evil]: evil }],
    seconds: { [evil]: 1 },
    log: evil,
  };
  await show(run);
  for (const name of ["Launch", "Timing", "Errors", "Judge"]) {
    await tab(name);
    expect(panel().querySelectorAll("img, script")).toHaveLength(0);
  }
  expect(panel().textContent).toContain(evil);
});
