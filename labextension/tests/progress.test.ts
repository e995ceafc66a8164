import { act } from "preact/test-utils";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { fixedSource, type RunSource } from "../src/source";
import type { RunDocument } from "../src/view/document";
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
  vi.useRealTimers();
});

/** A run at work whose source writes down what it is asked; `show` brings a newer snapshot. */
async function working(change: (run: RunDocument) => void = () => undefined) {
  let run = atWork(change);
  const asked: string[] = [];
  const listeners = new Set<() => void>();
  const write = (name: string) => (target?: number) => {
    asked.push(target === undefined ? name : `${name} ${target}`);
  };
  const source: RunSource = {
    ...fixedSource(run),
    snapshot: () => run,
    subscribe: (changed) => {
      listeners.add(changed);
      return () => listeners.delete(changed);
    },
    stop: write("stop"),
    pause: write("pause"),
    resume: write("resume"),
  };
  await act(() => {
    dispose = mountRun(host, source);
  });
  const show = (newer: (run: RunDocument) => void) =>
    act(() => {
      run = atWork(newer);
      listeners.forEach((changed) => changed());
    });
  return { asked, show };
}

function atWork(change: (run: RunDocument) => void): RunDocument {
  const run = example({ state: "searching" });
  Object.assign(run.progress, { phase: "searching", judged: 24, budget: 60, eta_s: 190 });
  for (const target of run.targets.slice(0, 2)) target.state = "searching";
  change(run);
  return run;
}

function named(label: string): HTMLButtonElement {
  const found = host.querySelector<HTMLButtonElement>(`button[aria-label="${label}"]`);
  if (found === null) throw new Error(`no button ${label} in ${host.innerHTML}`);
  return found;
}

/** Off, and still reached: browsers take the focus from what is `disabled`. */
const isOff = (label: string): boolean => named(label).ariaDisabled === "true" && !named(label).disabled;
const state = (): string => host.querySelector(".kforge-state")?.textContent ?? "";
const click = (label: string) => act(() => named(label).click());

test("phase, judged of budget, time left, speed and what is judged stand in one place", async () => {
  await working((run) => {
    const call = { target: 0, node: "0.27", model: "m1", seconds: 6, tokens: 120 };
    run.progress.calls = [
      { ...call, tokens_per_s: 41.6 },
      { ...call, node: "0.28", tokens_per_s: 40 },
    ];
    run.progress.judging = [{ target: 1, node: "1.4", title: "wide <b>rows</b>", seconds: 4 }];
  });
  expect(state()).toContain("searching · 24 of 60 judged · 3:10 left · 82 tokens a second");
  expect(state()).toContain("judging 1.4 wide <b>rows</b> (0:04)");
  const bar = host.querySelector('[role="progressbar"]');
  expect(bar?.getAttribute("aria-valuenow")).toBe("24");
  expect(bar?.getAttribute("aria-valuemax")).toBe("60");
});

test("the time left runs down between snapshots, and stands still while the run is paused", async () => {
  vi.useFakeTimers();
  const { show } = await working();
  await act(() => void vi.advanceTimersByTime(10_000));
  expect(state()).toContain("3:00 left");
  await show((run) => (run.progress.paused = true));
  await act(() => void vi.advanceTimersByTime(10_000));
  expect(state()).toContain("paused · 24 of 60 judged · 3:10 left");
});

test("Pause becomes Resume when the kernel says so, not when it is pressed", async () => {
  const { asked, show } = await working();
  await click("Pause the run");
  expect(isOff("Pause the run")).toBe(true);
  await show((run) => (run.progress.paused = true));
  await click("Resume the run");
  await show(() => undefined);
  await click("Pause the run");
  expect(asked).toEqual(["pause", "resume", "pause"]);
});

test("Stop says stopping at once, is pressed once, and every view says so when the kernel does", async () => {
  const { asked, show } = await working();
  await click("Stop the run");
  expect(named("Stopping the run").textContent).toBe("Stopping…");
  expect(isOff("Stopping the run")).toBe(true);
  await show((run) => (run.progress.stopping = true));
  expect(state()).toContain("stopping…");
  expect(host.querySelector('[aria-live="polite"]')?.textContent).toContain("stopping");
  expect(isOff("Stopping the run")).toBe(true);
  expect(asked).toEqual(["stop"]);
});

