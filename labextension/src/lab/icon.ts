import { LabIcon } from "@jupyterlab/ui-components";
import svgstr from "./kforge.svg";

/** The icon of files, panel and launcher card. */
export const kforgeIcon = new LabIcon({ name: "kforge:icon", svgstr });
