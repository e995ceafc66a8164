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
  expect(text).toContain("over the same rest (inductor) without kernels");
  expect(text).toContain("over the untouched eager model");
  for (const target of run.targets) expect(text).toContain(target.name);
  expect(text.match(/● replaced|○ kept original/g)).toHaveLength(run.decisions.length);
});

test("where nothing won the headline is no gain", async () => {
  const run = example();
  for (const decision of run.decisions) decision.installed = false;
  await show(fixedSource(run));
  expect(host.querySelector(".kforge-big")?.textContent).toBe("0 replaced nothing won inside the model");
  expect(host.textContent).not.toContain("over the same rest");
  expect(host.textContent).toContain("rest inductor alone gives 1.30×");
});

test("notes of the workload are shown, and launch-bound is one of them", async () => {
  const run = example();
  run.workload.notes = ["the model is half on the CPU"];
  run.workload.launch_bound = true;
  await show(fixedSource(run));
  const items = [...host.querySelectorAll("li")].map((item) => item.textContent);
  expect(items).toContain("the model is half on the CPU");
  expect(items.some((text) => text.startsWith("Launch-bound"))).toBe(true);
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
    tree?.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowUp", bubbles: true }));
  });
  const selected = host.querySelector('[aria-selected="true"]');
  expect(selected?.getAttribute("data-id")).toBe(best?.parent);
});
