/**
 * The camera over the drawn tree. Moving it writes one transform and nothing else; what is drawn is
 * renewed only when the camera leaves the area that was drawn, or crosses the distance beyond which
 * items are dots.
 */
import type { RefObject } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { type Area, area, type Camera, holds, type Point, revealing, type Size } from "./camera";
import { gestures } from "./gestures";
import { panned, zoomed } from "./camera";

/** Below this scale items are dots: words could not be read. */
export const DOTS_BELOW = 0.45;
/** What is drawn beyond the frame, in frames on each side. */
const BEYOND = 0.6;
const GLIDE_MS = 220;
const UNMEASURED: Size = { width: 560, height: 400 };

export interface Drawn {
  area: Area;
  near: boolean;
}

export class Eye {
  camera: Camera = { x: 24, y: 40, k: 1 };
  size: Size = UNMEASURED;
  stage: Element | null = null;
  /** Called with what has to be drawn from now on. */
  onDrawn: (drawn: Drawn) => void = () => undefined;
  /** Called when the user has moved the camera. */
  onMoved: () => void = () => undefined;
  private drawn: Drawn | null = null;
  private gliding = 0;

  /** Moves the camera at once. */
  look(camera: Camera): void {
    this.camera = camera;
    this.stage?.setAttribute("transform", `translate(${camera.x} ${camera.y}) scale(${camera.k})`);
    const near = camera.k >= DOTS_BELOW;
    const seen = area(camera, this.size);
    if (this.drawn !== null && near === this.drawn.near && holds(this.drawn.area, seen)) return;
    this.drawn = { area: area(camera, this.size, BEYOND), near };
    this.onDrawn(this.drawn);
  }

  /** What is to be drawn now. */
  now(): Drawn {
    this.drawn ??= { area: area(this.camera, this.size, BEYOND), near: this.camera.k >= DOTS_BELOW };
    return this.drawn;
  }

  pan(dx: number, dy: number): void {
    this.stop();
    this.look(panned(this.camera, dx, dy));
    this.onMoved();
  }

  zoom(factor: number, at: Point = { x: this.size.width / 2, y: this.size.height / 2 }): void {
    this.stop();
    this.look(zoomed(this.camera, factor, at));
    this.onMoved();
  }

  /** Moves just far enough to see a point of the drawing. */
  reveal(point: Point): void {
    this.glide(revealing(this.camera, point, this.size, { x: 130, y: 60 }));
  }

  /** Moves smoothly, unless the user prefers stillness. */
  glide(to: Camera): void {
    this.stop();
    const from = this.camera;
    if (from === to) return;
    if (still()) return this.look(to);
    const start = performance.now();
    const step = (now: number): void => {
      const t = Math.min(1, Math.max(0, (now - start) / GLIDE_MS));
      const eased = 1 - (1 - t) ** 3;
      const mix = (a: number, b: number): number => a + (b - a) * eased;
      this.look({ x: mix(from.x, to.x), y: mix(from.y, to.y), k: mix(from.k, to.k) });
      if (t < 1) this.gliding = requestAnimationFrame(step);
    };
    this.gliding = requestAnimationFrame(step);
  }

  stop(): void {
    cancelAnimationFrame(this.gliding);
  }
}

function still(): boolean {
  if (typeof matchMedia !== "function") return true; // no such question, no animation either
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** An eye over the frame, and what it wants drawn. */
export function useEye(
  frame: RefObject<SVGSVGElement>,
  stage: RefObject<SVGGElement>,
  onMoved: () => void,
): [Eye, Drawn] {
  const eye = useMemo(() => new Eye(), []);
  const [drawn, setDrawn] = useState<Drawn>(() => eye.now());
  eye.onDrawn = setDrawn;
  eye.onMoved = onMoved;
  useEffect(() => {
    const element = frame.current;
    if (element === null) return;
    eye.stage = stage.current;
    eye.size = measured(element);
    eye.look(eye.camera);
    const owns = (): boolean => element.contains(element.ownerDocument.activeElement);
    const end = gestures(element, {
      pan: (dx, dy) => eye.pan(dx, dy),
      zoom: (factor, at) => eye.zoom(factor, at),
      owns,
    });
    const watching = watched(element, () => {
      eye.size = measured(element);
      eye.look(eye.camera);
    });
    return () => {
      eye.stop();
      watching();
      end();
    };
  }, [eye]);
  return [eye, drawn];
}

function measured(element: Element): Size {
  const { width, height } = element.getBoundingClientRect();
  return width > 0 && height > 0 ? { width, height } : UNMEASURED;
}

function watched(element: Element, changed: () => void): () => void {
  if (typeof ResizeObserver === "undefined") return () => undefined;
  const observer = new ResizeObserver(changed);
  observer.observe(element);
  return () => observer.disconnect();
}
