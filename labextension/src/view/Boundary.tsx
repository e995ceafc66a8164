/** Keeps a fault of the view from leaving a blank pane: one sentence stands in its place. */
import { Component, type ComponentChildren, type JSX } from "preact";

interface Props {
  children: ComponentChildren;
}

interface State {
  problem: string | null;
}

export class Boundary extends Component<Props, State> {
  override state: State = { problem: null };

  static override getDerivedStateFromError(error: unknown): State {
    return { problem: error instanceof Error ? error.message : String(error) };
  }

  override render({ children }: Props, { problem }: State): JSX.Element {
    if (problem === null) return <>{children}</>;
    return (
      <p class="kforge-fault" role="alert">
        The run cannot be shown: {problem}. run.guard and run.nodes show its figures in Python.
      </p>
    );
  }
}
