/** Drags, pinches and wheels over an element, told as pans and zooms. */
import type { Point } from "./camera";

/** A press that moves less than this is a click. */
const SLOP = 4;
const WHEEL = 0.0022;
const LINE = 16;

export interface Moves {
  pan(dx: number, dy: number): void;
  zoom(factor: number, at: Point): void;
  /** Whether a wheel without Ctrl is meant for this element and not for the page. */
  owns(): boolean;
}

/** Listens until the returned function is called. */
export function gestures(element: Element, moves: Moves): () => void {
  const pointers = new Map<number, Point>();
  let dragging = false;

  const place = (event: MouseEvent): Point => {
    const box = element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const down = (event: PointerEvent): void => {
    if (event.pointerType === "mouse" && event.button !== 0) return;
    pointers.set(event.pointerId, place(event));
    dragging = pointers.size > 1;
  };
  const move = (event: PointerEvent): void => {
    const before = pointers.get(event.pointerId);
    if (before === undefined) return;
    if (event.pointerType === "mouse" && event.buttons === 0) {
      up(event); // it was let go where nothing told of it: outside, before the drag was captured
      dragging = false;
      return;
    }
    const now = place(event);
    if (!dragging && Math.hypot(now.x - before.x, now.y - before.y) < SLOP) return;
    if (!dragging) element.setPointerCapture(event.pointerId);
    dragging = true;
    const others = [...pointers].filter(([id]) => id !== event.pointerId);
    const other = others[0]?.[1];
    if (other === undefined) moves.pan(now.x - before.x, now.y - before.y);
    else pinch(before, now, other);
    pointers.set(event.pointerId, now);
  };
  const pinch = (before: Point, now: Point, other: Point): void => {
    const from = Math.max(1, Math.hypot(before.x - other.x, before.y - other.y));
    const to = Math.max(1, Math.hypot(now.x - other.x, now.y - other.y));
    moves.pan((now.x - before.x) / 2, (now.y - before.y) / 2);
    moves.zoom(to / from, { x: (now.x + other.x) / 2, y: (now.y + other.y) / 2 });
  };
  const up = (event: PointerEvent): void => {
    pointers.delete(event.pointerId);
  };
  const click = (event: Event): void => {
    if (dragging) event.stopPropagation(); // the end of a drag chooses nothing
    dragging = false;
  };
  const wheel = (event: WheelEvent): void => {
    if (!event.ctrlKey && !event.metaKey && !moves.owns()) return;
    event.preventDefault();
    const by = event.deltaY * (event.deltaMode === 1 ? LINE : 1);
    moves.zoom(Math.exp(-by * (event.ctrlKey ? 4 : 1) * WHEEL), place(event));
  };

  const listeners: [string, (event: never) => void, AddEventListenerOptions?][] = [
    ["pointerdown", down],
    ["pointermove", move],
    ["pointerup", up],
    ["pointercancel", up],
    ["click", click, { capture: true }],
    ["wheel", wheel, { passive: false }],
  ];
  for (const [name, call, how] of listeners) element.addEventListener(name, call as EventListener, how);
  return () => {
    for (const [name, call, how] of listeners) {
      element.removeEventListener(name, call as EventListener, how);
    }
  };
}
