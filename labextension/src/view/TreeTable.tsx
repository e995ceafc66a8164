/** The same candidates as a table: for screen readers, for sorting, and where a drawing says too little. */
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import type { Node } from "./document";
import * as format from "./format";
import { HostCode } from "./hostcode";
import { look } from "./verdicts";

/** Rows at first, and for each click on "more". */
const PAGE = 100;

type Value = string | number | null;

interface Column {
  name: string;
  value: (node: Node) => Value;
  text: (node: Node) => string;
  number: boolean;
}

const COLUMNS: Column[] = [
  { name: "node", value: (n) => n.created, text: (n) => n.id, number: false },
  { name: "parent", value: (n) => n.parent, text: (n) => n.parent ?? "eager", number: false },
  { name: "what", value: (n) => n.title, text: (n) => n.title, number: false },
  { name: "verdict", value: (n) => look(n.verdict).word, text: (n) => look(n.verdict).word, number: false },
  { name: "over eager", value: (n) => n.speedup, text: (n) => format.ratio(n.speedup), number: true },
  { name: "interval", value: (n) => n.low, text: (n) => format.interval(n.low, n.high), number: true },
  { name: "a call", value: (n) => n.ours_us, text: (n) => format.time(n.ours_us), number: true },
  { name: "visits", value: (n) => n.visits, text: (n) => String(n.visits), number: true },
];

interface Props {
  nodes: readonly Node[];
  best: string | null;
  selected: string | null;
  onSelect: (id: string) => void;
}

export function TreeTable({ nodes, best, selected, onSelect }: Props): JSX.Element {
  const [by, setBy] = useState({ column: 0, down: false });
  const [rows, setRows] = useState(PAGE);
  const sorted = useMemo(() => ordered(nodes, COLUMNS[by.column], by.down), [nodes, by]);
  const sort = (column: number): void => {
    const again = column === by.column;
    setBy({ column, down: again ? !by.down : (COLUMNS[column]?.number ?? false) });
  };
  return (
    <>
      <div class="kforge-scroll kforge-treetable" tabIndex={0} role="region" aria-label="Candidates as a table">
        <table>
          <thead>
            <tr>
              {COLUMNS.map((column, i) => (
                <th
                  key={column.name}
                  scope="col"
                  class={column.number ? "n" : ""}
                  aria-sort={i !== by.column ? "none" : by.down ? "descending" : "ascending"}
                >
                  <button type="button" class="kforge-link" onClick={() => sort(i)}>
                    {column.name} {i === by.column && <span aria-hidden="true">{by.down ? "↓" : "↑"}</span>}
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {sorted.slice(0, rows).map((node) => (
              <Row key={node.id} node={node} best={node.id === best} on={node.id === selected} onSelect={onSelect} />
            ))}
          </tbody>
        </table>
      </div>
      {rows < sorted.length && (
        <p>
          {rows} of {sorted.length} shown{" "}
          <button type="button" onClick={() => setRows(rows + PAGE)}>
            Show {Math.min(PAGE, sorted.length - rows)} more
          </button>
        </p>
      )}
    </>
  );
}

interface RowProps {
  node: Node;
  best: boolean;
  on: boolean;
  onSelect: (id: string) => void;
}

function Row({ node, best, on, onSelect }: RowProps): JSX.Element {
  const choose = (): void => onSelect(node.id);
  return (
    <tr class={on ? "on" : ""} onClick={choose}>
      {COLUMNS.map((column, i) => {
        const text = column.text(node);
        if (i === 0) {
          return (
            <th key={column.name} scope="row">
              <button type="button" class="kforge-link" aria-pressed={on} onClick={choose}>
                {text}
              </button>
              {best && <b class="kforge-good"> best</b>}
              <HostCode node={node} />
            </th>
          );
        }
        const tone = column.name === "verdict" ? ` kforge-${look(node.verdict).tone}` : "";
        return (
          <td key={column.name} class={`${column.number ? "n" : "kforge-cut"}${tone}`}>
            {text}
          </td>
        );
      })}
    </tr>
  );
}

/** Sorted by a column; what has no value comes last both ways, equals stay in order. */
function ordered(nodes: readonly Node[], column: Column | undefined, down: boolean): Node[] {
  const rows = [...nodes];
  if (column === undefined) return rows;
  return rows.sort((a, b) => {
    const [x, y] = [column.value(a), column.value(b)];
    if (x === null || y === null) return Number(x === null) - Number(y === null);
    const order = typeof x === "number" ? x - Number(y) : x.localeCompare(String(y));
    return down ? -order : order;
  });
}
