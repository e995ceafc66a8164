/**
 * A larger run for pictures and tests, wholly invented and marked so in its name, device and notes.
 *
 * It has the proportions of an image decoder on a GPU: a few large targets, vendor operators that
 * take half of the time, a long tail of tiny ones, wins and losses, and decisions both ways.
 */
import type { Decision, Node, RunDocument, Target, WholeRow } from "../src/view/document";
import { example } from "./example";

/** name, variant, share, calls, mean µs, roofline µs, compile µs, best µs, module, reason */
type Line = [string, string, number, number, number, number, number | null, number | null, string, string];

const WALL_US = 85_900;
const OWN: Line[] = [
  ["group_norm → silu", "1×128×1024×1024 bf16", 0.263, 6, 3777, 139, 1525, 221, "decoder.up_blocks.3.resnets.0.norm1", "17.1× over eager"],
  ["group_norm → silu", "1×256×512×512 bf16", 0.154, 7, 1900, 63, 770, 139, "decoder.up_blocks.2.resnets.0.norm1", "13.7× over eager"],
  ["add", "1×128×1024×1024 bf16", 0.026, 15, 148, 136, 147, 146, "decoder.up_blocks.3.resnets.0", "within 8% of its roofline"],
  ["upsample_nearest → cast", "1×256×1024×1024 bf16", 0.021, 3, 602, 190, 410, 322, "decoder.up_blocks.2.upsamplers.0", "no gain in the last 8 candidates"],
  ["group_norm → silu", "1×512×128×128 bf16", 0.019, 9, 181, 8, 74, 21.5, "decoder.mid_block.resnets.0.norm1", "8.4× over eager"],
  ["silu", "1×512×64×64 bf16", 0.004, 4, 10.3, 4, 9.1, 8.5, "decoder.mid_block.resnets.0", "no gain in the last 8 candidates"],
  ["softmax", "1×4096×4096 f32", 0.011, 1, 945, 32, 402, null, "decoder.mid_block.attentions.0", "every candidate was wrong: error 3.1 times eager's"],
  ["mul → add → clamp", "1×3×1024×1024 bf16", 0.003, 1, 258, 9, 31, 30, "post_quant", "the last one under way was stopped"],
];
const VENDOR: Line[] = [
  ["conv2d", "1×128×1024×1024 bf16, 128×128×3×3 bf16", 0.246, 35, 603, 512, null, null, "decoder.up_blocks.3.resnets.0.conv1", ""],
  ["conv2d", "1×256×512×512 bf16, 256×256×3×3 bf16", 0.112, 21, 458, 401, null, null, "decoder.up_blocks.2.resnets.0.conv1", ""],
  ["linear", "1×4096×512 bf16, 512×512 bf16", 0.009, 4, 193, 70, null, null, "decoder.mid_block.attentions.0.to_q", ""],
];
/** target, ratio in the model with its interval, µs a run at its places, reason */
const DECIDED: [number, number, number, number, number, string][] = [
  [0, 15.8, 15.5, 16.1, 22_660, "faster in the model"],
  [1, 12.9, 12.6, 13.2, 13_300, "faster in the model"],
  [2, 1.004, 0.991, 1.017, 2220, "kept original: no sure gain at its place in the model: 1.004× (0.991 to 1.017)"],
  [3, 1.74, 1.7, 1.79, 1806, "faster in the model"],
  [4, 7.9, 7.5, 8.3, 1629, "faster in the model"],
  [5, 0.93, 0.9, 0.96, 41, "kept original: slower than the original at its place: 0.93× (0.90 to 0.96)"],
  [7, 1.21, 0.95, 1.55, 258, "kept original: no sure gain at its place in the model: 1.21× (0.95 to 1.55)"],
];
const SMALL = ["add", "mul", "cast", "silu", "layer_norm", "softmax", "pow → mean → rsqrt → mul", "cat → add"];

/** The run with `targets` targets in all, at least eleven; changes go on top. */
export function invented(targets = 60, changes: Partial<RunDocument> = {}): RunDocument {
  const base = example();
  const lines = [...OWN, ...VENDOR];
  const named = lines.map((line, index) => target(base, index, line, index >= OWN.length));
  const rest = Math.max(0, targets - named.length);
  const tail = Array.from({ length: rest }, (_, i) => small(base, named.length + i, i, rest));
  const nodes = OWN.flatMap((line, index) => judged(base, index, line));
  for (const found of named) {
    found.best = nodes.find((n) => n.id === `${found.index}.1` && n.verdict === "accepted")?.id ?? null;
  }
  return {
    ...base,
    name: "example-vae-decode",
    state: "done",
    state_reason: "no target is worth another call",
    device: { name: "an invented GPU", kind: "cuda", bandwidth_gbs: 4260 },
    options: { ...base.options, max_cost: 2, budget: 160 },
    progress: { ...base.progress, judged: 148, budget: 160 },
    workload: {
      ...base.workload,
      wall_us: WALL_US,
      device_us: 84_100,
      notes: ["All figures of this run are invented: it is an example for pictures and tests."],
    },
    targets: [...named, ...tail],
    nodes,
    details: {},
    costs: nodes.map((node, i) => ({
      ...(base.costs[0] as RunDocument["costs"][number]),
      target: node.target,
      node: node.id,
      usd: 0.03 + (i % 5) / 500,
      calls: 4,
      created: node.created,
    })),
    decisions: [...named, ...tail].map((t) => decision(t)),
    whole: whole(),
    fidelity: { ratio: 1.0, inputs: 8, note: "1 call of the cell, 7 seeded redraws" },
    recommendation: {
      rest: "inductor",
      reason: "inductor runs at 2.41× (2.37 to 2.46) of the untouched model; the others: eager 2.307×",
    },
    counters: { calls: { calls: 412, compiled: 410, bypassed: 2, hooked: 0 } },
    ...changes,
  };
}

