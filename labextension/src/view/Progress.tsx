/** How far the run is and what it is doing now, with the buttons that hold or end it. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { RunSource } from "../source";
import { Buttons } from "./Buttons";
import * as claims from "./claims";
import { running } from "./derive";
import type { RunDocument, Target } from "./document";
import * as format from "./format";

interface Props {
  document: RunDocument;
  source: RunSource;
}

export function Progress({ document, source }: Props): JSX.Element {
  const { budget, judged, paused, stopping = false } = document.progress;
  const live = running(document);
  const saved = live && source.stop === undefined;
  return (
    <div class="kforge-progress">
      <div
        class={`kforge-bar${paused ? " held" : ""}`}
        role="progressbar"
        aria-label="Candidates judged"
        aria-valuemin={0}
        aria-valuenow={judged}
        {...(budget === null ? {} : { "aria-valuemax": budget })}
      >
        <i style={{ width: `${fraction(document) * 100}%` }} />
      </div>
      <div class="kforge-now">
        <div class="kforge-state">
          {saved ? <Saved document={document} /> : live ? <Now document={document} /> : <Ended document={document} />}
        </div>
        <span class="kforge-hidden" role="status" aria-live="polite">
          Run {document.name}: {saved && "when this was saved, "}
          {stopping ? "stopping" : paused && live ? "paused" : claims.doing(document)}
        </span>
        {live && <Buttons source={source} paused={paused} stopping={stopping} what="the run" />}
      </div>
      {!live && <GoesOn document={document} />}
      {live && source.stop && !stopping && <StopNow document={document} />}
      {live && source.stop && <AtWork document={document} source={source} />}
    </div>
  );
}

function Ended({ document }: { document: RunDocument }): JSX.Element {
  return (
    <>
      <b>{document.state}</b>
      {document.state_reason !== "" && ` · ${document.state_reason}`}
    </>
  );
}

/** How to go on with a run that ended early; no button can, since it needs the model. */
function GoesOn({ document: { name, state, state_reason: reason } }: { document: RunDocument }): JSX.Element | null {
  if (!["stopped", "interrupted"].includes(state) || reason.includes("kforge resume")) return null;
  return (
    <div class="kforge-note kforge-goeson">
      In its notebook, <code>%kforge resume {name}</code> goes on from here.
    </div>
  );
}

/** What Stop means once the search is over: the guard has nothing to decide by, and decides nothing. */
function StopNow({ document }: { document: RunDocument }): JSX.Element | null {
  if (claims.doing(document) === document.state) return null;
  return (
    <div class="kforge-note kforge-goeson">
      No limit of the search covers this. Stop ends the run before anything is decided; what was found is kept, and{" "}
      <code>%kforge resume {document.name}</code> goes on from here.
    </div>
  );
}

/** How far a run was that is not followed here: nobody knows what it is doing now. */
function Saved({ document }: { document: RunDocument }): JSX.Element {
  return (
    <>
      when this was saved: <b>{activity(document)}</b>
      {judgedOf(document)}
    </>
  );
}

function activity(document: RunDocument): string {
  const { progress, state } = document;
  if (progress.stopping || progress.paused) return progress.stopping ? "stopping…" : "paused";
  const now = claims.doing(document);
  return now === state ? progress.phase || now : now;
}

function judgedOf({ progress: { judged, budget } }: RunDocument): string {
  return ` · ${judged}${budget === null ? "" : ` of ${budget}`} judged`;
}

/** The phase, how much of it is left, and what happened last. */
function Now({ document }: { document: RunDocument }): JSX.Element {
  const { eta_s: eta, paused, message, phase } = document.progress;
  const since = useSeconds(document);
  const speed = document.progress.calls.reduce((sum, call) => sum + (call.tokens_per_s ?? 0), 0);
  const left = eta === null ? null : paused ? eta : Math.max(0, eta - since);
  return (
    <>
      <b>{activity(document)}</b>
      {judgedOf(document)}
      {left !== null && ` · ${format.clock(left)} left`}
      {speed > 0 && ` · ${speed.toFixed(0)} tokens a second`}
      {message !== "" && message !== phase && message !== "paused" && (
        <span class="kforge-note"> · {message}</span>
      )}
      <Judging document={document} since={since} />
    </>
  );
}

