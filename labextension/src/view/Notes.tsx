/** What could not be seen, traced, timed or kept: the run's own notes, in words. */
import type { JSX } from "preact";
import type { RunDocument } from "./document";

const LAUNCH_BOUND = "Launch-bound: the model waits for its host, not for its device.";

export function Notes({ document }: { document: RunDocument }): JSX.Element | null {
  const { notes, launch_bound: bound } = document.workload;
  const shown = bound === true ? [...notes, LAUNCH_BOUND] : notes;
  if (shown.length === 0) return null;
  return (
    <section>
      <h3>Notes</h3>
      <ul>
        {shown.map((note) => (
          <li key={note}>{note}</li>
        ))}
      </ul>
    </section>
  );
}
