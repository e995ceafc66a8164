// Bundles the browser's part:
//   kforge_nb/static/widget.js   the widget: one ES module, since its hosts load it from a blob URL
//   kforge_nb/static/page.html   the stand-alone page, which lacks only a run
//   lib/                         the JupyterLab extension, which jupyter-builder then wraps into
//   kforge_nb/labextension/      the prebuilt extension
// Fails above the size that every notebook with a widget has to carry.
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { copyFile, readFile, rm, stat, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const LIMIT = 200_000;
const here = (/** @type {string} */ path) => fileURLToPath(new URL(path, import.meta.url));
const common = {
  bundle: true,
  minify: true,
  target: "es2022",
  loader: { ".css": "text", ".svg": "text", ".html": "text" },
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  logLevel: "warning",
};

const widget = here("../kforge_nb/static/widget.js");
await build({
  ...common,
  entryPoints: [here("src/widget.ts")],
  outfile: widget,
  format: "esm",
});
const { size } = await stat(widget);
if (size > LIMIT) {
  throw new Error(`widget.js is ${size} bytes, above the limit of ${LIMIT}`);
}

// Its policy names the one script by its hash, so that nothing in a run can bring another one.
const page = await build({
  ...common,
  entryPoints: [here("src/page.ts")],
  format: "iife",
  write: false,
});
const script = page.outputFiles[0].text;
const hash = createHash("sha256").update(script).digest("base64");
const filled = (await readFile(here("src/page.html"), "utf8"))
  .replace("{{hash}}", () => hash)
  .replace("{{script}}", () => script);
await writeFile(here("../kforge_nb/static/page.html"), filled);

// What JupyterLab provides stays an import.
await rm(here("lib"), { recursive: true, force: true });
await build({
  ...common,
  entryPoints: [here("src/index.ts"), here("src/mime.ts")],
  outdir: here("lib"),
  format: "esm",
  splitting: true,
  chunkNames: "chunk-[hash]",
  external: ["@jupyterlab/*", "@lumino/*", "@codemirror/*"],
});

const builder = spawnSync(
  process.execPath,
  [
    here("node_modules/@jupyter/builder/lib/build-labextension.js"),
    "--core-package-file",
    here("node_modules/@jupyterlab/core-meta/core.package.json"),
    here("."),
  ],
  { cwd: here("."), encoding: "utf8" },
);
if (builder.status !== 0) {
  throw new Error(`jupyter-builder failed:\n${builder.stdout}${builder.stderr}`);
}
await copyFile(here("install.json"), here("../kforge_nb/labextension/install.json"));
