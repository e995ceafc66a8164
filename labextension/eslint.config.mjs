import js from "@eslint/js";
import jupyter from "@jupyter/eslint-plugin";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["src/view/document.ts", "lib"] }, // generated from the schema; built
  {
    files: ["**/*.ts", "**/*.tsx", "**/*.mjs"],
    extends: [js.configs.recommended, ...tseslint.configs.strictTypeChecked],
    languageOptions: {
      parserOptions: {
        projectService: { allowDefaultProject: ["build.mjs"] },
        tsconfigRootDir: import.meta.dirname,
      },
    },
    rules: {
      "no-console": "error",
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "@typescript-eslint/no-confusing-void-expression": "off",
    },
  },
  {
    files: ["build.mjs"],
    languageOptions: { globals: { URL: "readonly", process: "readonly" } },
  },
  {
    // The view knows no host: each brings a source (src/source.ts).
    files: ["src/view/**/*.{ts,tsx}"],
    rules: {
      "no-restricted-imports": [
        "error",
        { patterns: ["@jupyterlab/*", "@lumino/*", "@codemirror/*", "@anywidget/*", "**/lab/**", "**/read/**", "../widget", "../page", "../mime", "../index"] },
      ],
    },
  },
  // JupyterLab's own rules, for its plugins and for the schemas of their settings.
  ...jupyter.configs.recommended.map((config) =>
    config.files?.includes("**/*.ts")
      ? { ...config, files: ["src/index.ts", "src/mime.ts", "src/lab/**/*.{ts,tsx}"] }
      : config,
  ),
  // Signals are connected as `connect(this.method, this)`.
  { files: ["src/lab/**/*.ts"], rules: { "@typescript-eslint/unbound-method": "off" } },
);
