/** The whole model in each way that was measured, one entry a way. Python's twin is in `facts.py`. */
import type { RunDocument, WholeRow } from "./document";

export interface WholeEntry {
  label: string;
  /** Microseconds of one run; where the interval against the untouched model puts its ends. */
  us: number | null;
  low: number | null;
  high: number | null;
  kernels: boolean;
  recommended: boolean;
  overEager: WholeRow | null;
  overEmpty: WholeRow | null;
  overCompile: WholeRow | null;
}

const BARE = { low: null, high: null, kernels: false, overEager: null, overEmpty: null, overCompile: null };

/** The untouched model, torch.compile, and each rest alone and with kernels. */
export function wholeEntries(document: RunDocument): WholeEntry[] {
  const rows = document.whole;
  if (rows.length === 0) return [];
  const advice = document.recommendation?.rest;
  const untouched = pick(rows, "eager", advice);
  const compiled = rows.find((row) => row.against === "compile");
  const ways = [...new Map(rows.map((row) => [`${row.name} ${row.rest}`, row])).values()];
  const has = (name: string, rest: string): boolean =>
    ways.some((way) => way.name === name && way.rest === rest);

  const entries: WholeEntry[] = [
    { ...BARE, label: "untouched model", us: untouched?.against_us ?? null, recommended: advice === "none" },
  ];
  if (compiled !== undefined && !has("empty", "inductor")) {
    entries.push({ ...BARE, label: "torch.compile", us: compiled.against_us, recommended: false });
  }
  for (const { name, rest } of ways) {
    const own = (against: string): WholeRow | null =>
      rows.find((row) => row.name === name && row.rest === rest && row.against === against) ?? null;
    const empty = own("empty");
    if (empty !== null && !has("empty", rest)) {
      entries.push({ ...BARE, label: `rest ${rest} alone`, us: empty.against_us, recommended: false });
    }
    entries.push(entry(name, rest, own("eager"), empty, own("compile"), advice));
  }
  return entries;
}

function entry(
  name: string,
  rest: string,
  overEager: WholeRow | null,
  overEmpty: WholeRow | null,
  overCompile: WholeRow | null,
  advice: string | undefined,
): WholeEntry {
  const time = overEager ?? overEmpty ?? overCompile;
  const against = overEager?.against_us ?? null;
  const kernels = name !== "empty";
  return {
    label: `rest ${rest} ${kernels ? "with kernels" : "alone"}`,
    us: time?.ours_us ?? null,
    low: end(against, overEager?.high),
    high: end(against, overEager?.low),
    kernels,
    recommended: rest === advice,
    overEager,
    overEmpty,
    overCompile,
  };
}

function end(us: number | null, ratio: number | null | undefined): number | null {
  return us === null || ratio == null || ratio <= 0 ? null : us / ratio;
}

function pick(rows: WholeRow[], against: string, rest: string | undefined): WholeRow | undefined {
  const found = rows.filter((row) => row.against === against);
  return found.find((row) => row.rest === rest) ?? found[0];
}
