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
for (const [id, keys] of [["down", ["ArrowDown"]], ["delete", ["D", "D"]]] as const) {
  commands.addCommand(id, { execute: () => void ran.push(id) });
  commands.addKeyBinding({ command: id, keys: [...keys], selector: ".notebook" });
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

function press(key: string, keyCode: number): KeyboardEvent {
  const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true });
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

test("where nothing around can have the focus, Escape just lets go of it", () => {
  cell.removeAttribute("tabindex");
  cell.querySelector<HTMLElement>("summary, button")?.focus();
  expect(document.activeElement).not.toBe(document.body);
  press("Escape", 27);
  expect(document.activeElement).toBe(document.body);
});
