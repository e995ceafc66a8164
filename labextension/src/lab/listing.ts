/** Which runs a folder holds, read through the Contents API within bounds. Knows no widgets. */
import type { Contents } from "@jupyterlab/services";
import type { Brief } from "./brief";
import { EXTENSION } from "./names";

export interface Limits {
  /** At most so many files are read; the newest ones. */
  most: number;
  /** No larger file is read for the list. */
  bytes: number;
  /** No further file is read in one look once so many bytes were. */
  total: number;
}

/** One file of the list: what is known of it so far. */
export interface Row {
  path: string;
  name: string;
  /** ISO time of the last change. */
  modified: string;
  bytes: number | null;
  /** "large" also where a look had read as much as it may. */
  state: "reading" | "run" | "problem" | "large";
  run: Brief | null;
  /** Why it cannot be read. */
  problem: string;
}

export interface Listing {
  folder: string;
  /** False until the folder was read for the first time. */
  known: boolean;
  rows: Row[];
  /** Files of the folder that are beyond the bound. */
  more: number;
  problem: string;
}

type Getter = Pick<Contents.IManager, "get">;
const AT_ONCE = 3;
const LEAST_SECONDS = 2;

/** One look at a folder. */
interface Look {
  folder: string;
  /** Whether it was asked for once more meanwhile. */
  again: boolean;
  /** Bytes that it may still read. */
  left: number;
  done: Promise<void>;
}

/** Keeps the list of one folder; files that did not change are not read again. */
export class RunListing {
  private readonly kept = new Map<string, Row>();
  private look: Look | null = null;
  listing: Listing = { folder: "", known: false, rows: [], more: 0, problem: "" };

  constructor(
    private readonly contents: Getter,
    private readonly limits: () => Limits,
    private readonly changed: () => void,
  ) {}

  /** Whether a folder is being read now. */
  get busy(): boolean {
    return this.look !== null;
  }

  /**
   * Reads a folder. Another one takes over from one that is still being read; the same one is read
   * once more afterwards, however often that is asked for.
   */
  load(folder: string): Promise<void> {
    if (this.look?.folder === folder) {
      this.look.again = true;
      return this.look.done;
    }
    const look: Look = { folder, again: false, left: 0, done: Promise.resolve() };
    this.look = look;
    look.done = this.repeat(look);
    return look.done;
  }

  private async repeat(look: Look): Promise<void> {
    try {
      do {
        look.again = false;
        look.left = this.limits().total;
        await this.once(look);
      } while (this.wanted(look));
    } finally {
      if (this.look === look) this.look = null;
    }
  }

  private wanted(look: Look): boolean {
    return look.again && this.look === look;
  }

  private async once(look: Look): Promise<void> {
    const { folder } = look;
    const current = (): boolean => this.look === look;
    if (folder !== this.listing.folder) {
      this.show({ folder, known: false, rows: [], more: 0, problem: "" });
    }
    let files: Contents.IModel[];
    try {
      files = runsOf(await this.contents.get(folder, { content: true }));
    } catch (error) {
      if (current()) this.show({ folder, known: true, rows: [], more: 0, problem: words(error) });
      return;
    }
    if (!current()) return;
    const { most } = this.limits();
    const rows = files.slice(0, most).map((file) => this.row(file));
    this.show({ folder, known: true, rows, more: Math.max(0, files.length - most), problem: "" });
    const waiting = rows.filter((row) => row.state === "reading");
    const work = async (): Promise<void> => {
      for (let row = waiting.shift(); row !== undefined && current(); row = waiting.shift()) {
        const found = await this.read(row, look);
        if (found.state !== "large") this.kept.set(key(found), found); // a later look may read it
        if (current()) this.replace(found);
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    if (current()) this.forget(rows);
  }

  private row(file: Contents.IModel): Row {
    const row: Row = {
      path: file.path,
      name: file.name.slice(0, -EXTENSION.length),
      modified: file.last_modified,
      bytes: file.size ?? null,
      state: "reading",
      run: null,
      problem: "",
    };
    return this.kept.get(key(row)) ?? row;
  }

  private async read(row: Row, look: Look): Promise<Row> {
    try {
      let { bytes } = row;
      bytes ??= (await this.contents.get(row.path, { content: false })).size ?? null;
      const most = this.limits().bytes;
      if ((bytes ?? 0) > most || look.left <= 0) return { ...row, bytes, state: "large" };
      look.left -= bytes ?? most;
      const options = { content: true, type: "file", format: "text" } as const;
      const text: unknown = (await this.contents.get(row.path, options)).content;
      const { told } = await import("./told");
      return { ...row, bytes, ...told(typeof text === "string" ? text : "") };
    } catch (error) {
      return { ...row, state: "problem", problem: words(error) };
    }
  }

  private replace(found: Row): void {
    const { rows } = this.listing;
    this.show({ ...this.listing, rows: rows.map((row) => (row.path === found.path ? found : row)) });
  }

  /** Drops what was kept of files that are not in the list any more. */
  private forget(rows: Row[]): void {
    const listed = new Set(rows.map(key));
    for (const name of this.kept.keys()) if (!listed.has(name)) this.kept.delete(name);
  }

  private show(listing: Listing): void {
    this.listing = listing;
    this.changed();
  }
}

/** Milliseconds between two looks for a setting in seconds; null for none. */
export function pause(seconds: number): number | null {
  return seconds > 0 ? Math.max(seconds, LEAST_SECONDS) * 1000 : null;
}

/** Files of runs in a folder, newest first. */
function runsOf(folder: Contents.IModel): Contents.IModel[] {
  const items = Array.isArray(folder.content) ? (folder.content as Contents.IModel[]) : [];
  return items
    .filter((item) => item.type !== "directory" && item.name.endsWith(EXTENSION))
    .sort((a, b) => b.last_modified.localeCompare(a.last_modified) || a.name.localeCompare(b.name));
}

/** The same file in the same state. */
function key(row: Row): string {
  return `${row.path}\n${row.modified}`;
}

function words(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
