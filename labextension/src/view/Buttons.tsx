/** Pause, Resume and Stop for the run or one target, from the click to the kernel's answer. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { RunSource } from "../source";
import { Button } from "./Button";

interface Props {
  source: RunSource;
  paused: boolean;
  stopping: boolean;
  /** What is held or ended, in words: `the run`, `target 3`. */
  what: string;
  target?: number;
}

type Command = "stop" | "pause" | "resume";

/** Seconds in which a kernel that is not busy with a cell has surely answered. */
const PATIENCE_MS = 8000;

export function Buttons({ source, paused, stopping, what, target }: Props): JSX.Element | null {
  const [asked, setAsked] = useState<Command | null>(null);
  const [late, setLate] = useState(false);
  const waits = asked !== null && !(asked === "stop" && stopping);
  useEffect(() => {
    setAsked(null);
    setLate(false);
  }, [paused, stopping]);
  useEffect(() => {
    if (!waits) return;
    const timer = setTimeout(() => setLate(true), PATIENCE_MS);
    return () => clearTimeout(timer);
  }, [waits, asked]);

  const press = (command: Command): void => {
    setAsked(command);
    setLate(false);
    source[command]?.(target);
  };
  const ends = stopping || asked === "stop";
  const hold: Command = paused ? "resume" : "pause";
  return (
    <span class="kforge-buttons">
      {late && (
        <span class="kforge-warn" role="status">
          No answer from the kernel: it is busy with a cell, or gone.
        </span>
      )}
      {source[hold] && (
        <Button
          aria-label={`${paused ? "Resume" : "Pause"} ${what}`}
          off={ends || (asked === hold && !late)}
          onClick={() => press(hold)}
        >
          {paused ? "Resume" : "Pause"}
        </Button>
      )}
      {source.stop && (
        <Button
          aria-label={ends ? `Stopping ${what}` : `Stop ${what}`}
          title={`End the search of ${what}; what it has found stays`}
          off={ends && !late}
          onClick={() => press("stop")}
        >
          {ends ? "Stopping…" : "Stop"}
        </Button>
      )}
    </span>
  );
}
