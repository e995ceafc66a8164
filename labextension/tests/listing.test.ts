import { beforeEach, expect, test, vi } from "vitest";
import { sourceOf } from "../src/lab/files";
import { type Limits, pause, RunListing } from "../src/lab/listing";
import { example } from "./example";

interface File {
  name: string;
  /** null where the server does not tell it. */
  size?: number | null;
  at?: string;
  text?: string;
}

let files: File[];
let limits: Limits;
const get = vi.fn((path: string, options: { content?: boolean }) => {
  const model = (file: File): object => ({
    name: file.name,
    path: file.name,
    type: "file",
    last_modified: file.at ?? "2026-01-01T00:00:00Z",
    size: file.size === undefined ? 1000 : file.size,
    content: options.content === true ? (file.text ?? JSON.stringify(example())) : null,
  });
  const file = files.find((one) => one.name === path);
  return Promise.resolve(
    path === "" ? { type: "directory", content: files.map(model) } : model(file ?? { name: "?" }),
  );
});
const changed = vi.fn();

function listing(): RunListing {
  return new RunListing({ get } as unknown as ConstructorParameters<typeof RunListing>[0], () => limits, changed);
}

beforeEach(() => {
  limits = { most: 50, bytes: 1_000_000, total: 32_000_000 };
  files = [];
  get.mockClear();
});

const reads = (): string[] => get.mock.calls.map(([path]) => path).filter((path) => path !== "");

test("runs come newest first, with their state and result, and other files not at all", async () => {
  files = [
    { name: "old.kforge.json", at: "2026-01-01T00:00:00Z" },
    { name: "new.kforge.json", at: "2026-02-01T00:00:00Z" },
    { name: "other.json" },
    { name: "notes.txt" },
  ];
  const found = listing();
  await found.load("");
  const { rows, known } = found.listing;
  expect(known).toBe(true);
  expect(rows.map((row) => row.name)).toEqual(["new", "old"]);
  expect(rows[0]?.run).toMatchObject({ state: "done", mark: "●", subject: "BertModel on Intel Xeon @ 2.10GHz" });
  expect(rows[0]?.run?.result).toContain("1.30×");
});

test("no more files are read than allowed, and the rest is counted", async () => {
  limits.most = 2;
  files = Array.from({ length: 5 }, (_, n) => ({ name: `${n}.kforge.json` }));
  const found = listing();
  await found.load("");
  expect(reads()).toHaveLength(2);
  expect(found.listing.more).toBe(3);
});

test("a large file is named and not read", async () => {
  files = [{ name: "big.kforge.json", size: 2_000_000 }];
  const found = listing();
  await found.load("");
  expect(reads()).toEqual([]);
  expect(found.listing.rows[0]).toMatchObject({ state: "large", bytes: 2_000_000 });
});

test("one look reads no more than its total, and the next one goes on with the rest", async () => {
  limits.total = 2_500_000;
  files = Array.from({ length: 6 }, (_, n) => ({ name: `${n}.kforge.json`, size: 1_000_000 }));
  const found = listing();
  const states = (): string => found.listing.rows.map((row) => row.state).join(" ");
  await found.load("");
  expect(reads()).toHaveLength(3);
  expect(states()).toBe("run run run large large large");
  await found.load("");
  expect(reads()).toHaveLength(6);
  expect(states()).toBe("run run run run run run");
});

test("files of unknown size count as the largest that are read", async () => {
  limits.total = 2_000_000;
  files = Array.from({ length: 4 }, (_, n) => ({ name: `${n}.kforge.json`, size: null }));
  const found = listing();
  await found.load("");
  expect(found.listing.rows.map((row) => row.state)).toEqual(["run", "run", "large", "large"]);
});

test("while a folder is read, it is not read a second time, but once more afterwards", async () => {
  files = [{ name: "a.kforge.json" }];
  const looks = (): number => get.mock.calls.filter(([path]) => path === "").length;
  const found = listing();
  const all = [found.load(""), found.load(""), found.load(""), found.load("")];
  expect([found.busy, looks()]).toEqual([true, 1]);
  files.push({ name: "b.kforge.json" });
  await Promise.all(all);
  expect([found.busy, looks()]).toEqual([false, 2]);
  expect(found.listing.rows.map((row) => row.name)).toEqual(["a", "b"]);
});

test("a look that failed does not hold up the next one", async () => {
  const found = listing();
  changed.mockImplementationOnce(() => {
    throw new Error("drawing failed");
  });
  await expect(found.load("")).rejects.toThrow("drawing failed");
  expect(found.busy).toBe(false);
});

test("the folder is looked at every two seconds at most, and never for 0", () => {
  expect([0.001, 1.9, 2, 10].map(pause)).toEqual([2000, 2000, 2000, 10_000]);
  expect([0, -1].map(pause)).toEqual([null, null]);
});

test("a file is read again only when it has changed", async () => {
  files = [{ name: "a.kforge.json" }, { name: "b.kforge.json" }];
  const found = listing();
  await found.load("");
  await found.load("");
  expect(reads()).toHaveLength(2);
  files[0] = { name: "a.kforge.json", at: "2026-03-01T00:00:00Z" };
  await found.load("");
  expect(reads()).toEqual(["a.kforge.json", "b.kforge.json", "a.kforge.json"]);
});

test("a broken file is a row that says so, beside the others", async () => {
  files = [{ name: "a.kforge.json", text: "{" }, { name: "b.kforge.json" }];
  const found = listing();
  await found.load("");
  expect(found.listing.rows.map((row) => row.state)).toEqual(["problem", "run"]);
  expect(found.listing.rows[0]?.problem).toContain("no JSON");
});

test("a folder that cannot be read is one sentence", async () => {
  get.mockRejectedValueOnce(new Error("Permission denied: runs"));
  const found = listing();
  await found.load("");
  expect(found.listing).toMatchObject({ known: true, rows: [], problem: "Permission denied: runs" });
});

test("a new folder takes over from one that is still being read", async () => {
  files = [{ name: "a.kforge.json" }];
  let late = (): void => undefined;
  get.mockImplementationOnce(
    () =>
      new Promise((resolve) => {
        late = () => resolve({ type: "directory", content: [{ name: "z.kforge.json" }] });
      }),
  );
  const found = listing();
  const first = found.load("elsewhere");
  await found.load("");
  late();
  await first;
  expect(found.listing.folder).toBe("");
  expect(found.listing.rows.map((row) => row.name)).toEqual(["a"]);
});

test("the source to copy is that of the selected node, else of the best", () => {
  const run = example();
  const best = run.targets.find((target) => target.best !== null)?.best ?? "";
  expect(sourceOf(run, null)).toBe(run.details[best]?.source);
  expect(sourceOf(run, "1.0")).toBe(run.details["1.0"]?.source);
  expect(sourceOf({ ...run, details: {} }, "1.0")).toBeNull();
});
