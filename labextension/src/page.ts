/** Host of the stand-alone page (`page.html`), in which the run stands as JSON. */
import { fixedSource } from "./source";
import type { RunDocument } from "./view/document";
import { mountRun } from "./view/mount";

const held = document.getElementById("kforge-document");
const place = document.getElementById("kforge-run");
if (held !== null && place !== null) {
  place.replaceChildren();
  mountRun(place, fixedSource(JSON.parse(held.textContent) as RunDocument));
}
