/** A place to mount the view in, and a person's hands. */
import { act } from "preact/test-utils";
import { afterEach, beforeEach } from "vitest";
import { fixedSource } from "../src/source";
import type { RunDocument } from "../src/view/document";
import { mountRun } from "../src/view/mount";

export interface Host {
  show: (document: RunDocument) => Promise<void>;
  all: (selector: string) => HTMLElement[];
  text: (selector: string) => string;
  click: (name: string | RegExp) => Promise<void>;
  type: (selector: string, text: string) => Promise<void>;
  press: (key: string) => Promise<void>;
}

/** Mounts into a fresh element for each test, and takes it away afterwards. */
export function host(): Host {
  let root: HTMLElement;
  let dispose: (() => void) | undefined;
  beforeEach(() => {
    root = document.createElement("div");
    document.body.append(root);
  });
  afterEach(() => {
    dispose?.();
    root.remove();
  });
  const all = (selector: string): HTMLElement[] => [...root.querySelectorAll<HTMLElement>(selector)];
  return {
    all,
    text: (selector) => all(selector)[0]?.textContent ?? "",
    show: (shown) =>
      act(() => {
        dispose = mountRun(root, fixedSource(shown));
      }),
    click: (name) => {
      const found = all("button").find((b) => matches(b.textContent, name));
      if (found === undefined) throw new Error(`no button ${String(name)}`);
      return act(() => found.click());
    },
    type: (selector, text) =>
      act(() => {
        const field = root.querySelector<HTMLInputElement>(selector);
        if (field === null) throw new Error(`no field ${selector}`);
        field.value = text;
        field.dispatchEvent(new Event("input", { bubbles: true }));
      }),
    press: (key) =>
      act(() => {
        document.activeElement?.dispatchEvent(
          new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }),
        );
      }),
  };
}

function matches(text: string, name: string | RegExp): boolean {
  return typeof name === "string" ? text.trim() === name : name.test(text);
}
