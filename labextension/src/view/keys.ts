/**
 * Keys pressed in the view are the view's: in a notebook's output the shortcuts of the cell around it
 * would take arrow keys from what scrolls, and `D D` at a row would delete the cell with the run. What
 * JupyterLab does to the page (save, palette, sidebars) it still does. Tab and Shift+Tab go in and out as
 * everywhere; Escape gives the keyboard back to the cell.
 */

/**
 * What JupyterLab's shortcuts are held off by. Those of cells are bound to whatever has the focus, and
 * are found there before any element around it is asked: so it must stand on that very element.
 */
const SUPPRESS = "data-lm-suppress-shortcuts";

/** With Ctrl, Cmd or Alt a notebook runs, merges, moves or selects cells, and takes changes back. */
const OF_CELLS = /^(Enter|Backspace|Delete|Home|End|Arrow.*|[amyz])$/i;

/** Holds `root` so until the returned function is called. */
export function ownKeys(root: HTMLElement): () => void {
  const { defaultView: view } = root.ownerDocument;
  const leave = (event: KeyboardEvent): void => {
    if (event.key !== "Escape" || event.defaultPrevented) return;
    const around = root.parentElement?.closest<HTMLElement>("[tabindex]");
    if (around) around.focus({ preventScroll: true });
    else (root.ownerDocument.activeElement as HTMLElement | null)?.blur();
  };
  let held: Element | null = null;
  const hold = (event: KeyboardEvent): void => {
    held?.removeAttribute(SUPPRESS); // where it stayed, it would hold off every key of what is inside
    held = event.target instanceof Element && root.contains(event.target) ? event.target : null;
    held?.toggleAttribute(SUPPRESS, isOurs(event));
  };
  view?.addEventListener("keydown", hold, true); // before JupyterLab, which listens at the document
  root.addEventListener("keydown", leave);
  return () => {
    root.removeEventListener("keydown", leave);
    view?.removeEventListener("keydown", hold, true);
  };
}

/** Whether a key is kept from JupyterLab. */
function isOurs({ key, ctrlKey, metaKey, altKey }: KeyboardEvent): boolean {
  if (ctrlKey || metaKey || altKey) return OF_CELLS.test(key);
  return !/^F\d+$/.test(key);
}
