/**
 * Reads what a live view is sent: one whole document, then numbered changes to it. Rows that did not
 * change stay the same objects, so that what is drawn from them need not be drawn again. The kernel's
 * side, and the description of the messages, is `kforge_nb/view/deltas.py`.
 */
import type { RunDocument } from "./document";

type Row = Record<string, unknown>;
type Plain = Record<string, unknown>;

const KEYED: Record<string, string> = { targets: "index", decisions: "target", nodes: "id" };
const LISTS = ["targets", "decisions", "nodes", "whole", "costs"];

/** A list of records by column: `all` is what every row says. */
interface Table {
  n: number;
  all?: Row;
  cols?: Record<string, unknown[]>;
  rows?: Row[];
}

interface Change {
  gone?: unknown[];
  new?: [number, Row][];
  put?: [unknown, Row][];
  length?: number;
}

export interface Message {
  seq: number;
  doc?: Plain;
  of?: number;
  set?: Plain;
  gone?: string[];
  lists?: Record<string, Change>;
}

/** What a message did: it was new, it was known already, or one before it is missing. */
export type Taken = "new" | "known" | "missing";

/** The newest document, put together from messages in the order of their numbers. */
export class Reader {
  private seq = 0;
  private plain: Plain | null = null;

  /** The document as far as messages have come; null before the first whole one. */
  document(): RunDocument | null {
    return this.plain as RunDocument | null;
  }

  /** Takes one message in; `{}` (nothing yet) is known. */
  take(message: Partial<Message>): Taken {
    const { seq = 0 } = message;
    if (seq <= this.seq) return "known";
    if (message.doc !== undefined) this.plain = unpacked(message.doc);
    else if (this.plain === null || message.of !== this.seq) return "missing";
    else this.plain = applied(this.plain, message);
    this.seq = seq;
    return "new";
  }
}

function unpacked(doc: Plain): Plain {
  const found: Plain = { ...doc };
  for (const name of LISTS) if (name in doc) found[name] = untable(doc[name] as Table);
  return found;
}

function untable({ n, all = {}, cols = {}, rows }: Table): Row[] {
  if (rows !== undefined) return rows;
  const columns = Object.entries(cols);
  return Array.from({ length: n }, (_, i) => {
    const row: Row = { ...all };
    for (const [key, column] of columns) row[key] = column[i];
    return row;
  });
}

function applied(document: Plain, message: Partial<Message>): Plain {
  const found: Plain = { ...document };
  for (const key of message.gone ?? []) Reflect.deleteProperty(found, key);
  Object.assign(found, message.set);
  for (const [name, change] of Object.entries(message.lists ?? {})) {
    const rows = found[name] as Row[];
    const key = KEYED[name];
    found[name] = key === undefined ? byPlace(rows, change) : byKey(rows, change, key);
  }
  return found;
}

function byPlace(rows: Row[], { length = 0, put = [] }: Change): Row[] {
  const found = rows.slice(0, length);
  for (const [place, row] of put) found[place as number] = row;
  return found;
}

function byKey(rows: Row[], change: Change, key: string): Row[] {
  const gone = new Set(change.gone);
  const put = new Map(change.put);
  const kept = rows.filter((row) => !gone.has(row[key]));
  const found: Row[] = [];
  let next = 0;
  for (const [place, row] of change.new ?? []) {
    while (found.length < place && next < kept.length) found.push(kept[next++] as Row);
    found.push(row);
  }
  while (next < kept.length) found.push(kept[next++] as Row);
  if (put.size === 0) return found;
  return found.map((row) => (put.has(row[key]) ? { ...row, ...put.get(row[key]) } : row));
}
