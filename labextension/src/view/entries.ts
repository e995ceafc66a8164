/** The whole model in each way that was measured, one entry a way. Python's twin is `kforge_nb/view/entries.py`. */
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
  /** Against the same rest laid out for the kernels, without any. */
  overLayout: WholeRow | null;
}

const NOTHING = { overEager: null, overEmpty: null, overCompile: null, overLayout: null };
const BARE = { low: null, high: null, kernels: false, ...NOTHING };

/** The untouched model, torch.compile, and each rest alone and with kernels. */
export function wholeEntries(document: RunDocument): WholeEntry[] {
  const rows = document.whole;
  if (rows.length === 0) return [];
  const advice = document.recommendation?.rest;
  const compiled = rows.find((row) => row.against === "compile");
  const ways = [...new Map(rows.map((row) => [`${row.name} ${row.rest}`, row])).values()];
  const has = (name: string, rest: string): boolean =>
    ways.some((way) => way.name === name && way.rest === rest);

  const entries: WholeEntry[] = [
    { ...BARE, label: "untouched model", us: untouchedUs(document), recommended: advice === "none" },
  ];
  if (compiled !== undefined && !has("empty", "inductor")) {
    entries.push({ ...BARE, label: "torch.compile", us: scaledTimes(document, compiled).against, recommended: false });
  }
  for (const { name, rest } of ways) {
    const own = (against: string): WholeRow | null =>
      rows.find((row) => row.name === name && row.rest === rest && row.against === against) ?? null;
    const empty = own("empty");
    if (empty !== null && !has("empty", rest)) {
      entries.push({ ...BARE, label: `rest ${rest} alone`, us: scaledTimes(document, empty).against, recommended: false });
    }
    const over = { overEager: own("eager"), overEmpty: empty, overCompile: own("compile"), overLayout: own("layout") };
    entries.push(entry(document, name, rest, over, advice));
  }
  return entries;
}

/**
 * Microseconds of both sides of a comparison, on the base of the untouched model where that is known:
 * each rest was timed at another moment, so only ratios compare. Their quotient is the paired ratio.
 */
export function scaledTimes(
  document: RunDocument,
  row: WholeRow,
): { against: number | null; ours: number | null } {
  const { ratio } = row;
  if (ratio === null || ratio === 0) return { against: row.against_us, ours: row.ours_us };
  if (row.against === "eager") {
    const against = untouchedUs(document) ?? row.against_us;
    return { against, ours: against === null ? null : against / ratio };
  }
  const eager = document.whole.find(
    (r) => r.against === "eager" && r.name === row.name && r.rest === row.rest,
  )?.ratio;
  const from = untouchedUs(document);
  const ours = from !== null && eager != null && eager !== 0 ? from / eager : row.ours_us;
  return { against: ours === null ? null : ours * ratio, ours };
}

/** Microseconds of the untouched model, as timed in turn with the recommended rest or else with the first one. */
export function untouchedUs(document: RunDocument): number | null {
  return pick(document.whole, "eager", document.recommendation?.rest)?.against_us ?? null;
}

function entry(
  document: RunDocument,
  name: string,
  rest: string,
  over: Pick<WholeEntry, keyof typeof NOTHING>,
  advice: string | undefined,
): WholeEntry {
  const { overEager, overEmpty, overCompile } = over;
  const time = overEager ?? overEmpty ?? overCompile;
  const against = overEager === null ? null : scaledTimes(document, overEager).against;
  const kernels = name !== "empty";
  return {
    label: `rest ${rest} ${kernels ? "with kernels" : "alone"}`,
    us: time === null ? null : scaledTimes(document, time).ours,
    low: end(against, overEager?.high),
    high: end(against, overEager?.low),
    kernels,
    recommended: rest === advice,
    ...over,
  };
}

function end(us: number | null, ratio: number | null | undefined): number | null {
  return us === null || ratio == null || ratio <= 0 ? null : us / ratio;
}

function pick(rows: WholeRow[], against: string, rest: string | undefined): WholeRow | undefined {
  const found = rows.filter((row) => row.against === against);
  return found.find((row) => row.rest === rest) ?? found[0];
}
