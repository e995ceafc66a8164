/** Torch extensions run host code: each view says so in words or by shape, and of no other kind. */
import { act } from "preact/test-utils";
import { expect, test } from "vitest";
import type { RunDocument } from "../src/view/document";
import { example } from "./example";
import { host } from "./host";

const { show, all, text, click } = host();

/** The example, where the best candidate of target 0, which is installed, is a torch extension. */
function marked(): RunDocument {
  const run = example();
  for (const node of run.nodes) if (node.id === "0.5") node.language = "cuda_extension";
  return run;
}

test("the panel of an extension says what it is, on a CPU as on a GPU", async () => {
  await show(marked());
  expect(text(".kforge-panel h3 .kforge-host")).toBe("host code");
  expect(text(".kforge-panel")).toContain("in a torch extension (host code)");
  expect(text(".kforge-panel")).toContain("never installed");
  await act(() => Promise.resolve()); // the details come later
  expect(text(".kforge-panel")).toContain("lines of a torch extension");
});

test("the tree marks it by a letter, a frame and aloud", async () => {
  await show(marked());
  const leaf = '[role="treeitem"][data-id="0.5"]';
  expect(text(`${leaf} text`)).toBe("H 2.31×");
  expect(all(`${leaf} .frame`)).toHaveLength(1);
  expect(all(leaf)[0]?.getAttribute("aria-label")).toContain(", host code, accepted");
  expect(text(".kforge-marks")).toContain("H, framed: torch extension with host code 1");
  expect(all(".kforge-map .frame")).toHaveLength(1);
});

test("the tables of candidates, targets and decisions mark it", async () => {
  await show(marked());
  const rows = (table: string): string[] =>
    all(`${table} tbody tr`).filter((row) => row.querySelector(".kforge-host")).map((row) => row.textContent);
  expect(rows(".kforge-targets").map((row) => row.slice(0, 6))).toEqual(["0 gelu"]);
  expect(rows(".kforge-guard").map((row) => row.slice(0, 17))).toEqual(["0 gelu● replaced "]);
  await click("As a table");
  expect(rows(".kforge-treetable").map((row) => row.slice(0, 18))).toEqual(["0.5 best host code"]);
});

test("a crowd of failures says how many of them are extensions", async () => {
  const run = example();
  const failed = run.nodes.find((node) => node.id === "0.2");
  if (failed === undefined) throw new Error("the example has changed");
  for (let i = 20; i < 26; i += 1) {
    run.nodes.push({ ...failed, id: `0.${i}`, parent: null, language: i < 22 ? "cuda_extension" : "cpp" });
  }
  await show(run);
  expect(all(".kforge-map title").map((title) => title.textContent).join()).toMatch(
    /\d failed candidates, 2 with host code/,
  );
});

test("a run without extensions has no mark", async () => {
  await show(example());
  expect(all(".kforge-host, .frame")).toHaveLength(0);
  expect(text(".kforge")).not.toContain("host code");
});
