/**
 * Keys pressed in the view are the view's: in a notebook's output the shortcuts of the cell around it
 * would take arrow keys from what scrolls, and `D D` at a button would delete the cell. Tab and
 * Shift+Tab go in and out as everywhere; Escape gives the keyboard back to the cell.
 */

/** What JupyterLab's shortcuts are held off by, on any element around the one that has the focus. */
const SUPPRESS = "data-lm-suppress-shortcuts";

/** Holds `root` so until the returned function is called. */
export function ownKeys(root: HTMLElement): () => void {
  const leave = (event: KeyboardEvent): void => {
    if (event.key !== "Escape" || event.defaultPrevented) return;
    const around = root.parentElement?.closest<HTMLElement>("[tabindex]");
    if (around) around.focus({ preventScroll: true });
    else (root.ownerDocument.activeElement as HTMLElement | null)?.blur();
  };
  root.setAttribute(SUPPRESS, "true");
  root.addEventListener("keydown", leave);
  return () => {
    root.removeEventListener("keydown", leave);
    root.removeAttribute(SUPPRESS);
  };
}
