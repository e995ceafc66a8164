/**
 * A run document from text or parsed JSON, or one sentence that says why there is none.
 * Files and notebooks may come from anybody: nothing is shown that does not follow the schema.
 */
import type { RunDocument } from "../view/document";
import { filled } from "../view/older";
import runSchema from "../../../kforge_nb/store/run.schema.json";
import { broken } from "./links";
import { type Json, type Problem, problems, type Rules } from "./rules";

type Fields = { [key: string]: Json };
export type Reading = { document: RunDocument } | { problem: string };

const schema = runSchema as unknown as Rules;
/** The newest schema that is understood. */
export const SCHEMA: string = runSchema.properties.schema.const;
const VERSION = /^kforge\.run\/([0-9]{1,6})(?:\.([0-9]{1,6}))?$/;
const DEEPEST = 60;

/** Reads the text of a file. */
export function readText(text: string): Reading {
  if (text.trim() === "") return { problem: "The file is empty; run.save(path) writes a run." };
  let data: Json;
  try {
    data = JSON.parse(text.replace(/^\uFEFF/, "")) as Json;
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    return { problem: `The file is no JSON, so it is no run of kforge: ${why}` };
  }
  return readData(data);
}

/** Checks parsed JSON. */
export function readData(data: unknown): Reading {
  const wrong = wrongVersion(data);
  if (wrong !== null) return { problem: wrong };
  if (tooDeep(data as Json, DEEPEST)) {
    return { problem: `The run is nested deeper than ${DEEPEST} levels; it was not read.` };
  }
  const document = upgraded(data as Fields);
  const found = problems(document, schema);
  if (found.length > 0) return { problem: told(found) };
  const run = document as unknown as RunDocument;
  const link = broken(run);
  return link === null ? { document: run } : { problem: `The run is not valid at ${link}` };
}

function wrongVersion(data: unknown): string | null {
  if (typeof data !== "object" || data === null || Array.isArray(data)) {
    return `A run is a JSON object, not ${short(data as Json)}.`;
  }
  const version = (data as { schema?: unknown }).schema;
  const number = typeof version === "string" ? VERSION.exec(version) : null;
  if (number === null) {
    return `This is no run of kforge: its schema must be ${SCHEMA}, not ${short(version as Json)}.`;
  }
  if (newer(number, VERSION.exec(SCHEMA))) {
    return (
      `This run was written by a newer kforge_nb (schema ${number[0]}; this one reads ${SCHEMA}). ` +
      "To upgrade: git pull and pip install . in your clone of kforge_nb"
    );
  }
  return null;
}

/** A document of an older version in today's shape, as far as it has the shape of a document. */
function upgraded(data: Fields): Fields {
  const whole = Array.isArray(data["costs"]) && typeof data["progress"] === "object";
  const found = whole ? (filled(data as unknown as RunDocument) as unknown as Fields) : data;
  return { ...found, schema: SCHEMA };
}

function newer(one: RegExpExecArray, known: RegExpExecArray | null): boolean {
  const value = (match: RegExpExecArray | null): number =>
    Number(match?.[1] ?? 0) * 1_000_000 + Number(match?.[2] ?? 0);
  return value(one) > value(known);
}

function tooDeep(value: Json, left: number): boolean {
  if (typeof value !== "object" || value === null) return false;
  return left <= 1 || Object.values(value).some((item) => tooDeep(item, left - 1));
}

function told(found: Problem[]): string {
  const first = found.reduce((a, b) => (b.depth < a.depth ? b : a));
  const more = found.length > 1 ? ` (and ${found.length - 1} more)` : "";
  return `The run is not valid at ${first.path}: ${short(first.value)} ${why(first)}${more}`;
}

function why({ rule, want, value, schema: rules }: Problem): string {
  const names = [want].flat().map((name) => (typeof name === "string" ? name : short(name)));
  const list = (items: string[]): string => items.join(", ");
  const keys = typeof value === "object" && value !== null ? Object.keys(value) : [];
  switch (rule) {
    case "additionalProperties": {
      const known = Object.keys((rules["properties"] ?? {}) as object);
      const others = keys.filter((key) => !known.includes(key)).slice(0, 5);
      return `has fields that are not allowed: ${others.map(short).join(", ")}`;
    }
    case "required":
      return `lacks a field: ${list(names.filter((name) => !keys.includes(name)))}`;
    case "type":
      return `must be ${names.join(" or ")}`;
    case "maxLength":
      return `is longer than ${list(names)}`;
    case "maxItems":
      return `has more than ${list(names)} entries`;
    case "maxProperties":
      return `has more than ${list(names)} fields`;
    case "minimum":
      return `is below ${list(names)}`;
    case "maximum":
      return `is above ${list(names)}`;
    case "pattern":
      return `does not match ${list(names)}`;
    case "enum":
      return `must be one of ${list(names)}`;
    default:
      return `must be ${list(names)}`;
  }
}

function short(value: Json | undefined): string {
  const text = value === undefined ? "nothing" : JSON.stringify(value);
  return text.length <= 80 ? text : `${text.slice(0, 77)}…`;
}
