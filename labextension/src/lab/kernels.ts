/** Plugin: the body of a `%%kforge kernel` cell is highlighted as CUDA or C++. */
import type { LanguageSupport } from "@codemirror/language";
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import {
  EditorExtensionRegistry,
  IEditorExtensionRegistry,
  IEditorLanguageRegistry,
} from "@jupyterlab/codemirror";
import { ITranslator, nullTranslator } from "@jupyterlab/translation";
import { kernelCells } from "./kernelcells";

const kernels: JupyterFrontEndPlugin<void> = {
  id: "kforge-nb:kernels",
  description: "Highlights CUDA and C++ in %%kforge kernel cells.",
  autoStart: true,
  requires: [IEditorExtensionRegistry, IEditorLanguageRegistry],
  optional: [ITranslator],
  activate: (
    _: JupyterFrontEnd,
    extensions: IEditorExtensionRegistry,
    languages: IEditorLanguageRegistry,
    translator: ITranslator | null,
  ): void => {
    const trans = (translator ?? nullTranslator).load("kforge_nb");
    const load = async (): Promise<LanguageSupport | null> => {
      const spec = languages.findByMIME("text/x-c++src");
      return spec === null ? null : ((await languages.getLanguage(spec))?.support ?? null);
    };
    extensions.addExtension({
      name: "kforgeKernels",
      default: true,
      schema: {
        type: "boolean",
        title: trans.__("Highlight kernels of kforge"),
        description: trans.__("CUDA and C++ in cells that begin with %%kforge kernel."),
      },
      factory: ({ inline }) =>
        inline ? EditorExtensionRegistry.createConditionalExtension(kernelCells(load)) : null,
    });
  },
};

export default kernels;
