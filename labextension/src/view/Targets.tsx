/** Where the time goes and what can be won: the target table with its filter, order and groups. */
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import type { RunDocument } from "./document";
import * as format from "./format";
import {
  filtered,
  grouped,
  headAndTail,
  isKind,
  type Key,
  type Only,
  shareOf,
  sorted,
  targetRows,
  type TargetRow,
} from "./rows";
import { type Order, TargetTable } from "./TargetTable";

interface Props {
  document: RunDocument;
  selected: number | null;
  onSelect: (index: number) => void;
}

export function Targets({ document, selected, onSelect }: Props): JSX.Element {
  const [text, setText] = useState("");
  const [only, setOnly] = useState<Only>("all");
  const [byModule, setByModule] = useState(false);
  const [whole, setWhole] = useState(false);
  const [order, setOrder] = useState<Order>({ key: "share", down: true });
  const rows = useMemo(() => targetRows(document), [document]);
  const found = useMemo(
    () => sorted(filtered(rows, text, only), order.key, order.down),
    [rows, text, only, order],
  );
  const { head, tail } = headAndTail(found, text !== "");
  const shown = whole ? found : keep(head, tail, selected);
  const groups = byModule
    ? grouped(found).map((group) => ({ ...group, shown: group.rows.filter((row) => shown.includes(row)) }))
    : null;
  if (rows.length === 0) {
    return (
      <section class="kforge-targets">
        <h3>Targets</h3>
        <p class="kforge-note">
          {document.state === "profiling"
            ? "The model is being watched and timed; its targets come next."
            : "Nothing in this workload can be replaced; the notes say why."}
        </p>
      </section>
    );
  }
  return (
    <section class="kforge-targets">
      <div class="kforge-tools">
        <h3>Targets</h3>
        <span class="kforge-note">{summary(rows)}</span>
        <Kinds rows={rows} only={only} onChange={setOnly} />
        <button type="button" aria-pressed={byModule} onClick={() => setByModule(!byModule)}>
          By module
        </button>
        <input
          type="search"
          value={text}
          placeholder="Filter"
          aria-label="Filter targets by name, shape or module"
          onInput={(event) => setText(event.currentTarget.value)}
        />
      </div>
      <span class="kforge-hidden" role="status">
        {text !== "" || only !== "all" ? `${found.length} of ${rows.length} targets match` : ""}
      </span>
      <TargetTable
        rows={shown}
        groups={groups}
        order={order}
        onOrder={(key) => setOrder(next(order, key))}
        selected={selected}
        onSelect={onSelect}
      />
      {found.length === 0 && <p class="kforge-note">No target matches the filter.</p>}
      <div class="kforge-below">
        {tail.length > 0 && (
          <button type="button" aria-expanded={whole} onClick={() => setWhole(!whole)}>
            {whole
              ? "Show fewer"
              : `Show ${found.length - shown.length} more, ${part(rows, shareOf(found) - shareOf(shown))} of the time`}
          </button>
        )}
        <Legend />
      </div>
    </section>
  );
}

/** The rows to show at first, and the selected one wherever it is. */
function keep(head: TargetRow[], tail: TargetRow[], selected: number | null): TargetRow[] {
  const chosen = tail.find((row) => row.target.index === selected);
  return chosen === undefined ? head : [...head, chosen];
}

/** A column chosen again turns round; figures begin with the largest, words with the first. */
function next(order: Order, key: Key): Order {
  if (order.key === key) return { key, down: !order.down };
  return { key, down: key !== "target" && key !== "state" };
}

/** Below this part of the time nothing is missed in the table. */
const WORTH_TELLING = 0.1;

/** A part of the time, which is not sure where the shares are not. */
function part(rows: readonly TargetRow[], share: number): string {
  return format.about(format.percent(share), rows.some((row) => row.rough));
}

function summary(rows: readonly TargetRow[]): string {
  const vendor = rows.filter((row) => row.target.vendor);
  const own = rows.filter((row) => !row.target.vendor);
  const parts = [`${format.count(own.length, "target")}, ${part(rows, shareOf(own))} of the time`];
  if (vendor.length > 0) {
    parts.push(`${format.count(vendor.length, "vendor op")}, ${part(rows, shareOf(vendor))}`);
  }
  const left = 1 - shareOf(rows);
  if (rows.length > 0 && left >= WORTH_TELLING) parts.push(`everything else, ${part(rows, left)}`);
  if (shareOf(rows) > 1) parts.push("timed alone, so together more than the whole");
  return parts.join(" · ");
}

const KINDS: [Only, string][] = [
  ["all", "All"],
  ["kernels", "With kernels"],
  ["searched", "Searched"],
  ["vendor", "Vendor"],
];

interface KindsProps {
  rows: readonly TargetRow[];
  only: Only;
  onChange: (only: Only) => void;
}

function Kinds({ rows, only, onChange }: KindsProps): JSX.Element {
  return (
    <span class="kforge-kinds" role="group" aria-label="Which targets">
      {KINDS.map(([kind, label]) => (
        <button
          key={kind}
          type="button"
          aria-pressed={only === kind}
          onClick={() => onChange(only === kind ? "all" : kind)}
        >
          {label} {rows.filter((row) => isKind(row, kind)).length}
        </button>
      ))}
    </span>
  );
}

function Legend(): JSX.Element {
  return (
    <span class="kforge-note kforge-legend">
      <span class="kforge-barkey">
        <span class="kforge-times" aria-hidden="true">
          <i class="eager" style={{ width: "100%" }} />
          <i class="compile" style={{ width: "75%" }} />
          <i class="ours" style={{ width: "40%" }} />
        </span>{" "}
        eager, compile, best kernel ·{" "}
      </span>
      of roofline: bar the best kernel, notch eager · ceiling: the whole
      model if this target ran at its roofline · –: not known, or faster than what was measured as the
      roofline, which is then too low
    </span>
  );
}
