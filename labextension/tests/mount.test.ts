import { act } from "preact/test-utils";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { fixedSource, type RunSource } from "../src/source";
import type { RunDocument } from "../src/view/document";
import { mountRun } from "../src/view/mount";
import { example } from "./example";

let host: HTMLElement;
beforeEach(() => {
  host = document.createElement("div");
  document.body.append(host);
});
afterEach(() => host.remove());

async function show(source: RunSource): Promise<() => void> {
  let dispose = (): void => undefined;
  await act(() => {
    dispose = mountRun(host, source);
  });
  return dispose;
}

function button(name: string): HTMLButtonElement | undefined {
  return [...host.querySelectorAll("button")].find((b) => b.textContent.trim() === name);
}

test("a finished run shows both whole-model figures, every target and every decision", async () => {
  const run = example();
  await show(fixedSource(run));
  const text = host.textContent;
  expect(text).toContain("1.06× (1.05 to 1.07)over the same rest (inductor) without kernels");
  expect(text).toContain("1.30× (1.29 to 1.31)over the untouched eager model");
  for (const target of run.targets) expect(text).toContain(target.name);
  const decided = host.querySelector(".kforge-guard")?.textContent ?? "";
  expect(decided.match(/● replaced|○ kept original/g)).toHaveLength(run.decisions.length);
});

test("where nothing won the headline is no gain", async () => {
  const run = example();
  for (const decision of run.decisions) decision.installed = false;
  await show(fixedSource(run));
  expect(host.querySelector(".kforge-big")?.textContent).toBe("0 replaced ");
  const header = host.querySelector("header")?.textContent;
  expect(header).toContain("nothing won inside the model");
  expect(header).not.toContain("same rest");
  expect(header).toContain("1.30× (1.29 to 1.31)rest inductor alone, over the untouched eager model");
});

test("notes of the workload are shown, and launch-bound is told with its figures and a cure", async () => {
  const run = example();
  run.workload.notes = ["the model is half on the CPU"];
  run.workload.launch_bound = true;
  await show(fixedSource(run));
  const items = [...host.querySelectorAll("li")].map((item) => item.textContent);
  expect(items).toContain("the model is half on the CPU");
  expect(host.querySelector(".kforge-banner")?.textContent).toMatch(
    /^Launch-bound: .*One run takes 41\.0 ms, .* 38\.4 ms of it\. .*--rest inductor/,
  );
});

test("names that look like markup stay text", async () => {
  const run = example({ name: "<img src=x onerror=alert(1)>" });
  const evil = "<script>alert(1)</script>";
  for (const target of run.targets) target.name = evil;
  for (const node of run.nodes) node.title = evil;
  for (const decision of run.decisions) decision.reason = evil;
  await show(fixedSource(run));
  expect(host.querySelectorAll("img, script")).toHaveLength(0);
  expect(host.textContent).toContain(evil);
});

test("Stop is offered while the run works and calls the source once", async () => {
  let stops = 0;
  const source = { ...fixedSource(example({ state: "searching" })), stop: () => (stops += 1) };
  await show(source);
  await act(() => button("Stop")?.click());
  expect(stops).toBe(1);
});

test("answers under way show their tokens and how fast they come", async () => {
  const run = example({ state: "searching" });
  const call = { target: 0, node: "0.27", model: "m1", seconds: 61 };
  run.progress.calls = [
    { ...call, tokens: 120, tokens_per_s: 41.6 },
    { ...call, node: "0.28", tokens: 0, tokens_per_s: null },
  ];
  await show({ ...fixedSource(run), stop: () => undefined });
  const items = [...host.querySelectorAll(".kforge-calls li")].map((item) => item.textContent);
  expect(items).toEqual([
    "0.27 m1 for 0 gelu: 120 tokens, 42 a second · 1:01",
    "0.28 m1 for 0 gelu: no token yet · 1:01",
  ]);
});

