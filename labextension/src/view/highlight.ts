/** Colours for C++ and CUDA. The library escapes what it is given; what it cannot take stays plain. */
import hljs from "highlight.js/lib/core";
import cpp from "highlight.js/lib/languages/cpp";

const CUDA = [
  "__global__", "__device__", "__host__", "__shared__", "__constant__", "__restrict__", "__forceinline__",
  "__launch_bounds__", "__syncthreads", "__syncwarp", "threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize",
];
/** Longer sources are shown without colours: they would hold up the page. */
const LONGEST = 200_000;

hljs.registerLanguage("cpp", cpp);
hljs.registerLanguage("cuda", (library) => {
  const language = cpp(library);
  const words = language.keywords as Record<string, string[]>;
  return { ...language, name: "cuda", keywords: { ...words, built_in: [...(words["built_in"] ?? []), ...CUDA] } };
});

/** Lines of escaped HTML; a colour that spans lines is opened again on each. */
export function highlighted(source: string, language: string): string[] | null {
  if (source.length > LONGEST) return null;
  const html = hljs.highlight(source, { language: language === "cpp" ? "cpp" : "cuda" }).value;
  let open: string[] = [];
  return html.split("\n").map((line) => {
    const before = open.join("");
    open = [...open];
    for (const [tag] of line.matchAll(/<span[^>]*>|<\/span>/g)) {
      if (tag === "</span>") open.pop();
      else open.push(tag);
    }
    return before + line + "</span>".repeat(open.length);
  });
}