test("a kernel that does not answer is told, and Stop may be pressed again", async () => {
  vi.useFakeTimers();
  const { asked } = await working();
  await click("Stop the run");
  await act(() => void vi.advanceTimersByTime(9_000));
  expect(host.textContent).toContain("No answer from the kernel");
  await click("Stopping the run");
  expect(asked).toEqual(["stop", "stop"]);
});

/** Presses the button that has the focus, as Enter does, and says what has the focus then. */
async function press(): Promise<string | null | undefined> {
  await act(() => (document.activeElement as HTMLElement).click());
  return focused();
}
const focused = (): string | null | undefined => document.activeElement?.getAttribute("aria-label");

test("a button that was pressed keeps the focus while it is off, and does nothing more", async () => {
  const { asked, show } = await working();
  named("Pause the run").focus();
  expect(await press()).toBe("Pause the run");
  expect(isOff("Pause the run")).toBe(true);
  await press();
  await show((run) => (run.progress.paused = true));
  expect(focused()).toBe("Resume the run");
  named("Stop the run").focus();
  expect(await press()).toBe("Stopping the run");
  await press();
  expect(asked).toEqual(["pause", "stop"]);
});

test("when a button goes away its neighbour has the focus, and in the end the cell", async () => {
  host.tabIndex = -1;
  const { show } = await working();
  named("Stop target 0").focus();
  const done = (targets: RunDocument["targets"]): void => targets.forEach((target) => (target.state = "done"));
  await show(({ targets }) => done(targets.slice(0, 1)));
  expect(focused()).toBe("Pause target 1");
  await show(({ targets }) => done(targets));
  expect(focused()).toBe("Stop the run");
  await show((run) => (run.state = "stopped"));
  expect(document.activeElement).toBe(host);
});

test("what has no focus takes none when it goes away", async () => {
  host.tabIndex = -1;
  const { show } = await working();
  await show((run) => (run.state = "stopped"));
  expect(document.activeElement).toBe(document.body);
});

test("each target at work is held and ended on its own, and the others are not listed", async () => {
  const { asked, show } = await working();
  const rows = host.querySelectorAll(".kforge-atwork tbody tr");
  expect(rows).toHaveLength(2);
  await click("Pause target 0");
  await click("Stop target 1");
  expect(asked).toEqual(["pause 0", "stop 1"]);
  await show((run) => {
    for (const target of run.targets) {
      if (target.index === 0) target.paused = true;
      if (target.index === 1) target.stopping = true;
    }
  });
  expect(host.querySelector(".kforge-atwork summary")?.textContent).toBe("2 targets at work, 1 paused");
  expect(named("Resume target 0").textContent).toBe("Resume");
  expect(isOff("Stopping target 1")).toBe(true);
  await click("Resume target 0");
  expect(asked.at(-1)).toBe("resume 0");
});

test("a run that has ended has no buttons and says how it ended", async () => {
  await working((run) => {
    Object.assign(run, { state: "stopped", state_reason: "stopped by you" });
  });
  expect(state()).toBe("stopped · stopped by you");
  expect(host.querySelector(".kforge-buttons")).toBeNull();
});

test("a run that was saved midway stands still, and says when it was so", async () => {
  vi.useFakeTimers();
  const run = atWork(({ progress }) => {
    progress.calls = [{ target: 0, node: "0.27", model: "m1", seconds: 6, tokens: 120, tokens_per_s: 41.6 }];
    progress.judging = [{ target: 1, node: "1.4", title: "wide", seconds: 4 }];
    progress.message = "asking for 0.27";
  });
  await act(() => {
    dispose = mountRun(host, fixedSource(run));
  });
  await act(() => void vi.advanceTimersByTime(10_000));
  expect(state()).toBe("when this was saved: searching · 24 of 60 judged");
  expect(host.textContent).not.toContain("Answers under way");
  expect(host.querySelector('[aria-live="polite"]')?.textContent).toContain("when this was saved, searching");
  expect(vi.getTimerCount()).toBe(0);
});

test("a run that ended early says how to go on, once, and one that is done says nothing of it", async () => {
  const { show } = await working((run) => Object.assign(run, { state: "stopped", state_reason: "stopped by the button" }));
  const said = (): string => host.querySelector(".kforge-progress")?.textContent ?? "";
  expect(said()).toContain("%kforge resume minilm goes on from here");
  await show((run) => Object.assign(run, { state: "interrupted", state_reason: "%kforge resume minilm goes on" }));
  expect(said().split("resume").length).toBe(2);
  await show((run) => Object.assign(run, { state: "done", state_reason: "" }));
  expect(said()).not.toContain("resume");
});
