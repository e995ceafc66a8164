/**
 * The editor's side of `%%kforge kernel` cells: while the first line is that magic, the language of
 * the editor is C++ and CUDA's own words stand out. The cell's MIME type is left alone, since the
 * notebook sets it anew whenever its kernel says what language it speaks.
 */
import { type LanguageSupport, syntaxTree } from "@codemirror/language";
import { Compartment, type EditorState, type Extension, Prec } from "@codemirror/state";
import {
  Decoration,
  type DecorationSet,
  EditorView,
  MatchDecorator,
  ViewPlugin,
  type ViewUpdate,
} from "@codemirror/view";

const MAGIC = /^%%kforge\s+kernel(?:\s|$)/;
/** Words of CUDA, and the types that JupyterLab's theme leaves plain. */
const WORDS = new RegExp(
  `\\b(?:${[
    "__(?:global|device|host|shared|constant|managed|restrict|launch_bounds|forceinline|noinline)__",
    "__sync(?:threads|warp)(?:_\\w+)?|__shfl(?:_down|_up|_xor)?_sync|__ldg|__half2?|__nv_bfloat16",
    "threadIdx|blockIdx|blockDim|gridDim|warpSize",
    "void|bool|char|short|int|long|unsigned|signed|float|double|auto|size_t|u?int(?:8|16|32|64)_t",
    "(?:float|int|uint|double|half)[1234]|half",
  ].join("|")})\\b`,
  "g",
);

const line = Decoration.line({ class: "kforge-magic" });
const word = Decoration.mark({ class: "kforge-cuda" });

/** Whether an editor holds a kernel. */
export function isKernel(state: EditorState): boolean {
  return MAGIC.test(state.doc.line(1).text);
}

/** The extension; `load` brings the C++ language, null where there is none. */
export function kernelCells(load: () => Promise<LanguageSupport | null>): Extension {
  const language = new Compartment();
  const follow = ViewPlugin.define((view) => {
    let shown = false;
    let gone = false;
    const switchTo = async (wanted: boolean): Promise<void> => {
      const support = wanted ? await load() : null;
      await Promise.resolve(); // never while the editor is updating
      if (gone || isKernel(view.state) !== wanted) return;
      const found = support === null ? [] : [support.language, marks];
      view.dispatch({ effects: language.reconfigure(found) });
    };
    const look = (): void => {
      const wanted = isKernel(view.state);
      if (wanted === shown) return;
      shown = wanted;
      void switchTo(wanted);
    };
    look();
    return {
      update: (update: ViewUpdate) => {
        if (update.docChanged) look();
      },
      destroy: () => {
        gone = true;
      },
    };
  });
  return [Prec.high(language.of([])), follow];
}

/** CUDA's words, where they stand neither in a comment nor in a string. */
const cudaWords = new MatchDecorator({
  regexp: WORDS,
  decorate: (add, from, to, _, view) => {
    const kind = syntaxTree(view.state).resolveInner(from, 1).name;
    if (!/Comment|String/.test(kind)) add(from, to, word);
  },
});

class Words {
  decorations: DecorationSet;

  constructor(view: EditorView) {
    this.decorations = cudaWords.createDeco(view);
  }

  update(update: ViewUpdate): void {
    const parsed = syntaxTree(update.startState) !== syntaxTree(update.state);
    this.decorations = parsed
      ? cudaWords.createDeco(update.view)
      : cudaWords.updateDeco(update, this.decorations);
  }
}

const marks: Extension = [
  ViewPlugin.fromClass(Words, { decorations: (words) => words.decorations }),
  EditorView.decorations.of(() => Decoration.set(line.range(0))),
  EditorView.baseTheme({
    ".kforge-magic, .kforge-magic span": {
      color: "var(--jp-mirror-editor-meta-color, #a2f) !important",
    },
    ".kforge-cuda, .kforge-cuda span": {
      color: "var(--jp-mirror-editor-keyword-color, #008000)",
      fontWeight: "bold",
    },
  }),
];
