/** The reader of live messages, held to what the kernel's side really sends. */
import { expect, test } from "vitest";
import sent from "../../tests/view/messages.json";
import type { RunDocument } from "../src/view/document";
import { type Message, Reader } from "../src/view/deltas";

const messages = sent.messages as unknown as Message[];
const documents = sent.documents as unknown as RunDocument[];

test("each message leads to the document that the kernel made it of", () => {
  const reader = new Reader();
  messages.forEach((message, i) => {
    expect(reader.take(message)).toBe("new");
    expect(reader.document()).toEqual(documents[i]);
  });
});

test("a message that comes twice changes nothing", () => {
  const reader = new Reader();
  for (const message of messages.slice(0, 2)) reader.take(message);
  const before = reader.document();
  expect(reader.take(messages[1] as Message)).toBe("known");
  expect(reader.document()).toBe(before);
});

test("a gap is told, and a whole message closes it", () => {
  const reader = new Reader();
  expect(reader.take(messages[1] as Message)).toBe("missing");
  reader.take(messages[0] as Message);
  expect(reader.take(messages[2] as Message)).toBe("missing");
  expect(reader.document()).toEqual(documents[0]);
  const whole = { seq: 4, doc: { ...documents[3], nodes: { n: 0 } } } as unknown as Message;
  expect(reader.take({ ...whole, doc: { state: "done" } })).toBe("new");
  expect(reader.document()).toEqual({ state: "done" });
});

test("nothing yet is no document", () => {
  const reader = new Reader();
  expect(reader.take({})).toBe("known");
  expect(reader.document()).toBeNull();
});

test("rows that did not change stay the same objects", () => {
  const reader = new Reader();
  for (const message of messages.slice(0, 2)) reader.take(message);
  const before = reader.document()?.nodes ?? [];
  reader.take(messages[2] as Message);
  const changed = new Set(messages[2]?.lists?.["nodes"]?.put?.map(([id]) => id));
  const kept = (reader.document()?.nodes ?? []).filter((row) => before.includes(row));
  expect(kept.length).toBe(before.filter((row) => !changed.has(row.id)).length - 2);
  expect(kept.length).toBeGreaterThan(2);
});