function Judging({ document, since }: { document: RunDocument; since: number }): JSX.Element | null {
  const judging = document.progress.judging ?? [];
  if (judging.length === 0) return null;
  return (
    <div class="kforge-note">
      judging{" "}
      {judging.map((one, i) => (
        <span key={one.node}>
          {i > 0 && ", "}
          <b>{one.node}</b> {one.title} ({format.clock((one.seconds ?? 0) + since)})
        </span>
      ))}
    </div>
  );
}

/** The targets that are not done, each with its own Pause and Stop. */
function AtWork({ document, source }: Props): JSX.Element | null {
  const open = document.targets.filter(atWork);
  if (open.length === 0) return null;
  const held = open.filter((target) => target.paused === true).length;
  return (
    <details class="kforge-atwork">
      <summary>
        {format.count(open.length, "target")} at work{held > 0 && `, ${held} paused`}
      </summary>
      <table>
        <thead>
          <tr>
            <th scope="col">target</th>
            <th scope="col">now</th>
            <th scope="col" class="n">judged</th>
            <th scope="col" class="n">best</th>
            <th scope="col">
              <span class="kforge-hidden">hold or end it</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {open.map((target) => (
            <Row key={target.index} target={target} document={document} source={source} />
          ))}
        </tbody>
      </table>
    </details>
  );
}

function Row({ target, document, source }: Props & { target: Target }): JSX.Element {
  const nodes = document.nodes.filter((node) => node.target === target.index);
  const best = nodes.find((node) => node.id === target.best);
  return (
    <tr>
      <th scope="row">
        {target.index} {target.name}
      </th>
      <td>{doing(target, document)}</td>
      <td class="n">{nodes.length}</td>
      <td class="n">{format.ratio(best?.speedup)}</td>
      <td>
        <Buttons
          source={source}
          paused={target.paused === true}
          stopping={target.stopping === true}
          what={`target ${target.index}`}
          target={target.index}
        />
      </td>
    </tr>
  );
}

/** Whether a target may still get candidates. */
function atWork(target: Target): boolean {
  return target.state === "waiting" || target.state === "searching" || target.state === "stopped";
}

/** What happens to a target right now, in a few words. */
function doing(target: Target, document: RunDocument): string {
  const judging = (document.progress.judging ?? []).filter((one) => one.target === target.index);
  const asked = document.progress.calls.filter((call) => call.target === target.index);
  const idle = judging.length + asked.length === 0;
  const stopping = idle && document.progress.paused ? "ends when the run goes on" : "stopping…";
  const parts = [
    ...(target.stopping === true ? [stopping] : target.paused === true ? ["paused"] : []),
    ...(judging.length > 0 ? [`judging ${judging.map((one) => one.node).join(", ")}`] : []),
    ...(asked.length > 0 ? [`${format.count(asked.length, "answer")} under way`] : []),
  ];
  return parts.join(", ") || target.state;
}

/** How far the run is: by budget or by time, whichever ends it sooner. */
function fraction(document: RunDocument): number {
  if (!running(document)) return 1;
  const { judged, budget, seconds, time_limit: limit } = document.progress;
  const byBudget = budget === null || budget === 0 ? 0 : judged / budget;
  const byTime = limit === null || limit === 0 || seconds === null ? 0 : seconds / limit;
  return Math.min(1, Math.max(byBudget, byTime));
}

/** Whole seconds since this snapshot came. */
function useSeconds(document: RunDocument): number {
  const [seconds, setSeconds] = useState(0);
  useEffect(() => {
    setSeconds(0);
    const timer = setInterval(() => setSeconds((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, [document]);
  return seconds;
}
