/** The view of one run in a JupyterLab widget; behind both the notebook output and the viewer. */
import { Widget } from "@lumino/widgets";
import { fixedSource, type RunSource } from "../source";
import type { RunDocument } from "../view/document";
import css from "./run.css";

/** A run as text of a file, or as data that was parsed already. */
export type Given = { text: string } | { data: unknown };

export class RunWidget extends Widget {
  private unmount: (() => void) | null = null;
  private shown: RunDocument | null = null;
  private chosen: string | null = null;
  private turn = 0;
  private problem = false;

  constructor() {
    super();
    this.addClass("kforge-run");
  }

  /** The run on the screen; null where there is a message instead. */
  get run(): RunDocument | null {
    return this.shown;
  }

  /** Whether a message stands where a run would; false while neither does. */
  get broken(): boolean {
    return this.problem;
  }

  /** Id of the node whose details are on the screen. */
  get selected(): string | null {
    return this.chosen;
  }

  /** Shows a run, or the sentence that says why there is none; the newest call wins. */
  async display(given: Given): Promise<void> {
    this.turn += 1;
    const { turn } = this;
    const { mountRun, readData, readText } = await import("./show");
    if (turn !== this.turn || this.isDisposed) return;
    const reading = "text" in given ? readText(given.text) : readData(given.data);
    this.clear();
    const style = document.createElement("style");
    style.textContent = css;
    this.node.append(style);
    if ("problem" in reading) {
      this.tell(reading.problem);
      return;
    }
    this.shown = reading.document;
    const source: RunSource = {
      ...fixedSource(reading.document),
      selected: (id) => {
        this.chosen = id;
      },
    };
    this.unmount = mountRun(this.node, source);
  }

  override dispose(): void {
    if (this.isDisposed) return;
    this.clear();
    super.dispose();
  }

  private clear(): void {
    this.unmount?.();
    this.unmount = null;
    this.shown = null;
    this.chosen = null;
    this.problem = false;
    this.node.replaceChildren();
  }

  private tell(problem: string): void {
    this.problem = true;
    const line = document.createElement("p");
    line.className = "kforge-problem";
    line.setAttribute("role", "alert");
    line.textContent = problem;
    this.node.append(line);
  }
}
