/** The tree as a person uses it: keys, clicks, gestures, folds, the table, and runs that grow. */
import { act } from "preact/test-utils";
import { afterEach, beforeEach, expect, test } from "vitest";
import { fixedSource, type RunSource } from "../src/source";
import type { RunDocument } from "../src/view/document";
import { mountRun } from "../src/view/mount";
import { example } from "./example";
import { largeRun } from "./large";

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

async function show(source: RunSource): Promise<void> {
  await act(() => {
    dispose = mountRun(host, source);
  });
}

/** A source whose document can be replaced, as a live one's is. */
function growing(first: RunDocument): { source: RunSource; next: (run: RunDocument) => Promise<void> } {
  let run = first;
  const listeners = new Set<() => void>();
  const source = {
    ...fixedSource(run),
    snapshot: () => run,
    subscribe: (changed: () => void) => {
      listeners.add(changed);
      return () => listeners.delete(changed);
    },
  };
  const next = async (newer: RunDocument): Promise<void> => {
    run = newer;
    await act(() => listeners.forEach((changed) => changed()));
  };
  return { source, next };
}

const tree = (): Element => {
  const found = host.querySelector('[role="tree"]');
  if (found === null) throw new Error("no tree is shown");
  return found;
};
const leaf = (id: string): Element | null => host.querySelector(`[role="treeitem"][data-id="${id}"]`);
const selected = (): string | null => tree().querySelector('[aria-selected="true"]')?.getAttribute("data-id") ?? null;
const cursor = (): string | null => tree().querySelector('[tabindex="0"]')?.getAttribute("data-id") ?? null;
const camera = (): string => tree().querySelector("g")?.getAttribute("transform") ?? "";

async function press(key: string, more: KeyboardEventInit = {}): Promise<KeyboardEvent> {
  const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more });
  await act(() => void tree().dispatchEvent(event));
  return event;
}

async function click(what: Element | null | undefined): Promise<void> {
  await act(() => void what?.dispatchEvent(new MouseEvent("click", { bubbles: true })));
}

function button(name: string): HTMLButtonElement | undefined {
  return [...host.querySelectorAll("button")].find((b) => (b.ariaLabel ?? b.textContent).trim() === name);
}

test("arrow keys go to parent, child and siblings, Home and End to both ends", async () => {
  await show(fixedSource(example()));
  expect(selected()).toBe("0.5");
  const seen = [];
  for (const key of ["ArrowLeft", "ArrowDown", "ArrowUp", "ArrowRight", "ArrowRight", "ArrowDown"]) {
    await press(key);
    seen.push(selected());
  }
  expect(seen).toEqual(["0.3", "0.4", "0.3", "0.5", "0.7", "0.8"]);
  await press("Home");
  expect(cursor()).toBe("");
  expect(selected()).toBe("0.8"); // eager has no panel
  await press("ArrowRight");
  expect(selected()).toBe("0.0");
  await press("End");
  expect(selected()).toBe("0.9");
});

test("at the end of its siblings a key goes on down the column", async () => {
  await show(fixedSource(example()));
  await click(leaf("0.4"));
  await press("ArrowDown");
  expect(selected()).toBe("0.9");
});

test("keys that mean nothing here are left to the page", async () => {
  await show(fixedSource(example()));
  expect((await press("a")).defaultPrevented).toBe(false);
  expect((await press("ArrowLeft", { ctrlKey: true })).defaultPrevented).toBe(false);
  expect((await press("ArrowRight")).defaultPrevented).toBe(true);
});

test("items say their level, place, verdict and state to those who cannot see them", async () => {
  await show(fixedSource(example()));
  const best = leaf("0.5");
  expect(best?.getAttribute("aria-level")).toBe("4");
  expect(best?.getAttribute("aria-posinset")).toBe("1");
  expect(best?.getAttribute("aria-setsize")).toBe("2");
  expect(best?.getAttribute("aria-expanded")).toBe("true");
  expect(best?.getAttribute("aria-label")).toContain("best: 0.5 gelu");
  expect(leaf("0.1")?.hasAttribute("aria-expanded")).toBe(false);
  expect(leaf("0.4")?.getAttribute("aria-label")).toContain("wrong");
});

