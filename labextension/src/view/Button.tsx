/**
 * A button that keeps the focus where the keyboard is: while it is off it can still be reached, and
 * when it goes away the focus passes to what is next to it, where a browser would drop it.
 */
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";

/** What a Tab stops at in those parts of the view whose buttons come and go. */
const STOPS = "button, summary, textarea";
const PART = ".kforge-progress, section";

type Props = Omit<JSX.IntrinsicElements["button"], "disabled" | "onClick" | "ref" | "type"> & {
  off?: boolean;
  onClick: () => void;
};

export function Button({ off = false, onClick, ...rest }: Props): JSX.Element {
  const ref = useRef<HTMLButtonElement>(null);
  useEffect(
    () => () => {
      const { current } = ref;
      if (current !== null && current === current.ownerDocument.activeElement) passOn(current);
    },
    [],
  );
  return (
    <button {...rest} ref={ref} type="button" aria-disabled={off} onClick={off ? undefined : onClick} />
  );
}

/**
 * Gives the focus of a button that is about to go to the next stop of its part of the view that
 * stays, else to the last one before it, else to what is around the view, such as its cell.
 */
function passOn(button: HTMLButtonElement): void {
  const part = button.closest(PART);
  const around = button.closest(".kforge")?.parentElement?.closest<HTMLElement>("[tabindex]");
  const stops = [...(part?.querySelectorAll<HTMLElement>(STOPS) ?? [])];
  const at = stops.indexOf(button);
  const near = [...stops.slice(at + 1), ...stops.slice(0, at).reverse()];
  queueMicrotask(() => {
    [...near, around].find((stop) => stop?.isConnected)?.focus({ preventScroll: true });
  });
}
