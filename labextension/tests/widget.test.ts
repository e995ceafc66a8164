import { expect, test, vi } from "vitest";
import { modelSource, type WidgetModel } from "../src/widget";
import type { RunDocument } from "../src/view/document";
import { example } from "./example";

class FakeModel implements WidgetModel {
  readonly traits: Record<string, unknown>;
  readonly sent: Record<string, unknown>[] = [];
  readonly messages: object[] = [];
  private readonly listeners = new Map<string, Set<() => void>>();

  constructor(doc: object) {
    this.traits = { doc, changes: {}, prompts: [], detail: {}, detail_request: {}, command: {} };
  }
  get(name: string): unknown {
    return this.traits[name];
  }
  set(name: string, value: unknown): void {
    this.traits[name] = value;
  }
  save_changes(): void {
    this.sent.push({ ...this.traits });
  }
  send(content: object): void {
    this.messages.push(content);
  }
  on(event: string, callback: () => void): void {
    this.listeners.set(event, (this.listeners.get(event) ?? new Set()).add(callback));
  }
  off(event: string, callback: () => void): void {
    this.listeners.get(event)?.delete(callback);
  }
  fromKernel(name: string, value: unknown): void {
    this.traits[name] = value;
    this.listeners.get(`change:${name}`)?.forEach((callback) => callback());
  }
  listening(event: string): number {
    return this.listeners.get(event)?.size ?? 0;
  }
}

/** A whole document as the kernel sends it. */
function whole(seq: number, doc: Partial<RunDocument>): object {
  const packed = Object.entries(doc).map(([name, value]) => [
    name,
    ["nodes", "targets", "costs", "decisions", "whole"].includes(name)
      ? { n: (value as unknown[]).length, rows: value }
      : value,
  ]);
  return { seq, doc: Object.fromEntries(packed) as unknown };
}

test("a page that opens late has the whole document, and changes after it", () => {
  const model = new FakeModel(whole(7, example()));
  model.traits["changes"] = { seq: 7, of: 6, set: { state: "searching" } };
  const source = modelSource(model);
  expect(source.snapshot()).toEqual(example());
  let news = 0;
  const end = source.subscribe(() => (news += 1));
  model.fromKernel("changes", { seq: 8, of: 7, set: { state: "guarding" } });
  expect(source.snapshot()).toEqual(example({ state: "guarding" }));
  expect(news).toBe(1);
  end();
});

test("two views of one model read the same messages", () => {
  const model = new FakeModel(whole(1, example()));
  const first = modelSource(model);
  first.snapshot();
  model.fromKernel("changes", { seq: 2, of: 1, set: { state: "guarding" } });
  expect(first.snapshot()?.state).toBe("guarding");
  model.fromKernel("changes", { seq: 3, of: 2, set: { state_reason: "late" } });
  expect(modelSource(model).snapshot()).toMatchObject({ state: "guarding", state_reason: "late" });
});

test("a message that was lost is asked for once, and the answer is taken", () => {
  const model = new FakeModel(whole(1, example()));
  const source = modelSource(model);
  source.snapshot();
  model.fromKernel("changes", { seq: 3, of: 2, set: { state: "guarding" } });
  expect(source.snapshot()?.state).toBe("done");
  source.snapshot();
  expect(model.sent).toHaveLength(1);
  expect(model.traits["whole_request"]).toMatchObject({});
  model.fromKernel("doc", whole(3, example({ state: "guarding" })));
  expect(source.snapshot()?.state).toBe("guarding");
});

test("before the first document there is no snapshot", () => {
  expect(modelSource(new FakeModel({})).snapshot()).toBeNull();
});

test("two stops in a row are two changes, so the second is not swallowed", () => {
  const model = new FakeModel(whole(1, example()));
  const source = modelSource(model);
  source.stop?.();
  source.stop?.();
  const [first, second] = model.sent.map((traits) => traits["command"]);
  expect(first).toMatchObject({ name: "stop" });
  expect(second).not.toEqual(first);
});

test("a command of a page that was reloaded is a change too, though it is that page's first", () => {
  const sent = [1, 2].map(() => {
    const model = new FakeModel(whole(1, example()));
    modelSource(model).pause?.();
    return model.traits["command"];
  });
  expect(sent[0]).toMatchObject({ name: "pause" });
  expect(sent[1]).not.toEqual(sent[0]);
});

test("a command goes as a message too, with the same number: changes of traits may be held back", () => {
  const model = new FakeModel(whole(1, example()));
  const source = modelSource(model);
  source.stop?.(3);
  expect(model.messages).toEqual([{ command: model.traits["command"] }]);
  void source.detail("0.0");
  expect(model.messages).toHaveLength(1);
});

test("a command for one target names it, and one for the run names none", () => {
  const model = new FakeModel(whole(1, example()));
  const source = modelSource(model);
  source.stop?.(3);
  expect(model.traits["command"]).toMatchObject({ name: "stop", target: 3 });
  source.resume?.();
  expect(model.traits["command"]).not.toHaveProperty("target");
});

