/** The side panel: follows a folder while it can be seen. */
import { Widget } from "@lumino/widgets";
import { h, render } from "preact";
import type { TranslationBundle } from "@jupyterlab/translation";
import { pause, type RunListing } from "./listing";
import { Panel } from "./Panel";
import css from "./panel.css";

export interface PanelOptions {
  listing: RunListing;
  trans: TranslationBundle;
  /** The folder of now. */
  folder: () => string;
  /** Seconds between two looks at the folder; 0 for none. */
  every: () => number;
  open: (path: string) => void;
}

export class RunsPanel extends Widget {
  private timer: number | null = null;
  private awaited = false;
  private readonly place = document.createElement("div");

  constructor(private readonly options: PanelOptions) {
    super();
    this.id = "kforge-runs";
    this.node.style.overflow = "auto";
    this.node.tabIndex = -1;
    const style = document.createElement("style");
    style.textContent = css;
    this.node.append(style, this.place);
    this.draw();
  }

  /** Draws the list as it is now. */
  draw(): void {
    const { listing, trans, open } = this.options;
    const onRefresh = (): void => this.refresh();
    render(h(Panel, { listing: listing.listing, trans, onOpen: open, onRefresh }), this.place);
    if (this.awaited && document.activeElement === this.node) this.enter();
  }

  /** Moves the focus into the list, or waits for one where there is none yet. */
  enter(): void {
    const first = this.place.querySelector<HTMLElement>(".kforge-runs-row");
    this.awaited = first === null;
    (first ?? this.node).focus();
  }

  /** Reads the folder, if the panel can be seen. */
  refresh(): void {
    if (!this.isVisible) return;
    void this.options.listing.load(this.options.folder());
  }

  /** Looks at the folder again and again, as the settings say. */
  schedule(): void {
    if (this.timer !== null) window.clearInterval(this.timer);
    const every = pause(this.options.every());
    this.timer = every === null ? null : window.setInterval(() => this.look(), every);
  }

  override dispose(): void {
    if (this.isDisposed) return;
    if (this.timer !== null) window.clearInterval(this.timer);
    render(null, this.place);
    super.dispose();
  }

  protected override onAfterShow(): void {
    this.refresh();
  }

  protected override onActivateRequest(): void {
    this.enter();
  }

  private look(): void {
    if (document.visibilityState === "visible" && !this.options.listing.busy) this.refresh();
  }
}
