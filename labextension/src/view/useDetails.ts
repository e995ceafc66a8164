/**
 * Details of a node, fetched when they are looked at, and again when it was judged again; an answer
 * that comes too late is dropped.
 */
import { useEffect, useState } from "preact/hooks";
import type { RunSource } from "../source";
import type { Details } from "./document";

export type Loaded = Details | "loading" | "absent";

/** `judgement` is anything that is another text once the node was judged again. */
export function useDetails(source: RunSource, id: string, judgement = ""): Loaded {
  const [found, setFound] = useState<{ id: string; details: Loaded }>({ id, details: "loading" });
  useEffect(() => {
    let wanted = true;
    void source.detail(id).then((details) => {
      if (wanted) setFound({ id, details: details ?? "absent" });
    });
    return () => {
      wanted = false;
    };
  }, [source, id, judgement]);
  return found.id === id ? found.details : "loading";
}
