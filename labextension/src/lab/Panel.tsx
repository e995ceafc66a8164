/** The list of a folder's runs: each one a button that opens it. */
import type { TranslationBundle } from "@jupyterlab/translation";
import type { JSX, TargetedKeyboardEvent } from "preact";
import { megabytes } from "./bytes";
import type { Listing, Row } from "./listing";

interface Props {
  listing: Listing;
  trans: TranslationBundle;
  onOpen: (path: string) => void;
  onRefresh: () => void;
}

export function Panel({ listing, trans, onOpen, onRefresh }: Props): JSX.Element {
  const { rows, known, more, folder, problem } = listing;
  return (
    <div class="kforge-runs">
      <header>
        <h2>{trans.__("Runs of kforge")}</h2>
        <button type="button" onClick={onRefresh}>
          {trans.__("Refresh")}
        </button>
      </header>
      <p class="kforge-runs-folder">/{folder}</p>
      <p class="kforge-runs-count" role="status">
        {known ? counted(trans, rows.length, more) : trans.__("Reading the folder …")}
      </p>
      {problem !== "" && <p role="alert">{problem}</p>}
      {known && problem === "" && rows.length === 0 && <Empty trans={trans} />}
      <ul aria-label={trans.__("Runs of this folder")} onKeyDown={walk}>
        {rows.map((row) => (
          <li key={row.path}>
            <button type="button" class="kforge-runs-row" onClick={() => onOpen(row.path)}>
              <Told row={row} trans={trans} />
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}

function counted(trans: TranslationBundle, shown: number, more: number): string {
  const runs = trans._n("%1 run", "%1 runs", shown);
  return more === 0 ? runs : trans.__("The newest %1 of %2 runs", shown, shown + more);
}

const BY_MAGIC = "%kforge export run";
const BY_PYTHON = 'run.save("run.kforge.json")';

function Empty({ trans }: { trans: TranslationBundle }): JSX.Element {
  return (
    <div class="kforge-runs-empty">
      <p>{trans.__("This folder holds no saved run. Where the run of a notebook in it is called run (%kforge runs lists them), it is written with")}</p>
      <pre>{BY_MAGIC}</pre>
      <p>{trans.__("or, from Python,")}</p>
      <pre>{BY_PYTHON}</pre>
    </div>
  );
}

function Told({ row, trans }: { row: Row; trans: TranslationBundle }): JSX.Element {
  const { run, name } = row;
  const when = new Date(row.modified);
  return (
    <>
      <b>{name}</b>
      {run !== null && (
        <>
          <span>
            <span aria-hidden="true">{run.mark}</span> {run.state}
            {run.name !== name && ` · ${run.name}`}
          </span>
          {run.result !== "" && <span>{run.result}</span>}
          {run.subject !== "" && <span>{run.subject}</span>}
        </>
      )}
      {row.state === "reading" && <span>{trans.__("reading …")}</span>}
      {row.state === "large" && (
        <span>
          {trans.__("%1 MB, read when it is opened", megabytes(row.bytes ?? 0))}
        </span>
      )}
      {row.state === "problem" && (
        <span>
          <span aria-hidden="true">✕</span> {row.problem}
        </span>
      )}
      {!Number.isNaN(when.getTime()) && (
        <time dateTime={row.modified}>
          {minute(when)}
        </time>
      )}
    </>
  );
}

/** Local time as `%kforge runs` writes it: `2026-11-30 16:49`. */
function minute(when: Date): string {
  const two = (n: number): string => String(n).padStart(2, "0");
  const day = [when.getFullYear(), two(when.getMonth() + 1), two(when.getDate())].join("-");
  return `${day} ${two(when.getHours())}:${two(when.getMinutes())}`;
}

const STEPS: Record<string, (at: number, count: number) => number> = {
  ArrowDown: (at, count) => Math.min(at + 1, count - 1),
  ArrowUp: (at) => Math.max(at - 1, 0),
  Home: () => 0,
  End: (_, count) => count - 1,
};

/** Arrow keys move between the rows. */
function walk(event: TargetedKeyboardEvent<HTMLUListElement>): void {
  const step = STEPS[event.key];
  if (step === undefined) return;
  const rows = [...event.currentTarget.querySelectorAll<HTMLElement>(".kforge-runs-row")];
  const at = rows.indexOf(event.currentTarget.ownerDocument.activeElement as HTMLElement);
  event.preventDefault();
  rows[step(at, rows.length)]?.focus();
}
