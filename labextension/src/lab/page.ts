/** A run as one HTML page; the twin of `view/page.py`, over the same built page. */
import template from "../../../kforge_nb/static/page.html";
import type { RunDocument } from "../view/document";

const MARK = /\{\{(title|summary|document)\}\}/g;
const SUMMARY = "<p>This page shows a run of kforge; it needs JavaScript.</p>";

/** The page; it works from a file, and its policy keeps it off the network. */
export function pageOf(run: RunDocument): string {
  const parts: Record<string, string> = {
    title: escaped(`kforge run ${run.name}`),
    summary: SUMMARY,
    document: JSON.stringify(run).replace(/</g, "\\u003c"),
  };
  return template.replace(MARK, (_, name: string) => parts[name] ?? "");
}

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (mark) => `&#${mark.charCodeAt(0)};`);
}
