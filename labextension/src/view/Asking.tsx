/** What a language model, or a person at a chat window, is being asked right now. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Prompt, RunSource } from "../source";
import { Button } from "./Button";
import type { Call, Target } from "./document";
import * as format from "./format";

interface CallsProps {
  calls: Call[];
  targets: Target[];
}

/** Answers that are arriving: one line each, with the tokens so far and how fast they come. */
export function Calls({ calls, targets }: CallsProps): JSX.Element | null {
  if (calls.length === 0) return null;
  const names = new Map(targets.map((target) => [target.index, target.name]));
  return (
    <section>
      <h3>Answers under way</h3>
      <ul class="kforge-calls">
        {calls.map((call) => (
          <li key={call.node}>
            <b>{call.node}</b> {call.model} for {call.target} {names.get(call.target)}:{" "}
            {call.tokens === 0 ? "no token yet" : `${call.tokens} tokens`}
            {call.tokens_per_s !== null && `, ${call.tokens_per_s.toFixed(0)} a second`}
            <span class="kforge-note"> · {format.clock(call.seconds)}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

interface PromptsProps {
  prompts: readonly Prompt[];
  source: RunSource;
}

/** Prompts to carry to a chat window, each with a box for the answer. */
export function Prompts({ prompts, source }: PromptsProps): JSX.Element | null {
  if (prompts.length === 0) return null;
  return (
    <section>
      <h3>{format.count(prompts.length, "prompt")} to paste into a chat window</h3>
      {prompts.map((prompt) => (
        <Question key={`${prompt.id} ${prompt.text.length}`} prompt={prompt} source={source} />
      ))}
    </section>
  );
}

function Question({ prompt, source }: { prompt: Prompt; source: RunSource }): JSX.Element {
  const [text, setText] = useState("");
  const [said, setSaid] = useState("");
  const copy = (): void => {
    void copied(prompt.text).then((done) =>
      setSaid(done ? "copied" : "not copied: select the text below"),
    );
  };
  const send = (): void => {
    source.answer?.(prompt.id, text);
    setText("");
    setSaid("answer sent");
  };
  return (
    <div class="kforge-prompt">
      <p>
        <b>{prompt.id}</b> {prompt.action} for {prompt.target} {prompt.name}{" "}
        <button type="button" onClick={copy}>
          Copy prompt {prompt.id}
        </button>{" "}
        <span class="kforge-note" role="status">
          {said}
        </span>
      </p>
      {prompt.note !== "" && <p class="kforge-warn">The last answer cannot be read: {prompt.note}</p>}
      <details>
        <summary>The prompt</summary>
        <pre class="kforge-code" tabIndex={0}>
          {prompt.text}
        </pre>
      </details>
      <textarea
        rows={4}
        aria-label={`Answer to prompt ${prompt.id}`}
        placeholder="The whole answer"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <Button off={text.trim() === ""} onClick={send}>
        Send answer {prompt.id}
      </Button>
    </div>
  );
}

/** Whether a text is in the clipboard now; pages without a secure context have none. */
async function copied(text: string): Promise<boolean> {
  const clipboard = (navigator as Partial<Navigator>).clipboard;
  if (clipboard === undefined) return false;
  return clipboard.writeText(text).then(
    () => true,
    () => false,
  );
}
