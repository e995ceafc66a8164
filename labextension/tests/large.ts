/** Trees of thousands of candidates, the same on every call. */
import type { Node, RunDocument } from "../src/view/document";
import { example } from "./example";

const FAILED: Node["verdict"][] = ["wrong", "compile_failed", "crashed", "timed_out", "suspicious"];

/** Numbers from 0 to 1 that are the same each time. */
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

/** Nodes of target 0 as a search makes them: deep where it goes well, many failures. */
export function grownTree(count: number, seed = 7): Node[] {
  const next = random(seed);
  const template = example().nodes[0];
  if (template === undefined) throw new Error("the example has no node");
  const nodes: Node[] = [];
  for (let i = 0; i < count; i += 1) {
    const few = [0, 1, 2].map(() => nodes[Math.floor(next() * nodes.length)]);
    const parent = i < 3 || next() < 0.02 ? undefined : few.sort((a, b) => speed(b) - speed(a))[0];
    const failed = next() < 0.45;
    const speedup = failed ? null : Math.max(0.3, speed(parent) * (0.9 + 0.25 * next()));
    nodes.push({
      ...template,
      id: `0.${i}`,
      parent: parent?.id ?? null,
      verdict: failed ? (FAILED[Math.floor(next() * FAILED.length)] ?? "wrong") : "accepted",
      speedup,
      created: new Date(Date.UTC(2026, 2, 14, 9) + i * 1000).toISOString(),
      visits: 1 + Math.floor(next() * 20),
    });
  }
  return nodes;
}

function speed(node: Node | undefined): number {
  return node?.speedup ?? 1;
}

/** A run with one such tree. */
export function largeRun(count: number): RunDocument {
  const nodes = grownTree(count);
  const best = nodes.reduce((a, b) => (speed(b) > speed(a) ? b : a));
  const run = example({ nodes, decisions: [], costs: [], details: {} });
  run.targets = run.targets.slice(0, 1).map((target) => ({ ...target, best: best.id }));
  return run;
}
