/** Names that several plugins share: commands, the file type, the factory of the viewer. */

/** All commands; one namespace. */
export const Commands = {
  copySource: "kforge:copy-source",
  exportHtml: "kforge:export-html",
  exportJson: "kforge:export-json",
  openInNotebook: "kforge:open-in-notebook",
  openRun: "kforge:open-run",
  newNotebook: "kforge:new-notebook",
  showRuns: "kforge:show-runs",
  refreshRuns: "kforge:refresh-runs",
} as const;

/** How a file of a run ends. */
export const EXTENSION = ".kforge.json";
export const FILE_TYPE = "kforge-run";
export const FACTORY = "Kernel Forge run";
/** Heading of the commands in the palette and of the launcher's card. */
export const CATEGORY = "Kernel Forge";
