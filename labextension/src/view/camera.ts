/** What part of a drawing is seen: pure sums over a camera, and the gestures that move it. */

/** A point of the drawing is seen at `x + k * point.x`, likewise `y`. */
export interface Camera {
  x: number;
  y: number;
  k: number;
}

export interface Size {
  width: number;
  height: number;
}

export interface Point {
  x: number;
  y: number;
}

/** A rectangle of the drawing. */
export interface Area {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

export const NEAREST = 2.5;
export const FARTHEST = 0.005;

export function panned(camera: Camera, dx: number, dy: number): Camera {
  return { ...camera, x: camera.x + dx, y: camera.y + dy };
}

/** Nearer by a factor; what is seen at `at` stays there. */
export function zoomed(camera: Camera, factor: number, at: Point): Camera {
  const k = Math.min(NEAREST, Math.max(FARTHEST, camera.k * factor));
  const by = k / camera.k;
  return { k, x: at.x - (at.x - camera.x) * by, y: at.y - (at.y - camera.y) * by };
}

/** The whole drawing, no nearer than life-size, in the middle of what is free. */
export function fitted(area: Area, size: Size, margin: number): Camera {
  const width = Math.max(1, area.right - area.left);
  const height = Math.max(1, area.bottom - area.top);
  const room = { x: size.width - 2 * margin, y: size.height - 2 * margin };
  const k = Math.min(1, Math.max(FARTHEST, Math.min(room.x / width, room.y / height)));
  const x = (size.width - k * (area.left + area.right)) / 2;
  const y = (size.height - k * (area.top + area.bottom)) / 2;
  return { k, x: k * width <= room.x ? Math.min(x, margin - k * area.left) : x, y };
}

/** The camera moved by as little as shows the point with some room around it. */
export function revealing(camera: Camera, point: Point, size: Size, room: Point): Camera {
  const seen = { x: camera.x + camera.k * point.x, y: camera.y + camera.k * point.y };
  const wide = Math.min(room.x, size.width / 2);
  const high = Math.min(room.y, size.height / 2);
  const dx = within(seen.x, wide / 2, size.width - wide) - seen.x;
  const dy = within(seen.y, high, size.height - high) - seen.y;
  return dx === 0 && dy === 0 ? camera : panned(camera, dx, dy);
}

/** What is seen, and a part of it more on each side. */
export function area(camera: Camera, size: Size, more = 0): Area {
  const left = -camera.x / camera.k;
  const top = -camera.y / camera.k;
  const width = size.width / camera.k;
  const height = size.height / camera.k;
  return {
    left: left - more * width,
    top: top - more * height,
    right: left + (1 + more) * width,
    bottom: top + (1 + more) * height,
  };
}

export function inside(area: Area, point: Point, room = 0): boolean {
  return (
    point.x >= area.left - room &&
    point.x <= area.right + room &&
    point.y >= area.top - room &&
    point.y <= area.bottom + room
  );
}

/** Whether the outer area holds all of the inner one. */
export function holds(outer: Area, inner: Area): boolean {
  return (
    outer.left <= inner.left &&
    outer.top <= inner.top &&
    outer.right >= inner.right &&
    outer.bottom >= inner.bottom
  );
}

function within(value: number, low: number, high: number): number {
  return Math.min(Math.max(value, low), Math.max(low, high));
}
