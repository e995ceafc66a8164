/** What did it cost and was it worth it: the gain against the cost, beside what equal budgets cost. */
import type { JSX } from "preact";
import { useId, useMemo, useState } from "preact/hooks";
import { CostChart } from "./CostChart";
import { Steps, TargetCosts } from "./CostTables";
import { running } from "./derive";
import type { RunDocument } from "./document";
import * as format from "./format";
import { amount, spoken } from "./spoken";
import { curve, total, type Total, type Uniform, uniform, type Unit, units } from "./worth";

interface Props {
  document: RunDocument;
  selected?: number | null;
  onSelect?: (index: number) => void;
}

export function Cost({ document, selected = null, onSelect }: Props): JSX.Element {
  const facts = useMemo(
    () => ({
      spots: curve(document),
      equal: uniform(document),
      all: total(document),
      units: units(document),
    }),
    [document],
  );
  const [chosen, setChosen] = useState<Unit | null>(null);
  const unit = chosen !== null && facts.units.includes(chosen) ? chosen : (facts.units[0] ?? "judged");
  if (facts.all.judged === 0 && facts.all.calls === 0) {
    return (
      <section>
        <h3>Cost and gain</h3>
        <p class="kforge-note">{running(document) ? "Nothing has been judged yet." : "Nothing was judged."}</p>
      </section>
    );
  }
  return (
    <section class="kforge-cost">
      <div class="kforge-cost-head">
        <h3>Cost and gain</h3>
        <Toggle units={facts.units} unit={unit} onChoose={setChosen} />
      </div>
      <p class="kforge-cost-sum">{spoken(facts.all)}</p>
      <div class="kforge-cost-whole">
        <div>
          <CostChart document={document} spots={facts.spots} equal={facts.equal} unit={unit} />
          <Steps document={document} spots={facts.spots} equal={facts.equal} />
        </div>
        <Equal equal={facts.equal} all={facts.all} unit={unit} />
      </div>
      <TargetCosts document={document} unit={unit} selected={selected} onSelect={onSelect} />
    </section>
  );
}

const NAMES: Record<Unit, string> = {
  usd: "dollars",
  calls: "calls",
  judged: "candidates",
  seconds: "time",
};

function Toggle(props: { units: Unit[]; unit: Unit; onChoose: (unit: Unit) => void }): JSX.Element {
  const name = useId();
  return (
    <fieldset class="kforge-toggle">
      <legend>against</legend>
      {props.units.map((unit) => (
        <label key={unit}>
          <input
            type="radio"
            name={name}
            checked={unit === props.unit}
            onChange={() => props.onChoose(unit)}
          />
          <span>{NAMES[unit]}</span>
        </label>
      ))}
    </fieldset>
  );
}

/** What this run and equal budgets spent for the same result, as two bars. */
function Equal(props: { equal: Uniform | null; all: Total; unit: Unit }): JSX.Element | null {
  const { equal, all, unit } = props;
  if (equal === null) return null;
  const [ours, theirs] = [equal.ours[unit], equal.spent[unit]];
  const most = Math.max(ours, theirs, 1e-12);
  return (
    <div class="kforge-equal">
      <h4>To reach {format.ratio(equal.ours.gain)} (99% of what was saved)</h4>
      <dl>
        <dt>this run</dt>
        <dd aria-hidden="true">
          <i style={{ width: `${(ours / most) * 100}%` }} />
        </dd>
        <dd>{amount(unit, ours)}</dd>
        <dt>equal budgets</dt>
        <dd aria-hidden="true">
          <i class="other" style={{ width: `${(theirs / most) * 100}%` }} />
        </dd>
        <dd>about {amount(unit, theirs)}</dd>
      </dl>
      <p class="kforge-note">
        An estimate from this run's own candidates: {equal.rounds} for each of {equal.targets} targets.
        Where a target has fewer, the rest cost its mean and bring nothing. In all this run spent{" "}
        {amount(unit, all[unit])}.
      </p>
    </div>
  );
}
