/** Which outputs are a live run, by the MIME types that they hold. */
import { expect, test } from "vitest";
import { modelIn, runIn } from "../src/lab/mimes";

const RUN = "application/vnd.kforge.run+json";
const WIDGET = "application/vnd.jupyter.widget-view+json";

test("a live output says whose run it is and which widget shows it", () => {
  const data = { [RUN]: { id: "20260314-090000-5f3a1c" }, [WIDGET]: { model_id: "m1" }, "text/plain": "" };
  expect([runIn(data), modelIn(data)]).toEqual(["20260314-090000-5f3a1c", "m1"]);
});

test("what others show, and what has no id, is nobody's run", () => {
  for (const data of [null, "x", {}, { [RUN]: null }, { [RUN]: { id: 7 } }, { "text/plain": "x" }]) {
    expect(runIn(data)).toBeNull();
    expect(modelIn(data)).toBeNull();
  }
});
