/**
 * Keeps what scrolls reachable by keyboard: an element that is cut off gets a place in the tab order
 * as long as it is, unless something inside it can be reached anyway.
 */

const SCROLLS = ".kforge-scroll, pre";
const REACHED = "a[href], button, input, select, textarea, summary, [tabindex]:not([tabindex='-1'])";

/** Watches `root`; returns a function that ends it. */
export function keepReachable(root: HTMLElement): () => void {
  const { defaultView: view } = root.ownerDocument;
  if (view === null || typeof view.ResizeObserver === "undefined") return () => undefined;
  let due = 0;
  const look = (): void => {
    due = 0;
    for (const element of root.querySelectorAll<HTMLElement>(SCROLLS)) settle(element);
  };
  const soon = (): void => {
    if (due === 0) due = view.requestAnimationFrame(look);
  };
  const sizes = new view.ResizeObserver(soon);
  const contents = new view.MutationObserver(soon);
  sizes.observe(root);
  contents.observe(root, { childList: true, subtree: true, characterData: true });
  return () => {
    view.cancelAnimationFrame(due);
    sizes.disconnect();
    contents.disconnect();
  };
}

/** Exported for its test. */
export function settle(element: HTMLElement): void {
  const cut =
    element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight;
  const ours = element.dataset["kforgeReach"] !== undefined;
  if (cut && !ours && !element.hasAttribute("tabindex") && element.querySelector(REACHED) === null) {
    element.dataset["kforgeReach"] = "";
    element.tabIndex = 0;
  } else if (ours && !cut) {
    delete element.dataset["kforgeReach"];
    element.removeAttribute("tabindex");
  }
}
