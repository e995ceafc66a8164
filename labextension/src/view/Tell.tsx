/** Tells the host which node is on the screen, so that its toolbar can speak of the same one. */
import { useEffect } from "preact/hooks";
import type { RunSource } from "../source";

/** Draws nothing. */
export function Tell({ source, node }: { source: RunSource; node: string | null }): null {
  useEffect(() => source.selected?.(node), [source, node]);
  return null;
}
