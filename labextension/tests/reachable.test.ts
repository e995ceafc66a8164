import { expect, test } from "vitest";
import { settle } from "../src/view/reachable";

/** An element of a size of its own, around a content of another one. */
function box(inside: string, shown: number, whole: number): HTMLElement {
  const made = document.createElement("div");
  made.innerHTML = inside;
  Object.defineProperty(made, "clientWidth", { value: shown });
  Object.defineProperty(made, "scrollWidth", { value: whole, configurable: true });
  return made;
}

test("what is cut off can be reached by keyboard, and leaves the tab order when it is not", () => {
  const made = box("<table></table>", 100, 200);
  settle(made);
  settle(made);
  expect(made.getAttribute("tabindex")).toBe("0");
  Object.defineProperty(made, "scrollWidth", { value: 100 });
  settle(made);
  expect(made.hasAttribute("tabindex")).toBe(false);
});

test.each([
  ["what fits", box("text", 100, 100)],
  ["what holds a button", box("<button>x</button>", 100, 200)],
])("%s gets no place of its own", (_, made) => {
  settle(made);
  expect(made.hasAttribute("tabindex")).toBe(false);
});

test("a place that the view gave itself is left alone", () => {
  const made = box("", 100, 100);
  made.tabIndex = 0;
  settle(made);
  expect(made.getAttribute("tabindex")).toBe("0");
});
