/** The document viewer of `*.kforge.json`: the view over a file, with a toolbar. */
import { ABCWidgetFactory, type DocumentRegistry, DocumentWidget } from "@jupyterlab/docregistry";
import type { Message } from "@lumino/messaging";
import { RunWidget } from "./run";

/** The run of one file; follows the file when it is written anew. */
export class RunContent extends RunWidget {
  constructor(
    private readonly context: DocumentRegistry.Context,
    private readonly shownAnew: () => void,
  ) {
    super();
    this.node.tabIndex = -1;
    void context.ready.then(() => {
      if (this.isDisposed) return;
      this.refresh();
      context.model.contentChanged.connect(this.refresh, this);
    });
  }

  /** What stands in the file. */
  get text(): string {
    return this.context.model.toString();
  }

  override dispose(): void {
    if (this.isDisposed) return;
    this.context.model.contentChanged.disconnect(this.refresh, this);
    super.dispose();
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.focus({ preventScroll: true });
  }

  private refresh(): void {
    void this.display({ text: this.text }).then(() => this.shownAnew());
  }
}

export type RunDocumentWidget = DocumentWidget<RunContent>;

/** Makes a viewer for each file that is opened. */
export class RunFactory extends ABCWidgetFactory<RunDocumentWidget> {
  /** `shownAnew` is called when a viewer shows another run than before. */
  constructor(
    options: DocumentRegistry.IWidgetFactoryOptions<RunDocumentWidget>,
    private readonly shownAnew: () => void,
  ) {
    super(options);
  }

  protected override createNewWidget(context: DocumentRegistry.Context): RunDocumentWidget {
    const content = new RunContent(context, this.shownAnew);
    const widget = new DocumentWidget({ content, context });
    widget.addClass("kforge-viewer");
    return widget;
  }
}
