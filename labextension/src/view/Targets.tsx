/** Where the time goes and what has been won: one row a target, largest share first. */
import type { JSX } from "preact";
import type { Node, RunDocument, Target } from "./document";
import * as format from "./format";

interface Props {
  document: RunDocument;
  selected: number | null;
  onSelect: (index: number) => void;
}

export function Targets({ document, selected, onSelect }: Props): JSX.Element {
  const byId = new Map(document.nodes.map((node) => [node.id, node]));
  const counts = new Map<number, number>();
  for (const node of document.nodes) counts.set(node.target, (counts.get(node.target) ?? 0) + 1);
  const rows = [...document.targets].sort((a, b) => (b.share ?? 0) - (a.share ?? 0));
  return (
    <section>
      <h3>Targets</h3>
      <div class="kforge-scroll">
        <table>
          <thead>
            <tr>
              <th scope="col">target</th>
              <th scope="col">share</th>
              <th scope="col" class="n">calls</th>
              <th scope="col" class="n">eager</th>
              <th scope="col" class="n">compile</th>
              <th scope="col" class="n">best</th>
              <th scope="col" class="n">speed-up over eager</th>
              <th scope="col">state</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((target) => (
              <Row
                key={target.index}
                target={target}
                best={target.best === null ? undefined : byId.get(target.best)}
                tried={counts.get(target.index) ?? 0}
                selected={target.index === selected}
                onSelect={onSelect}
              />
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

interface RowProps {
  target: Target;
  best: Node | undefined;
  tried: number;
  selected: boolean;
  onSelect: (index: number) => void;
}

function Row({ target, best, tried, selected, onSelect }: RowProps): JSX.Element {
  return (
    <tr class={selected ? "on" : ""} onClick={() => onSelect(target.index)}>
      <th scope="row">
        <button
          type="button"
          class="kforge-link"
          aria-pressed={selected}
          onClick={() => onSelect(target.index)}
        >
          {target.index} {target.name}
        </button>{" "}
        <span class="kforge-note">{target.variant}</span>
      </th>
      <td class="kforge-share">
        <i style={{ width: `${Math.min(1, target.share ?? 0) * 100}%` }} />
        <span>{format.percent(target.share)}</span>
      </td>
      <td class="n">{target.calls}</td>
      <td class="n">{format.time(best?.eager_us ?? target.mean_us)}</td>
      <td class="n">{format.time(best?.compile_us)}</td>
      <td class="n">{format.time(best?.ours_us)}</td>
      <td class="n">
        {best === undefined ? "–" : format.ratio(best.speedup)}{" "}
        <span class="kforge-note">{format.interval(best?.low, best?.high)}</span>
      </td>
      <td class="kforge-cut" title={target.state_reason}>
        {state(target, tried)}
      </td>
    </tr>
  );
}

function state(target: Target, tried: number): string {
  if (target.vendor && tried === 0) return "not searched: vendor library";
  const nodes = tried === 0 ? "" : `, ${format.count(tried, "candidate")}`;
  return `${target.state}${nodes}${target.state_reason ? `: ${target.state_reason}` : ""}`;
}
