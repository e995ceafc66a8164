/** The table itself: real buttons in the head, one focus that arrow keys move from row to row. */
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { RoofBar, ShareBar, TimeBars } from "./Bars";
import * as claims from "./claims";
import * as format from "./format";
import type { Group, Key, TargetRow } from "./rows";

export interface Order {
  key: Key;
  down: boolean;
}

const COLUMNS: [Key, string, string][] = [
  ["target", "target", ""],
  ["share", "share", ""],
  ["calls", "calls", "n"],
  ["eager", "eager", "n"],
  ["compile", "compile", "n"],
  ["ours", "best", "n"],
  ["speedup", "speed-up over eager", ""],
  ["roofline", "of roofline", ""],
  ["ceiling", "ceiling", "n"],
  ["state", "state", ""],
];

type ShownGroup = Group & { shown: TargetRow[] };

interface Props {
  rows: readonly TargetRow[];
  groups: readonly ShownGroup[] | null;
  order: Order;
  onOrder: (key: Key) => void;
  selected: number | null;
  onSelect: (index: number) => void;
}

export function TargetTable({ rows, groups, order, onOrder, selected, onSelect }: Props): JSX.Element {
  const body = useRef<HTMLTableElement>(null);
  const [active, setActive] = useState<number | null>(null);
  const all = groups === null ? rows : groups.flatMap((group) => group.shown);
  const stop = [active, selected].find((i) => all.some((row) => row.target.index === i));
  const tabStop = stop ?? all[0]?.target.index;
  const largest = Math.max(...all.map((row) => row.target.share ?? 0), 1e-9);

  const move = (event: KeyboardEvent, index: number): void => {
    const here = all.findIndex((row) => row.target.index === index);
    const to = goal(event.key, here, all.length);
    if (event.key === "Enter" || event.key === " ") onSelect(index);
    else if (to === null) return;
    event.preventDefault();
    const row = to === null ? undefined : all[to];
    if (row === undefined) return;
    setActive(row.target.index);
    body.current?.querySelector<HTMLElement>(`[data-target="${row.target.index}"]`)?.focus();
  };
  const draw = (row: TargetRow): JSX.Element => (
    <Row
      key={row.target.index}
      row={row}
      largest={largest}
      selected={row.target.index === selected}
      tabStop={row.target.index === tabStop}
      onFocus={setActive}
      onKey={move}
      onSelect={onSelect}
    />
  );
  return (
    <div class="kforge-scroll">
      <table ref={body} role="grid" aria-label="Targets">
        <Head order={order} onOrder={onOrder} />
        {groups === null ? (
          <tbody>{rows.map(draw)}</tbody>
        ) : (
          groups.map((group) => (
            <tbody key={group.module}>
              <GroupRow group={group} />
              {group.shown.map(draw)}
            </tbody>
          ))
        )}
      </table>
    </div>
  );
}

/** The row that a key leads to; null for other keys. */
function goal(key: string, here: number, count: number): number | null {
  const steps: Record<string, number> = {
    ArrowDown: here + 1,
    ArrowUp: here - 1,
    PageDown: here + 10,
    PageUp: here - 10,
    Home: 0,
    End: count - 1,
  };
  const to = steps[key];
  return to === undefined ? null : Math.min(count - 1, Math.max(0, to));
}

function Head({ order, onOrder }: Pick<Props, "order" | "onOrder">): JSX.Element {
  return (
    <thead>
      <tr>
        {COLUMNS.map(([key, label, look]) => {
          const on = order.key === key;
          return (
            <th
              key={key}
              scope="col"
              class={look}
              aria-sort={on ? (order.down ? "descending" : "ascending") : "none"}
            >
              <button type="button" class="kforge-sort" onClick={() => onOrder(key)}>
                {label}
                <span aria-hidden="true">{on ? (order.down ? "▾" : "▴") : ""}</span>
              </button>
            </th>
          );
        })}
      </tr>
    </thead>
  );
}

function GroupRow({ group }: { group: ShownGroup }): JSX.Element {
  const kernels = group.rows.filter((row) => row.best !== null).length;
  const hidden = group.rows.length - group.shown.length;
  return (
    <tr class="kforge-group">
      <th scope="rowgroup" colSpan={COLUMNS.length}>
        {group.module}{" "}
        <span class="kforge-note">
          {format.percent(group.share)} of the time · {format.count(group.rows.length, "target")}
          {kernels > 0 && `, ${kernels} with kernels`}
          {hidden > 0 && `, ${hidden} small ones not shown`}
        </span>
      </th>
    </tr>
  );
}

interface RowProps {
  row: TargetRow;
  largest: number;
  selected: boolean;
  tabStop: boolean;
  onFocus: (index: number) => void;
  onKey: (event: KeyboardEvent, index: number) => void;
  onSelect: (index: number) => void;
}

function Row({ row, largest, selected, tabStop, onFocus, onKey, onSelect }: RowProps): JSX.Element {
  const { target, best } = row;
  const { index } = target;
  return (
    <tr
      class={selected ? "on" : ""}
      data-target={index}
      tabIndex={tabStop ? 0 : -1}
      aria-selected={selected}
      onFocus={() => onFocus(index)}
      onKeyDown={(event) => onKey(event, index)}
      onClick={() => onSelect(index)}
    >
      <th scope="row" title={`${target.name}\n${target.variant}`}>
        <button type="button" class="kforge-link" tabIndex={-1} aria-pressed={selected}>
          {index} {target.name}
        </button>{" "}
        <span class="kforge-note">{target.variant}</span>
      </th>
      <td>
        <span class="kforge-figure">{format.percent(target.share)}</span>
        <ShareBar part={(target.share ?? 0) / largest} />
      </td>
      <td class="n">{format.thousands(target.calls)}</td>
      <td class="n">{format.time(row.eager)}</td>
      <td class="n">{format.time(row.compile)}</td>
      <td class="n">{format.time(row.ours)}</td>
      <td class="kforge-speed">
        {best !== null && <TimeBars times={[row.eager, row.compile, row.ours]} />}
        <Speedup row={row} />
      </td>
      <td>
        <span class="kforge-figure">{roof(row)}</span>
        {(row.eagerRoof ?? row.oursRoof) !== null && <RoofBar eager={row.eagerRoof} ours={row.oursRoof} />}
      </td>
      <td class="n">{format.ratio(target.ceiling)}</td>
      <td class="kforge-cut" title={row.state}>
        {row.installed === true && <span class="kforge-good">replaced, </span>}
        {row.state}
      </td>
    </tr>
  );
}

function Speedup({ row }: { row: TargetRow }): JSX.Element {
  if (row.best === null) return <span class="kforge-figure">{format.NONE}</span>;
  const compared = { ...row.best, ratio: row.best.speedup };
  const { figure, spread } = claims.figures(compared);
  const won = claims.shown(compared) === "faster";
  return (
    <>
      <span class={won ? "kforge-figure kforge-good" : "kforge-figure"}>{figure}</span>{" "}
      <span class="kforge-note">{spread}</span>
    </>
  );
}

function roof({ eagerRoof, oursRoof }: TargetRow): string {
  const part = oursRoof ?? eagerRoof;
  return part === null ? format.NONE : `${(part * 100).toFixed(0)}%`;
}
