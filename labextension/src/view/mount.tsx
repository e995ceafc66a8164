/** Mounts the view of a run into an element: the one entry that hosts call. */
import { render } from "preact";
import type { RunSource } from "../source";
import { App } from "./App";
import { Boundary } from "./Boundary";
import { ownKeys } from "./keys";
import { handBack } from "./leaving";
import { keepReachable } from "./reachable";

/** Shows the run of `source` in `el`; returns a function that removes it again. */
export function mountRun(el: HTMLElement, source: RunSource): () => void {
  const root = el.ownerDocument.createElement("div");
  el.append(root);
  render(
    <Boundary>
      <App source={source} />
    </Boundary>,
    root,
  );
  const ends = [handBack(root), keepReachable(root), ownKeys(root)];
  return () => {
    for (const end of ends) end();
    render(null, root);
    root.remove();
  };
}
