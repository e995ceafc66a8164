/** What a run does after its search, what is said where a figure is missing, and where the focus goes in the end. */
import { act } from "preact/test-utils";
import { afterEach, beforeEach, expect, test } from "vitest";
import { fixedSource } from "../src/source";
import type { RunDocument } from "../src/view/document";
import { mountRun } from "../src/view/mount";
import { example } from "./example";

let cell: HTMLElement;
let output: HTMLElement;
let dispose = (): void => undefined;
beforeEach(() => {
  cell = document.createElement("div");
  cell.tabIndex = -1;
  output = document.createElement("div");
  cell.append(output);
  document.body.append(cell);
});
afterEach(() => {
  dispose();
  cell.remove();
});

const text = (selector: string): string => output.querySelector(selector)?.textContent ?? "";

/** A run that can be stopped. */
async function live(change: (run: RunDocument) => void): Promise<void> {
  const run = example({ state: "searching" });
  Object.assign(run.progress, { phase: "searching", message: "" });
  change(run);
  const none = (): void => undefined;
  await act(() => {
    dispose = mountRun(output, { ...fixedSource(run), stop: none, pause: none, resume: none });
  });
}

test.each([
  ["searching", "confirming", "confirming its winners"],
  ["guarding", "guarding", "measuring in the model"],
] as const)("after the search a run is not searching any more, and Stop means another thing: %s, %s", async (state, phase, words) => {
  await live((run) => {
    run.state = state;
    run.progress.phase = phase;
  });
  expect(text(".kforge-state")).toMatch(new RegExp(`^${words} · `));
  expect(text('[aria-live="polite"]')).toContain(words);
  expect(text(".kforge-progress")).toContain("Stop ends the run before anything is decided; what was found is kept");
});

test("while it searches, Stop is not explained", async () => {
  await live(() => undefined);
  expect(text(".kforge-state")).toMatch(/^searching · /);
  expect(text(".kforge-progress")).not.toContain("before anything is decided");
});

test("a target that is ended while the run is paused ends when the run goes on, not now", async () => {
  const held = (run: RunDocument): void => {
    run.progress.paused = true;
    for (const target of run.targets) Object.assign(target, { state: "searching", stopping: target.index < 2 });
    run.progress.judging = [{ target: 1, node: "1.4", title: "wide", seconds: 4 }];
  };
  await live(held);
  const rows = [...output.querySelectorAll(".kforge-atwork tbody tr")].map((row) => row.querySelector("td")?.textContent);
  expect(rows.slice(0, 3)).toEqual(["ends when the run goes on", "stopping…, judging 1.4", "searching"]);
});

const without = (notes: string[], options: object = {}): RunDocument => {
  const run = example();
  run.whole = run.whole.filter((row) => row.against !== "compile");
  run.workload.notes = notes;
  Object.assign(run.options, options);
  return run;
};

test.each([
  ["there is no comparison with torch.compile: compiling it did not finish in 26 s", {}, "compiling it did not finish in 26 s"],
  ["rest=inductor was not used: out of memory", {}, "out of memory"],
  ["", { baseline: "eager" }, "not asked for (--baseline eager)"],
])("where the figure over torch.compile is missing, its reason stands in its place: %s", async (note, options, why) => {
  await act(() => {
    dispose = mountRun(output, fixedSource(without([note], options)));
  });
  expect(text("header")).toContain(`not measured over torch.compile: ${why}`);
  expect(text(".kforge-whole")).toContain(`Over torch.compile: not measured: ${why}.`);
});

test("where the figure over torch.compile was measured it stands in the headline", async () => {
  await act(() => {
    dispose = mountRun(output, fixedSource(example()));
  });
  expect(text("header")).toMatch(/1\.06× \(1\.05 to 1\.07\)over torch\.compile/);
  expect(output.textContent).not.toContain("not measured");
});

/** The button has the focus, and the view goes: from its place first, or not. */
async function gone(detached: boolean): Promise<void> {
  await live(() => undefined);
  const button = [...output.querySelectorAll("button")].find((b) => b.textContent.trim() === "By module");
  button?.focus();
  expect(document.activeElement).toBe(button);
  if (detached) output.replaceChildren();
  await act(() => dispose());
  dispose = () => undefined;
}

test.each([true, false])("when the view goes, the cell has the focus that was in it (taken out before: %s)", async (detached) => {
  await gone(detached);
  expect(document.activeElement).toBe(cell);
});

test("a view that goes takes no focus that was elsewhere", async () => {
  await live(() => undefined);
  output.querySelector<HTMLElement>("button")?.focus();
  const other = document.body.appendChild(document.createElement("button"));
  other.focus();
  await act(() => dispose());
  dispose = () => undefined;
  expect(document.activeElement).toBe(other);
  other.blur();
  await live(() => undefined);
  await act(() => dispose());
  expect(document.activeElement).toBe(document.body);
  other.remove();
});