test("a crowd of failures opens and closes by click and by key", async () => {
  const run = example();
  const [first] = run.nodes;
  const crowd = Array.from({ length: 6 }, (_, i) => ({ ...first, id: `0.${90 + i}`, parent: "0.0", verdict: "wrong" }));
  run.nodes = [...run.nodes, ...(crowd as RunDocument["nodes"])];
  await show(fixedSource(run));
  expect(leaf("0.91")).toBeNull();
  expect(leaf("0.0/failed")?.textContent).toContain("6 failed"); // 0.4 has been repaired
  await click(leaf("0.0/failed"));
  expect(leaf("0.91")).not.toBeNull();
  expect(leaf("0.0/failed")?.getAttribute("aria-expanded")).toBe("true");
  await press("Enter");
  expect(leaf("0.91")).toBeNull();
  await press("ArrowRight"); // a closed crowd is opened first
  expect(leaf("0.91")).not.toBeNull();
  await press("ArrowRight");
  expect(selected()).toBe("0.90");
});

test("a branch is closed by Space and says how much it hides", async () => {
  await show(fixedSource(example()));
  await click(leaf("0.0"));
  await press(" ");
  expect(leaf("0.3")).toBeNull();
  expect(leaf("0.0")?.getAttribute("aria-label")).toContain("7 candidates hidden below");
  await press("Enter");
  expect(leaf("0.3")).not.toBeNull();
});

test("buttons and keys move the camera, and nothing else is drawn anew", async () => {
  await show(fixedSource(example()));
  const before = leaf("0.5");
  const html = before?.outerHTML;
  const seen = new Set([camera()]);
  for (const name of ["Zoom in", "Zoom out"]) {
    await click(button(name));
    seen.add(camera());
  }
  for (const [key, more] of [["+", {}], ["-", {}], ["ArrowLeft", { shiftKey: true }]] as const) {
    await press(key, more);
    seen.add(camera());
  }
  expect(seen.size).toBeGreaterThan(3);
  await press("0");
  expect(leaf("0.5")).toBe(before);
  expect(leaf("0.5")?.outerHTML).toBe(html);
});

/** A mouse's event, with its first button held unless told. */
function at(type: string, clientX: number, buttons = type === "pointerup" ? 0 : 1): Event {
  const event = new MouseEvent(type, { bubbles: true, clientX, clientY: 10, button: 0, buttons });
  return Object.assign(event, { pointerId: 1, pointerType: "mouse" });
}

test("a mouse let go outside drags nothing when it comes back, and its next click chooses", async () => {
  await show(fixedSource(example()));
  const svg = tree();
  (svg as unknown as { setPointerCapture: () => void }).setPointerCapture = () => undefined;
  const mark = leaf("0.1");
  await act(() => void mark?.dispatchEvent(at("pointerdown", 10)));
  await act(() => void mark?.dispatchEvent(at("pointermove", 60)));
  const dragged = camera();
  await act(() => void mark?.dispatchEvent(at("pointermove", 120, 0)));
  await act(() => void mark?.dispatchEvent(at("pointermove", 200, 0)));
  expect(camera()).toBe(dragged);
  await click(mark);
  expect(selected()).toBe("0.1");
});

