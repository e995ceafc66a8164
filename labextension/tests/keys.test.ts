/** Whose keys are pressed: the view's inside it, the notebook's outside. */
import { CommandRegistry } from "@lumino/commands";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, expect, test } from "vitest";
import { fixedSource } from "../src/source";
import { mountRun } from "../src/view/mount";
import { example } from "./example";

let cell: HTMLElement;
let dispose = (): void => undefined;
let ran: string[];
const commands = new CommandRegistry();
for (const [id, keys, selector] of [
  ["down", ["ArrowDown"], ".notebook :focus"], // as JupyterLab binds what it does to cells
  ["delete", ["D", "D"], ".notebook :focus"],
  ["run", ["Ctrl Enter"], ".notebook :focus"],
  ["runNext", ["Shift Enter"], ".notebook"],
  ["save", ["Ctrl S"], "body"],
  ["debug", ["F9"], "body"],
] as const) {
  commands.addCommand(id, { execute: () => void ran.push(id) });
  commands.addKeyBinding({ command: id, keys: [...keys], selector });
}
const shortcuts = (event: KeyboardEvent): void => commands.processKeydownEvent(event);

beforeEach(async () => {
  ran = [];
  document.body.innerHTML = '<div class="notebook"><div class="cell" tabindex="-1"><div></div></div></div>';
  cell = document.body.querySelector<HTMLElement>(".cell") as HTMLElement;
  document.addEventListener("keydown", shortcuts, true);
  await act(() => {
    const source = { ...fixedSource(example({ state: "searching" })), stop: () => undefined };
    dispose = mountRun(cell.firstElementChild as HTMLElement, source);
  });
});
afterEach(() => {
  document.removeEventListener("keydown", shortcuts, true);
  dispose();
  document.body.innerHTML = "";
});

function press(key: string, keyCode: number, held: KeyboardEventInit = {}): KeyboardEvent {
  const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...held });
  Object.defineProperty(event, "keyCode", { value: keyCode }); // what JupyterLab's keyboard layout reads
  document.activeElement?.dispatchEvent(event);
  return event;
}

test("inside the view no key is the notebook's, and Escape gives the keys back to the cell", () => {
  const stop = [...cell.querySelectorAll("button")].find((b) => b.textContent === "Stop");
  stop?.focus();
  expect(document.activeElement).toBe(stop);
  expect(press("ArrowDown", 40).defaultPrevented).toBe(false);
  press("d", 68);
  press("d", 68);
  expect(ran).toEqual([]);
  expect(press("Tab", 9).defaultPrevented).toBe(false);
  press("Escape", 27);
  expect(document.activeElement).toBe(cell);
  press("ArrowDown", 40);
  press("d", 68);
  press("d", 68);
  expect(ran).toEqual(["down", "delete"]);
});

test("at no element of the view a key acts on the cell, and what is the page's still acts on the page", () => {
  const stops = cell.querySelectorAll<HTMLElement>("button, summary, input, [tabindex='0'], [tabindex='-1']");
  expect(new Set([...stops].map((stop) => stop.tagName.toUpperCase())).size).toBeGreaterThan(3);
  for (const stop of stops) {
    stop.focus();
    expect(document.activeElement).toBe(stop);
    press("ArrowDown", 40); // which may have moved the focus, as the view's own key
    stop.focus();
    press("d", 68);
    press("d", 68);
    press("Enter", 13, { ctrlKey: true });
    press("Enter", 13, { shiftKey: true });
    expect(ran).toEqual([]);
    press("s", 83, { ctrlKey: true });
    press("F9", 120);
    press("d", 68);
    expect(ran.splice(0)).toEqual(["save", "debug"]);
  }
});

test("a view that is gone holds no key", () => {
  dispose();
  cell.innerHTML = "<button>other</button>";
  cell.querySelector("button")?.focus();
  press("ArrowDown", 40);
  expect(ran).toEqual(["down"]);
});

test("where nothing around can have the focus, Escape just lets go of it", () => {
  cell.removeAttribute("tabindex");
  cell.querySelector<HTMLElement>("summary, button")?.focus();
  expect(document.activeElement).not.toBe(document.body);
  press("Escape", 27);
  expect(document.activeElement).toBe(document.body);
});
