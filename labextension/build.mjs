// Bundles the browser's part:
//   kforge_nb/static/widget.js   the widget: one ES module, since its hosts load it from a blob URL
//   kforge_nb/static/page.html   the stand-alone page, which lacks only a run
//   lib/                         the JupyterLab extension, which jupyter-builder then wraps into
//   kforge_nb/labextension/      the prebuilt extension
//   kforge_nb/static/licenses.txt  what the npm packages in them ask to be told
// Fails above the size that every notebook with a widget has to carry.
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { copyFile, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
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
  metafile: true,
};

const widget = here("../kforge_nb/static/widget.js");
const widgetBuild = await build({
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
const labBuild = await build({
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

const inside = [widgetBuild, page, labBuild].flatMap((made) => Object.keys(made.metafile.inputs));
const packages = new Set(
  inside.flatMap((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1] ?? []),
);
const notices = await Promise.all([...packages].sort().map(notice));
await writeFile(here("../kforge_nb/static/licenses.txt"), notices.join("\n"));

/** Name and licence of an npm package, in the words of its own file. */
async function notice(/** @type {string} */ name) {
  const folder = here(`node_modules/${name}/`);
  const file = (await readdir(folder)).find((entry) => /^licen[cs]e/i.test(entry));
  if (file === undefined) throw new Error(`${name} has no licence file`);
  return `${name}\n\n${await readFile(folder + file, "utf8")}\n${"-".repeat(80)}\n`;
}
