import { expect, test } from "vitest";
import still from "../../tests/view/places.json";
import type { Node } from "../src/view/document";
import { COLUMN, type Item, layout, NO_FOLDS, ROW, toggled } from "../src/view/layout";
import { example } from "./example";
import { grownTree } from "./large";

const template = example().nodes[0];

function node(id: string, parent: string | null, verdict: Node["verdict"]): Node {
  if (template === undefined) throw new Error("the example has no node");
  return { ...template, id, parent, verdict };
}

const NONE = new Set<string>();
const failures = Array.from({ length: 9 }, (_, i) => node(`f${i}`, "a", "wrong"));

function item(items: readonly Item[], id: string): Item {
  const found = items.find((one) => one.id === id);
  if (found === undefined) throw new Error(`no item ${id}`);
  return found;
}

test("a crowd of failures is folded into one item that says how many, and opens", () => {
  const nodes = [node("a", null, "accepted"), ...failures];
  const closed = layout(nodes, NONE);
  const crowd = item(closed.items, "a/failed");
  expect(crowd).toMatchObject({ closed: true, hidden: 9, children: [] });
  const open = layout(nodes, NONE, toggled(NO_FOLDS, crowd));
  expect(item(open.items, "a/failed").children).toHaveLength(9);
  const again = layout(nodes, NONE, toggled(toggled(NO_FOLDS, crowd), item(open.items, "a/failed")));
  expect(again.items.map((one) => one.id)).toEqual(closed.items.map((one) => one.id));
});

test("a failure that was repaired, or that is to be kept, is never folded", () => {
  const all = [node("a", null, "accepted"), ...failures, node("fixed", "f3", "accepted")];
  const children = item(layout(all, new Set(["f5"])).items, "a").children;
  expect(children.map((c) => c.id)).toEqual(["a/failed", "f3", "f5"]);
});

test("no two items share a place, and lines down a column pass no other item", () => {
  const { items, width, height } = layout(grownTree(2000), NONE);
  expect(new Set(items.map((i) => `${i.x} ${i.y}`)).size).toBe(items.length);
  expect(items.every((i) => i.x >= 0 && i.x <= width && i.y >= 0 && i.y <= height)).toBe(true);
  const column = new Map<number, Item[]>();
  for (const i of items) column.set(i.x, [...(column.get(i.x) ?? []), i]);
  for (const child of items) {
    const { parent } = child;
    if (parent === null || parent.children[0] === child) continue;
    const between = column.get(parent.x)?.filter((i) => i.y > parent.y && i.y <= child.y) ?? [];
    expect(between).toEqual([]);
  }
});

test("a newcomer moves nothing that is drawn before its parent, and nothing sideways", () => {
  const nodes = grownTree(400);
  const before = layout(nodes, NONE);
  const parent = nodes[200]?.id ?? "";
  const after = layout([...nodes, node("9.9", parent, "accepted")], NONE);
  const until = before.items.findIndex((one) => one.id === parent);
  expect(until).toBeGreaterThan(10);
  before.items.forEach((old, i) => {
    const now = after.byId.get(old.id);
    expect(now?.x).toBe(old.x);
    if (i < until) expect(now?.y).toBe(old.y);
    else expect(now?.y).toBeGreaterThanOrEqual(old.y);
  });
});

test("a draft added last moves nothing", () => {
  const nodes = grownTree(300);
  const before = layout(nodes, NONE);
  const after = layout([...nodes, node("9.9", null, "accepted")], NONE);
  for (const old of before.items) expect(after.byId.get(old.id)).toMatchObject({ x: old.x, y: old.y });
});

test("the main line alone is the way to what is kept, and its children", () => {
  const nodes = [
    node("a", null, "accepted"), node("b", "a", "slower"), node("c", "b", "slower"),
    node("d", "a", "accepted"), node("e", "d", "accepted"), node("f", "c", "slower"),
  ];
  const { items } = layout(nodes, new Set(["a", "d"]), NO_FOLDS, true);
  expect(items.map((i) => i.id)).toEqual(["", "a", "b", "d", "e"]);
  expect(item(items, "b")).toMatchObject({ closed: true, hidden: 2 });
});

test("a node whose parent is not in the document hangs from the root", () => {
  const { items } = layout([node("b", "gone", "slower")], NONE);
  expect(item(items, "b").parent?.id).toBe("");
});

test("a chain of thousands, a ring, one node and none are laid out", () => {
  const chain = Array.from({ length: 5000 }, (_, i) => node(`n${i}`, i === 0 ? null : `n${i - 1}`, "accepted"));
  expect(layout(chain, NONE).items).toHaveLength(5001);
  expect(layout([node("a", "b", "slower"), node("b", "a", "slower")], NONE).items).toHaveLength(3);
  expect(layout([node("a", null, "slower")], NONE).items).toHaveLength(2);
  expect(layout([], NONE).items).toHaveLength(1);
});

test("still pictures of Python's have every item in the same place", () => {
  const { items } = layout(still.nodes as unknown as Node[], NONE);
  expect(items.map((i) => [i.id, i.x / COLUMN, i.y / ROW])).toEqual(still.places);
});
