/**
 * When a view goes while the keyboard is in it, what is around it has the keyboard then, such as its
 * cell: at the end of a run the live view gives way to the saved one, and a browser would drop the focus.
 */

/** Watches where the focus is; the returned function is to be called when `root` goes, or has gone. */
export function handBack(root: HTMLElement): () => void {
  const page = root.ownerDocument;
  let around: HTMLElement | null = null;
  const entered = (): void => {
    around = root.parentElement?.closest<HTMLElement>("[tabindex]") ?? null;
  };
  const left = (): void =>
    queueMicrotask(() => {
      // Some browsers tell of it, too, when they remove what has the focus: that is no leaving.
      if (root.isConnected && !root.contains(page.activeElement)) around = null;
    });
  root.addEventListener("focusin", entered);
  root.addEventListener("focusout", left);
  return () => {
    const { activeElement: now } = page;
    const dropped = now === null || now === page.body || root.contains(now);
    if (dropped && around?.isConnected === true) around.focus({ preventScroll: true });
    root.removeEventListener("focusin", entered);
    root.removeEventListener("focusout", left);
  };
}
