/** References inside a run that lead nowhere, which a schema cannot see; twin of `store/schema.py`. */
import type { RunDocument } from "../view/document";

/** The first reference that leads nowhere, as `PATH: what is wrong`, or null. */
export function broken(run: RunDocument): string | null {
  for (const found of links(run)) return found;
  return null;
}

function* links(run: RunDocument): Generator<string> {
  const targets = new Set(run.targets.map((target) => target.index));
  if (targets.size !== run.targets.length) yield "$.targets: two targets have the same index";
  const nodes = new Map<string, number>();
  for (const [i, node] of run.nodes.entries()) {
    const path = `$.nodes[${i}]`;
    if (nodes.has(node.id)) yield `${path}.id: '${node.id}' is the id of an earlier node too`;
    if (!targets.has(node.target)) yield `${path}.target: there is no target ${node.target}`;
    if (node.parent !== null && nodes.get(node.parent) !== node.target) {
      yield `${path}.parent: no earlier node of this target has id '${node.parent}'`;
    }
    nodes.set(node.id, node.target);
  }
  for (const [i, target] of run.targets.entries()) {
    if (target.best !== null && nodes.get(target.best) !== target.index) {
      yield `$.targets[${i}].best: this target has no node '${target.best}'`;
    }
  }
  for (const [i, { target, node }] of run.decisions.entries()) {
    if (!targets.has(target)) yield `$.decisions[${i}].target: there is no target ${target}`;
    if (node !== null && nodes.get(node) !== target) {
      yield `$.decisions[${i}].node: the target has no node '${node}'`;
    }
  }
  for (const [i, { target }] of run.costs.entries()) {
    if (target !== null && !targets.has(target)) {
      yield `$.costs[${i}].target: there is no target ${target}`;
    }
  }
  for (const id of Object.keys(run.details)) {
    if (!nodes.has(id)) yield `$.details: there is no node '${id}'`;
  }
}