test("several prompts wait, each is copied and answered on its own", async () => {
  const written: string[] = [];
  Object.defineProperty(navigator, "clipboard", {
    configurable: true,
    value: { writeText: (text: string) => Promise.resolve(written.push(text)) },
  });
  const answers: [string, string][] = [];
  const prompt = { target: 0, name: "<b>gelu</b>", action: "draft", text: "write", note: "" };
  const prompts = [
    { ...prompt, id: "0.1" },
    { ...prompt, id: "0.2", text: "again", note: "no block" },
  ];
  await show({
    ...fixedSource(example({ state: "searching" })),
    prompts: () => prompts,
    answer: (id, text) => answers.push([id, text]),
  });
  expect(host.textContent).toContain("2 prompts to paste into a chat window");
  expect(host.textContent).toContain("cannot be read: no block");
  expect(host.textContent).toContain("<b>gelu</b>");
  await act(() => button("Copy prompt 0.2")?.click());
  expect(written).toEqual(["again"]);
  expect(button("Send answer 0.1")?.getAttribute("aria-disabled")).toBe("true");
  const box = host.querySelector<HTMLTextAreaElement>('[aria-label="Answer to prompt 0.1"]');
  await act(() => {
    if (box === null) return;
    box.value = "a kernel";
    box.dispatchEvent(new Event("input", { bubbles: true }));
  });
  button("Send answer 0.1")?.focus();
  await act(() => button("Send answer 0.1")?.click());
  expect(document.activeElement).toBe(button("Send answer 0.1"));
  expect(answers).toEqual([["0.1", "a kernel"]]);
  expect(box?.value).toBe("");
});

test("what was paid is told with the price of a saved millisecond", async () => {
  const run = example();
  for (const cost of run.costs) Object.assign(cost, { usd: 0.01, calls: 1 });
  await show(fixedSource(run));
  expect(host.textContent).toMatch(/\$0\.26 for 26 calls · \d+\.\d\d ms saved a run · \$0\.\d+ a millisecond/);
});

test("a finished run offers no Stop, nor does a source that cannot stop", async () => {
  await show({ ...fixedSource(example()), stop: () => undefined });
  expect(button("Stop")).toBeUndefined();
});

test("each new snapshot is shown, and after dispose nothing listens and nothing is left", async () => {
  const listeners = new Set<() => void>();
  let run: RunDocument = example({ state: "searching" });
  const source: RunSource = {
    snapshot: () => run,
    subscribe: (changed) => {
      listeners.add(changed);
      return () => listeners.delete(changed);
    },
    detail: () => Promise.resolve(null),
  };
  const dispose = await show(source);
  run = example({ state: "done", state_reason: "all targets are at their roofline" });
  await act(() => listeners.forEach((changed) => changed()));
  expect(host.textContent).toContain("all targets are at their roofline");
  dispose();
  expect(listeners.size).toBe(0);
  expect(host.childElementCount).toBe(0);
});

test("choosing a target shows its tree, and a node its source", async () => {
  const run = example();
  await show(fixedSource(run));
  const other = run.targets.find((t) => t.index === 1);
  await act(() => button(`1 ${other?.name ?? ""}`)?.click());
  expect(host.querySelector('[role="tree"]')?.getAttribute("aria-label")).toContain(other?.name);
  const best = other?.best ?? "";
  await vi.waitFor(() => {
    expect(host.querySelector("pre")?.textContent).toBe(run.details[best]?.source);
  });
});

test("arrow keys walk the tree from the selected node to its parent", async () => {
  const run = example();
  await show(fixedSource(run));
  const best = run.nodes.find((n) => n.id === run.targets[0]?.best);
  const tree = host.querySelector('[role="tree"]');
  await act(() => {
    tree?.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft", bubbles: true }));
  });
  const selected = host.querySelector('[role="tree"] [aria-selected="true"]');
  expect(selected?.getAttribute("data-id")).toBe(best?.parent);
});