function target(base: RunDocument, index: number, line: Line, vendor: boolean): Target {
  const [name, variant, share, calls, mean, roofline, , , module, reason] = line;
  const headroom = mean / roofline;
  return {
    ...(base.targets[0] as Target),
    index,
    fingerprint: `${index}`.padStart(64, "e"),
    name,
    family: vendor ? `vendor:${name}` : name,
    vendor,
    calls,
    mean_us: mean,
    share,
    roofline_us: roofline,
    headroom,
    ceiling: 1 / (1 - share * (1 - 1 / headroom)),
    variant,
    modules: [module],
    state: vendor ? "skipped" : "done",
    state_reason: vendor ? "a library call does this; single vendor operations are left alone" : reason,
    best: null,
  };
}

/** One of the many that weigh nothing: the tail falls like 1/n and takes 4% in all. */
function small(base: RunDocument, index: number, i: number, count: number): Target {
  const sum = Array.from({ length: count }, (_, k) => 1 / (k + 2)).reduce((a, b) => a + b, 0);
  const share = (0.04 / sum) * (1 / (i + 2));
  const name = SMALL[i % SMALL.length] ?? "add";
  const module = `decoder.up_blocks.${i % 4}.resnets.${i % 3}.${["norm2", "nonlinearity", "conv_shortcut"][i % 3] ?? ""}`;
  const line: Line = [name, `1×${64 << (i % 4)}×${32 << (i % 3)}×32 bf16`, share, 1 + (i % 9), (share * WALL_US) / (1 + (i % 9)), 1 + (i % 5), null, null, module, ""];
  const found = target(base, index, line, false);
  return { ...found, state: "skipped", state_reason: "its share is too small to be worth a candidate" };
}

/** Three candidates a target: one that fails, the best one, and a slower one. */
function judged(base: RunDocument, index: number, line: Line): Node[] {
  const [name, , , , eager, , compile, ours] = line;
  const template = base.nodes[0] as Node;
  const node = (number: number, verdict: Node["verdict"], us: number | null): Node => ({
    ...template,
    id: `${index}.${number}`,
    target: index,
    parent: number === 0 ? null : `${index}.0`,
    title: `${name}, try ${number}`,
    verdict,
    reason: verdict === "wrong" ? "out0 is off by 3.1e-02" : "",
    speedup: us === null ? null : eager / us,
    low: us === null ? null : (eager / us) * 0.985,
    high: us === null ? null : (eager / us) * 1.015,
    ours_us: us,
    eager_us: us === null ? null : eager,
    compile_us: us === null ? null : compile,
    created: `2026-03-14T09:${String(index).padStart(2, "0")}:${String(number * 20).padStart(2, "0")}.000000Z`,
  });
  if (ours === null) return [0, 1, 2].map((number) => node(number, "wrong", null)).map((n) => ({ ...n, parent: null }));
  return [node(0, "accepted", ours * 1.6), node(1, "accepted", ours), node(2, "slower", eager * 1.2)];
}

function decision(found: Target): Decision {
  const own = DECIDED.find(([index]) => index === found.index);
  const base = { target: found.index, fingerprint: found.fingerprint, node: found.best };
  if (own === undefined) {
    const reason = `kept original: no candidate was accepted (${found.state_reason})`;
    return { ...base, installed: false, reason, isolated: null, in_model: null, fidelity: null };
  }
  const [index, ratio, low, high, us, reason] = own;
  const line = OWN[index] as Line;
  const alone = line[4] / (line[7] ?? line[4]);
  const installed = !reason.startsWith("kept");
  return {
    ...base,
    installed,
    reason,
    isolated: { ratio: alone, low: alone * 0.985, high: alone * 1.015 },
    in_model: { ratio, low, high, ours_us: us / ratio, against_us: us },
    fidelity: installed ? { ratio: 1.0, inputs: 8, note: "" } : null,
    counters: installed
      ? {
          launches: 412 * line[3],
          replayed: 0,
          copies: 0,
          shadowed: 3,
          fallbacks: index === 4 ? { "another shape": 18 } : {},
          note: "",
        }
      : null,
  };
}

function whole(): WholeRow[] {
  const row = (name: string, rest: string, against: string, ratio: number, us: number): WholeRow => ({
    name,
    rest,
    against,
    ratio,
    low: ratio * 0.983,
    high: ratio * 1.018,
    n: 40,
    ours_us: us / ratio,
    against_us: us,
  });
  return [
    row("guarded", "eager", "empty", 2.331, 86_800),
    row("guarded", "eager", "eager", 2.307, 85_900),
    row("guarded", "inductor", "empty", 1.497, 53_300),
    row("guarded", "inductor", "eager", 2.412, 85_900),
    row("guarded", "inductor", "compile", 1.491, 53_100),
    row("empty", "cudagraphs", "eager", 1.004, 85_900),
  ];
}
