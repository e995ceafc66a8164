import { expect, test } from "vitest";
import { failed, withoutWidget } from "../src/lab/mending";

const RUN = "application/vnd.kforge.run+json";
const WIDGET = "application/vnd.jupyter.widget-view+json";

test("only an output of a run loses its widget, and it keeps the rest", () => {
  const run = { [RUN]: { state: "searching" }, [WIDGET]: { model_id: "a" }, "text/html": "<p>" };
  expect(withoutWidget(run)).toEqual({ [RUN]: { state: "searching" }, "text/html": "<p>" });
  for (const other of [{ [WIDGET]: {} }, { [RUN]: {} }, null, undefined, "text", []]) {
    expect(withoutWidget(other)).toBeNull();
  }
});

test("the error is known by its words, whatever else is written on a page", () => {
  const wrote = (...nodes: Node[]): Pick<MutationRecord, "addedNodes"> => {
    const place = document.createElement("div");
    place.append(...nodes);
    return { addedNodes: place.childNodes };
  };
  const error = "Error displaying widget: model not found";
  expect(failed(wrote(new Text(error)))).toBe(true);
  expect(failed(wrote(new Text("Loading widget...")))).toBe(false);
  expect(failed(wrote(new Text(error), new Text("more")))).toBe(false);
  expect(failed(wrote(document.createElement("p")))).toBe(false);
  expect(failed(wrote())).toBe(false);
});