/** The kernel's answer, to the request that was sent last unless another number is told. */
function answers(model: FakeModel, id: string, details: unknown, ...n: string[]): void {
  const last = (model.traits["detail_request"] as { n: string }).n;
  const entry = { n: n.length > 0 ? n : [last], details };
  model.fromKernel("detail", { ...(model.traits["detail"] as object), [id]: entry });
}

/** The number of the request after, or before, the one that was sent last. */
function beside(model: FakeModel, by: number): string {
  const [page, count] = (model.traits["detail_request"] as { n: string }).n.split(".");
  return `${page ?? ""}.${Number(count) + by}`;
}

test("an answer that was there before anyone asked is not taken for the current one", async () => {
  const run = example();
  const details = run.details["0.0"];
  const model = new FakeModel(whole(1, { ...run, details: {} }));
  model.traits["detail"] = { "0.0": { n: ["before.7"], details: { ...details, log: "of another session" } } };
  const asked = modelSource(model).detail("0.0");
  expect(model.traits["detail_request"]).toMatchObject({ id: "0.0" });
  answers(model, "0.0", details);
  expect((await asked)?.log).toBe(details?.log);
});

test("an answer for another node, or to an earlier request, renews nothing; one to a later request does", async () => {
  const run = example();
  const [a, b] = Object.keys(run.details) as [string, string];
  const old = run.details[a];
  const model = new FakeModel(whole(1, { ...run, details: {} }));
  const source = modelSource(model);
  const first = source.detail(a);
  answers(model, a, old);
  await first;
  const row = { ours_us: 1, reason: "timed again" };
  model.fromKernel("changes", { seq: 2, of: 1, lists: { nodes: { put: [[a, row]] } } });
  const renewed = source.detail(a);
  const earlier = beside(model, -1);
  answers(model, a, { ...old, log: "stale" }, earlier, "other.99");
  void source.detail(b);
  answers(model, b, run.details[b]);
  answers(model, a, { ...old, log: "new" }, "other.99", beside(model, 0));
  expect((await renewed)?.log).toBe("new");
});

test("details are asked for once, by id, and an answer for another node is not taken", async () => {
  const run = example();
  const [a, b] = Object.keys(run.details) as [string, string];
  const model = new FakeModel(whole(1, { ...run, details: {} }));
  const source = modelSource(model);
  const asked = source.detail(a);
  expect(model.traits["detail_request"]).toMatchObject({ id: a });
  answers(model, b, run.details[b], "another.1");
  answers(model, a, run.details[a]);
  expect(await asked).toEqual(run.details[a]);
  expect(model.listening("change:detail")).toBe(0);
  await source.detail(a);
  expect(model.sent).toHaveLength(1);
});

test("a node that was timed again is asked for again, one that was only visited is not", async () => {
  const run = example();
  const [first] = run.nodes;
  const details = run.details["0.0"];
  const model = new FakeModel(whole(1, { ...run, details: {} }));
  const source = modelSource(model);
  const asked = source.detail("0.0");
  answers(model, "0.0", details);
  expect(await asked).toEqual(details);
  const put = (seq: number, fields: object): void =>
    model.fromKernel("changes", { seq, of: seq - 1, lists: { nodes: { put: [["0.0", fields]] } } });
  put(2, { visits: 99 });
  expect(await source.detail("0.0")).toEqual(details);
  expect(model.sent).toHaveLength(1);
  put(3, { ours_us: (first?.ours_us ?? 0) * 2, reason: "timed again" });
  const again = source.detail("0.0");
  expect(model.traits["detail_request"]).toMatchObject({ id: "0.0" });
  answers(model, "0.0", { ...details, log: "new" });
  expect((await again)?.log).toBe("new");
});

test("a kernel that is gone ends the wait instead of hanging it", async () => {
  vi.useFakeTimers();
  const model = new FakeModel(whole(1, { ...example(), details: {} }));
  const asked = modelSource(model).detail("0.0");
  await vi.advanceTimersByTimeAsync(30_000);
  expect(await asked).toBeNull();
  expect(model.listening("change:detail")).toBe(0);
  vi.useRealTimers();
});

test("prompts that come and go are news, and an answer is a command with its id", () => {
  const model = new FakeModel(whole(1, example()));
  const source = modelSource(model);
  let news = 0;
  const end = source.subscribe(() => (news += 1));
  model.fromKernel("prompts", [{ id: "0.1", text: "write" }]);
  expect(news).toBe(1);
  expect(source.prompts?.()).toEqual([{ id: "0.1", text: "write" }]);
  source.answer?.("0.1", "a kernel");
  expect(model.traits["command"]).toMatchObject({ name: "answer", id: "0.1", text: "a kernel" });
  end();
  expect(model.listening("change:prompts")).toBe(0);
});
