// Bundles src/widget.ts into kforge_nb/static/widget.js: one ES module, no code splitting, since
// widget hosts load it from a blob URL. Fails above the size every notebook has to carry.
import { stat } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const LIMIT = 200_000;
const outfile = fileURLToPath(new URL("../kforge_nb/static/widget.js", import.meta.url));

await build({
  entryPoints: [fileURLToPath(new URL("src/widget.ts", import.meta.url))],
  outfile,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  loader: { ".css": "text" },
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  logLevel: "warning",
});

const { size } = await stat(outfile);
if (size > LIMIT) {
  throw new Error(`widget.js is ${size} bytes, above the limit of ${LIMIT}`);
}
