/** What the panel is told of a file's text; loaded when the first file is read. */
import { readText } from "../read/read";
import { brief } from "./brief";
import type { Row } from "./listing";

/** The row's part that the text decides. */
export function told(text: string): Pick<Row, "state" | "run" | "problem"> {
  const reading = readText(text);
  return "problem" in reading
    ? { state: "problem", run: null, problem: reading.problem }
    : { state: "run", run: brief(reading.document), problem: "" };
}
