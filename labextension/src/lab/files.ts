/** What a run is exported as, and how a file leaves the browser. */
import type { RunDocument } from "../view/document";

/** Source of the node that is looked at, else of the first target's best; null where none is held. */
export function sourceOf(run: RunDocument, selected: string | null): string | null {
  const best = run.targets.find((target) => target.best !== null)?.best ?? null;
  const source = run.details[selected ?? best ?? ""]?.source;
  return source === undefined || source === "" ? null : source;
}

/** Offers text as a download. */
export function download(name: string, type: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
