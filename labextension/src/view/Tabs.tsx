/** Tabs as the web knows them: arrow keys move between names, one panel is in the page. */
import type { JSX } from "preact";
import { useId, useRef } from "preact/hooks";

export interface Tab {
  id: string;
  name: string;
  show: () => JSX.Element;
}

interface Props {
  label: string;
  tabs: readonly Tab[];
  chosen: string;
  onChoose: (id: string) => void;
}

export function Tabs({ label, tabs, chosen, onChoose }: Props): JSX.Element {
  const id = useId();
  const row = useRef<HTMLDivElement>(null);
  const now = tabs.find((tab) => tab.id === chosen) ?? tabs[0];
  const press = (event: KeyboardEvent): void => {
    const at = tabs.findIndex((tab) => tab.id === now?.id);
    const steps: Record<string, number> = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 };
    const to = steps[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const place = (to + tabs.length) % tabs.length;
    onChoose(tabs[place]?.id ?? chosen);
    row.current?.querySelectorAll<HTMLElement>('[role="tab"]')[place]?.focus();
  };
  return (
    <>
      <div class="kforge-tabs" role="tablist" aria-label={label} ref={row} onKeyDown={press}>
        {tabs.map((tab) => (
          <button
            key={tab.id}
            type="button"
            role="tab"
            id={`${id}-${tab.id}`}
            aria-selected={tab === now}
            aria-controls={`${id}-panel`}
            tabIndex={tab === now ? 0 : -1}
            onClick={() => onChoose(tab.id)}
          >
            {tab.name}
          </button>
        ))}
      </div>
      <div class="kforge-tabpanel" role="tabpanel" id={`${id}-panel`} aria-labelledby={`${id}-${now?.id ?? ""}`}>
        {now?.show()}
      </div>
    </>
  );
}