test("a drag pans and chooses nothing; a wheel zooms with Ctrl and else scrolls the page", async () => {
  await show(fixedSource(example()));
  const svg = tree();
  (svg as unknown as { setPointerCapture: () => void }).setPointerCapture = () => undefined;
  const start = camera();
  await act(() => {
    const mark = leaf("0.1");
    for (const event of [at("pointerdown", 10), at("pointermove", 60), at("pointerup", 60)]) mark?.dispatchEvent(event);
    mark?.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  });
  expect(camera()).not.toBe(start);
  expect(selected()).toBe("0.5");
  const panned = camera();
  const wheel = new WheelEvent("wheel", { deltaY: 100, bubbles: true, cancelable: true });
  await act(() => void svg.dispatchEvent(wheel));
  expect([wheel.defaultPrevented, camera()]).toEqual([false, panned]);
  const pinch = new WheelEvent("wheel", { deltaY: 100, ctrlKey: true, bubbles: true, cancelable: true });
  await act(() => void svg.dispatchEvent(pinch));
  expect(pinch.defaultPrevented).toBe(true);
  expect(camera()).not.toBe(panned);
});

test("of 2,000 candidates only those near the frame are in the page, and dots when far away", async () => {
  await show(fixedSource(largeRun(2000)));
  const near = host.querySelectorAll('[role="treeitem"]').length;
  expect(near).toBeGreaterThan(5);
  expect(near).toBeLessThan(400);
  await press("0");
  expect(host.querySelectorAll('[role="treeitem"]').length).toBeLessThan(5);
  expect(host.querySelectorAll(".kforge-dots").length).toBeGreaterThan(1);
  expect(selected()).not.toBeNull(); // the selection stays reachable
});

test("only the way to an accepted best looks like success, and a wrong parent on it does not", async () => {
  const way = (kind: string): string => host.querySelector(`[role="tree"] .kforge-edge.${kind}`)?.getAttribute("d") ?? "";
  const steps = (kind: string): number => way(kind).split("M").length - 1;
  const run = { ...example(), targets: example().targets.slice(0, 1) };
  const judge = (id: string, verdict: "wrong" | "undecided"): RunDocument => ({
    ...run,
    nodes: run.nodes.map((node) => (node.id === id ? { ...node, verdict } : node)),
  });
  const { source, next } = growing(run);
  await show(source);
  expect([steps("way"), steps("best")]).toEqual([3, 3]);
  await next(judge("0.3", "wrong"));
  expect([steps("way"), steps("best")]).toEqual([3, 2]);
  await next(judge("0.5", "undecided"));
  expect([steps("way"), steps("best")]).toEqual([3, 0]);
  expect(host.querySelector(".kforge-marks")?.textContent).toContain("no proven gain");
});

test("before anything was tried the tree of a target that will be searched is shown, not of a vendor op", async () => {
  const run = example();
  const [first, second] = run.targets as [RunDocument["targets"][number], RunDocument["targets"][number]];
  const targets = [
    { ...first, best: null, vendor: true, share: 0.6, state: "skipped" as const },
    { ...second, best: null, share: 0.2, state: "waiting" as const },
    { ...second, index: 2, name: "larger", best: null, share: 0.3, state: "waiting" as const },
  ];
  const { source, next } = growing({ ...run, state: "searching", nodes: [], targets });
  await show(source);
  expect(host.textContent).toContain("Search tree of 2 larger");
  await next({ ...run, state: "searching", nodes: run.nodes.filter((node) => node.target === 1), targets });
  expect(host.textContent).toContain(`Search tree of 1 ${second.name}`);
});

test("a target that something was accepted for is shown before a larger one where nothing was", async () => {
  const run = example();
  const [, second] = run.targets;
  const nodes = run.nodes.map((node) => (node.target === 0 ? { ...node, verdict: "undecided" as const } : node));
  const { source } = growing({ ...run, nodes });
  await show(source);
  expect(host.textContent).toContain(`Search tree of 1 ${second?.name ?? ""}`);
});

test("the main line alone leaves the way to the best and what hangs from it", async () => {
  const run = largeRun(300);
  await show(fixedSource(run));
  await press("Home");
  const open = host.querySelectorAll('[role="treeitem"]').length;
  await click(button("Main line only"));
  const shown = [...host.querySelectorAll('[role="treeitem"]')];
  expect(shown.length).toBeLessThan(open);
  expect(shown.some((item) => item.getAttribute("aria-expanded") === "false")).toBe(true);
  expect(button("Main line only")?.getAttribute("aria-pressed")).toBe("true");
});

