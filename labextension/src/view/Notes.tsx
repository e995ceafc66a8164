/** What could not be seen, traced, timed or kept: the run's own notes, in words. */
import type { JSX } from "preact";
import type { RunDocument } from "./document";

export function Notes({ document }: { document: RunDocument }): JSX.Element | null {
  const { notes } = document.workload;
  if (notes.length === 0) return null;
  return (
    <section>
      <h3>Notes</h3>
      <ul>
        {[...new Set(notes)].map((note) => (
          <li key={note}>{note}</li>
        ))}
      </ul>
    </section>
  );
}
