import { expect, test } from "vitest";
import type { Node } from "../src/view/document";
import { items, layout } from "../src/view/layout";
import { example } from "./example";

const template = example().nodes[0];

function node(id: string, parent: string | null, verdict: Node["verdict"]): Node {
  if (template === undefined) throw new Error("the example has no node");
  return { ...template, id, parent, verdict };
}

test("a crowd of failures is folded into one mark that says how many", () => {
  const failures = Array.from({ length: 9 }, (_, i) => node(`f${i}`, "a", "wrong"));
  const root = items([node("a", null, "accepted"), ...failures], new Set());
  const [folded] = root.children[0]?.children ?? [];
  expect(folded?.folded).toHaveLength(9);
});

test("a failure that was repaired, or that is to be kept, is never folded", () => {
  const failures = Array.from({ length: 9 }, (_, i) => node(`f${i}`, "a", "wrong"));
  const all = [node("a", null, "accepted"), ...failures, node("fixed", "f3", "accepted")];
  const children = items(all, new Set(["f5"])).children[0]?.children ?? [];
  expect(children.map((c) => c.id)).toEqual(["f3", "f5", "a/folded"]);
});

test("no two marks share a place and all lie inside the drawing", () => {
  const nodes = example().nodes.filter((n) => n.target === 0);
  const { placed, width, height } = layout(items(nodes, new Set()));
  expect(new Set(placed.map((p) => `${p.x} ${p.y}`)).size).toBe(placed.length);
  expect(placed.every((p) => p.x > 0 && p.x < width && p.y > 0 && p.y < height)).toBe(true);
});

test("a node whose parent is not in the document hangs from the root", () => {
  expect(items([node("b", "gone", "slower")], new Set()).children.map((c) => c.id)).toEqual(["b"]);
});