test("while a target is searched the newest candidate is followed until the user moves", async () => {
  const whole = largeRun(400);
  const at = (count: number): RunDocument => {
    const nodes = whole.nodes.slice(0, count);
    const targets = whole.targets.map((t) => ({ ...t, state: "searching" as const, best: null }));
    return { ...whole, state: "searching", nodes, targets };
  };
  const { source, next } = growing(at(200));
  await show(source);
  expect(button("Follow the newest")?.getAttribute("aria-pressed")).toBe("true");
  await next(at(399));
  expect(tree().querySelector(".newest")).not.toBeNull();
  await click(button("Zoom in"));
  expect(button("Follow the newest")?.getAttribute("aria-pressed")).toBe("false");
});

test("what is selected stays selected, and where it is, while the tree grows around it", async () => {
  const whole = largeRun(400);
  const { source, next } = growing({ ...whole, nodes: whole.nodes.slice(0, 300), targets: whole.targets.map((t) => ({ ...t, best: null })) });
  await show(source);
  await press("Home");
  await press("ArrowRight");
  const chosen = selected();
  const place = (): number[] => {
    const [x = 0, y = 0, k = 1] = (camera().match(/-?[\d.]+/g) ?? []).map(Number);
    const [lx = 0, ly = 0] = (leaf(chosen ?? "")?.getAttribute("transform")?.match(/-?[\d.]+/g) ?? []).map(Number);
    return [x + k * lx, y + k * ly];
  };
  const before = place();
  await next({ ...whole, targets: whole.targets.map((t) => ({ ...t, best: null })) });
  expect(selected()).toBe(chosen);
  expect(place()).toEqual(before);
});

test("the table is sorted by its heads, what has no figure last, and chooses as the tree does", async () => {
  await show(fixedSource(example()));
  await click(button("As a table"));
  const table = host.querySelector(".kforge-treetable");
  const column = (): string[] => [...(table?.querySelectorAll("tbody tr") ?? [])].map((tr) => tr.children[4]?.textContent ?? "");
  await click([...(table?.querySelectorAll("th button") ?? [])].find((b) => b.textContent.startsWith("over eager")));
  expect(column().slice(0, 3)).toEqual(["2.31×", "1.94×", "1.62×"]);
  expect(column().at(-1)).toBe("–");
  expect(table?.querySelector('[aria-sort="descending"]')?.textContent).toContain("over eager");
  await click(table?.querySelectorAll("tbody tr button")[1]);
  expect(host.querySelector(".kforge-panel h3")?.textContent).toContain("Node 0.3");
});

test("a table of 2,000 rows comes in pages", async () => {
  await show(fixedSource(largeRun(2000)));
  await click(button("As a table"));
  expect(host.querySelectorAll(".kforge-treetable tbody tr")).toHaveLength(100);
  await click(button("Show 100 more"));
  expect(host.querySelectorAll(".kforge-treetable tbody tr")).toHaveLength(200);
});

test("a run in which all failed has a tree and says what to do", async () => {
  const run = example();
  for (const node of run.nodes) Object.assign(node, { verdict: "wrong", speedup: null, ours_us: null });
  for (const target of run.targets) target.best = null;
  await show(fixedSource(run));
  expect(host.textContent).toContain("Choose a candidate of the tree");
  await press("ArrowRight");
  expect(host.querySelector(".kforge-panel h3")?.textContent).toContain("Node 0.0");
});

test("one candidate and none are no special case", async () => {
  const run = example();
  await show(fixedSource({ ...run, nodes: run.nodes.slice(0, 1), targets: run.targets.slice(0, 1).map((t) => ({ ...t, best: null })) }));
  expect(host.textContent).toContain("1 candidate,");
  dispose();
  await show(fixedSource({ ...run, nodes: [], targets: run.targets.slice(0, 1).map((t) => ({ ...t, best: null })) }));
  expect(host.querySelector('[role="tree"]')).toBeNull();
});
