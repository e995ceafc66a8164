/**
 * The part of JSON Schema that the run document's schema uses; the twin of `store/rules.py`.
 * A keyword that is not known here is an error: what the schema demands is checked, or nothing is.
 */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type Rules = Readonly<Record<string, Json>>;

/** A rule that a value breaks: where, which value, which rule of which schema, how deep. */
export interface Problem {
  path: string;
  value: Json;
  rule: string;
  want: Json;
  schema: Rules;
  depth: number;
}

interface Place {
  definitions: Rules;
  path: string;
  depth: number;
  found: Problem[];
}

const MOST_PROBLEMS = 50;
const SILENT = new Set(["$schema", "$id", "$defs", "title", "description"]);
const PLAIN = /^[A-Za-z_][A-Za-z0-9_]*$/;
const patterns = new Map<string, RegExp>();

/** What `value` (parsed JSON) breaks of `schema`, in document order, up to a bound. */
export function problems(value: Json, schema: Rules): Problem[] {
  const definitions = (schema["$defs"] ?? {}) as Rules;
  const place: Place = { definitions, path: "$", depth: 0, found: [] };
  check(value, schema, place);
  return place.found;
}

function check(value: Json, schema: Rules, place: Place): void {
  for (const [rule, want] of Object.entries(schema)) {
    if (SILENT.has(rule) || place.found.length >= MOST_PROBLEMS) continue;
    const known = RULES[rule];
    if (known === undefined) throw new Error(`the schema uses '${rule}', which is not known here`);
    if (!known(value, want, schema, place)) {
      place.found.push({ path: place.path, value, rule, want, schema, depth: place.depth });
    }
  }
}

function at(place: Place, key: string | number): Place {
  const step =
    typeof key === "number" ? `[${key}]` : PLAIN.test(key) ? `.${key}` : `['${key.slice(0, 58)}']`;
  return { ...place, path: place.path + step, depth: place.depth + 1 };
}

type Rule = (value: Json, want: Json, schema: Rules, place: Place) => boolean;

function isObject(value: Json): value is { [key: string]: Json } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isType(value: Json, name: string): boolean {
  switch (name) {
    case "object":
      return isObject(value);
    case "array":
      return Array.isArray(value);
    case "null":
      return value === null;
    case "integer":
      return Number.isInteger(value);
    case "number":
      return Number.isFinite(value);
    default:
      return typeof value === name;
  }
}

const reference: Rule = (value, want, _, place) => {
  const name = (want as string).replace("#/$defs/", "");
  check(value, place.definitions[name] as Rules, place);
  return true;
};

/** The problems of the first alternative stand for all: the others say "or null". */
const anyOf: Rule = (value, want, _, place) => {
  let first: Problem[] | null = null;
  for (const alternative of want as Rules[]) {
    const inner = { ...place, found: [] };
    check(value, alternative, inner);
    if (inner.found.length === 0) return true;
    first ??= inner.found;
  }
  place.found.push(...(first ?? []));
  return true;
};

const properties: Rule = (value, want, _, place) => {
  if (!isObject(value)) return true;
  for (const [key, rule] of Object.entries(want as Rules)) {
    const item = Object.hasOwn(value, key) ? value[key] : undefined;
    if (item !== undefined) check(item, rule as Rules, at(place, key));
  }
  return true;
};

const additional: Rule = (value, want, schema, place) => {
  if (!isObject(value) || want === true) return true;
  const known = (schema["properties"] ?? {}) as Rules;
  const others = Object.entries(value).filter(([key]) => !Object.hasOwn(known, key));
  if (want === false) return others.length === 0;
  for (const [key, item] of others) check(item, want as Rules, at(place, key));
  return true;
};

const names: Rule = (value, want, _, place) => {
  if (isObject(value)) for (const key of Object.keys(value)) check(key, want as Rules, place);
  return true;
};

const items: Rule = (value, want, _, place) => {
  if (Array.isArray(value)) {
    value.forEach((item, number) => check(item, want as Rules, at(place, number)));
  }
  return true;
};

/** Length in characters, as Python counts them. */
function length(text: string, limit: number): number {
  return text.length <= limit ? text.length : Array.from(text).length;
}

function matches(text: string, source: string): boolean {
  let pattern = patterns.get(source);
  if (pattern === undefined) patterns.set(source, (pattern = new RegExp(source, "u")));
  return pattern.test(text);
}

const RULES: Record<string, Rule | undefined> = {
  $ref: reference,
  anyOf,
  type: (v, want) => [want].flat().some((name) => isType(v, name as string)),
  const: (v, want) => v === want,
  enum: (v, want) => (want as Json[]).includes(v),
  required: (v, want) => !isObject(v) || (want as string[]).every((name) => Object.hasOwn(v, name)),
  properties,
  additionalProperties: additional,
  propertyNames: names,
  items,
  maxItems: (v, want) => !Array.isArray(v) || v.length <= (want as number),
  maxLength: (v, want) => typeof v !== "string" || length(v, want as number) <= (want as number),
  maxProperties: (v, want) => !isObject(v) || Object.keys(v).length <= (want as number),
  pattern: (v, want) => typeof v !== "string" || matches(v, want as string),
  minimum: (v, want) => typeof v !== "number" || v >= (want as number),
  maximum: (v, want) => typeof v !== "number" || v <= (want as number),
};
