/** The run document that Python's stores and views are tested with too. */
import json from "../../tests/store/fixtures/example.kforge.json";
import type { RunDocument } from "../src/view/document";

/** A fresh copy, with changes on top. */
export function example(changes: Partial<RunDocument> = {}): RunDocument {
  return { ...(structuredClone(json) as unknown as RunDocument), ...changes };
}
