/** The table itself: real buttons in the head, one focus that arrow keys move from row to row. */
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { RoofBar, ShareBar, TimeBars } from "./Bars";
import * as claims from "./claims";
import * as format from "./format";
import { HostCode } from "./hostcode";
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
  const draw = useDrawn({ onFocus: setActive, onKey: move, onSelect });
  const row = (found: TargetRow): JSX.Element =>
    draw(found, largest, found.target.index === selected, found.target.index === tabStop);
  return (
    <div class="kforge-scroll">
      <table ref={body} role="grid" aria-label="Targets">
        <Head order={order} onOrder={onOrder} />
        {groups === null ? (
          <tbody>{rows.map(row)}</tbody>
        ) : (
          groups.map((group) => (
            <tbody key={group.module}>
              <GroupRow group={group} />
              {group.shown.map(row)}
            </tbody>
          ))
        )}
      </table>
    </div>
  );
}

interface Hands {
  onFocus: (index: number) => void;
  onKey: (event: KeyboardEvent, index: number) => void;
  onSelect: (index: number) => void;
}

interface Drawn {
  facts: readonly unknown[];
  element: JSX.Element;
}

/**
 * Draws rows and hands the same element out again while nothing in it has changed: a profile has
 * hundreds of rows, and a live one is renewed four times a second.
 */
function useDrawn(hands: Hands): (row: TargetRow, largest: number, selected: boolean, tabStop: boolean) => JSX.Element {
  const cache = useRef(new Map<number, Drawn>());
  const newest = useRef(hands);
  newest.current = hands;
  return (row, largest, selected, tabStop) => {
    const { index } = row.target;
    const facts = [row.target, row.best, row.tried, row.installed, row.unconfirmed, row.rough, largest, selected, tabStop];
    const known = cache.current.get(index);
    if (known?.facts.every((fact, i) => fact === facts[i])) return known.element;
    const element = (
      <Row
        key={index}
        row={row}
        largest={largest}
        selected={selected}
        tabStop={tabStop}
        onFocus={(to) => newest.current.onFocus(to)}
        onKey={(event, from) => newest.current.onKey(event, from)}
        onSelect={(to) => newest.current.onSelect(to)}
      />
    );
    cache.current.set(index, { facts, element });
    return element;
  };
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
              class={`${look} kforge-col-${key}`}
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
          {format.about(format.percent(group.share), group.rows.some((row) => row.rough))} of the time · {format.count(group.rows.length, "target")}
          {kernels > 0 && `, ${kernels} with kernels`}
          {hidden > 0 && `, ${hidden} small ones not shown`}
        </span>
      </th>
    </tr>
  );
}

interface RowProps extends Hands {
  row: TargetRow;
  largest: number;
  selected: boolean;
  tabStop: boolean;
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
        <span class={row.rough ? "kforge-num wide" : "kforge-num"}>{format.about(format.percent(target.share), row.rough)}</span>
        <ShareBar part={(target.share ?? 0) / largest} />
      </td>
      <td class="n">{format.thousands(target.calls)}</td>
      <td class="n">{format.time(row.eager)}</td>
      <td class="n">{format.time(row.compile)}</td>
      <td class="n">{format.time(row.ours)}</td>
      <td class="kforge-speed">
        {best !== null && <TimeBars times={[row.eager, row.compile, row.ours]} />}
        <Speedup row={row} />
        <HostCode node={best} />
      </td>
      <td>
        <span class="kforge-num">{roof(row)}</span>
        {(row.eagerRoof ?? row.oursRoof) !== null && <RoofBar eager={row.eagerRoof} ours={row.oursRoof} />}
      </td>
      <td class="n">{format.about(format.ratio(target.ceiling), row.rough)}</td>
      <td class="kforge-cut" title={row.state}>
        {row.installed === true && <span class="kforge-good">replaced, </span>}
        {row.state}
      </td>
    </tr>
  );
}

function Speedup({ row }: { row: TargetRow }): JSX.Element {
  if (row.best === null) return <span class="kforge-num">{format.NONE}</span>;
  const compared = { ...row.best, ratio: row.best.speedup };
  const { figure, spread } = claims.figures(compared);
  const won = claims.shown(compared) === "faster" && !row.unconfirmed;
  return (
    <>
      <span class={won ? "kforge-num kforge-good" : "kforge-num"}>{figure}</span>{" "}
      <span class="kforge-note">
        {spread}
        {row.unconfirmed && ", not confirmed"}
      </span>
    </>
  );
}

function roof({ eagerRoof, oursRoof }: TargetRow): string {
  const part = oursRoof ?? eagerRoof;
  return part === null ? format.NONE : `${(part * 100).toFixed(0)}%`;
}
