"""What a run would do, without doing it: targets, candidates, calls, and the most it could cost.

``--show-prompt`` adds the very text that a language model would be sent for each target first.
"""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kforge_nb.proposers.protocol import Request

if TYPE_CHECKING:
    from kforge_nb.options import OptimizeOptions
    from kforge_nb.profile.table import Profile
    from kforge_nb.run.choice import Choice
    from kforge_nb.targets.target import Target

__all__ = ["DryRun", "dry_run"]

ATTEMPTS = 3
"""Times that one call is made at most, where an endpoint fails."""

GROWTH = 20_000
"""Tokens by which a prompt may outgrow the first one beside its parent's source: what was tried,
what the compiler said."""

PROMPTLESS = (
    "--show-prompt has nothing to show: --proposer {} sends no prompts; openai and paste do "
    "(--proposer paste --dry-run --show-prompt shows them without a key)"
)


@dataclass(frozen=True, slots=True)
class DryRun:
    """What an optimize run would do: targets, and at most how many candidates, calls and dollars.

    ``usd`` respects ``--max-cost``; ``uncapped_usd`` is what it would be without. ``prompts`` are
    by target what would be sent first, where that was asked for; ``notes`` what was found while
    profiling.
    """

    rows: tuple[tuple[str, str, str], ...]
    candidates: int
    usd: float
    calls: int = 0
    uncapped_usd: float = 0.0
    model: str = ""
    prompts: tuple[tuple[int, str], ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        lines = [f"  {index:>4}  {name}: {reason}" for index, name, reason in self.rows]
        shown = [f"\nprompt for target {i}, first:\n{text}" for i, text in self.prompts]
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([self._headline(), *lines, *notes, *shown])

    def _repr_html_(self) -> str:
        cells = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        head = "<tr><th>target</th><th>name</th><th>what would happen</th></tr>"
        shown = "".join(
            f"<details><summary>prompt for target {i}, first</summary>"
            f"<pre style='white-space:pre-wrap'>{html.escape(text)}</pre></details>"
            for i, text in self.prompts
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        top = f"<p>{html.escape(self._headline())}</p>"
        return f"{top}<table>{head}{cells}</table>{notes}{shown}"

    def _headline(self) -> str:
        text = f"at most {self.candidates} candidates would be judged"
        if not self.model:
            return f"{text}, at no cost"
        text += f", with at most {self.calls} calls of {self.model}, for at most ${self.usd:.2f}"
        if self.uncapped_usd > self.usd:
            text += f" (--max-cost; without it the worst case is ${self.uncapped_usd:.2f})"
        return text


def dry_run(
    profiled: Profile, choices: list[Choice], options: OptimizeOptions, device: dict[str, Any]
) -> DryRun:
    """The plan of a run; nothing is searched, sent or written."""
    names = {row.index: row.name for row in profiled.rows}
    rows = tuple(
        (str(c.index), names[c.index], ("search: " if c.taken else "skip: ") + c.reason)
        for c in sorted(choices, key=lambda choice: choice.index)
    )
    taken = {c.index for c in choices if c.taken}
    notes = tuple(profiled.workload.notes)
    plain = DryRun(rows, options.budget if taken else 0, 0.0, notes=notes)
    if options.proposer not in ("openai", "paste"):
        told = (*notes, PROMPTLESS.format(options.proposer)) if options.show_prompt else notes
        return replace(plain, notes=told)
    found = {row.index: row for row in profiled.rows if row.index in taken}
    prompts = {
        index: _prompt(index, row.target, row.roofline_us, row.mean_us, device)
        for index, row in found.items()
    }
    if options.proposer == "openai" and prompts:
        plain = _priced(plain, prompts, options)
    if options.show_prompt:
        shown = tuple((i, _as_sent(p)) for i, p in prompts.items())
        plain = replace(plain, prompts=shown)
    return plain


def _prompt(
    index: int,
    target: Target,
    roofline_us: float | None,
    mean_us: float | None,
    device: dict[str, Any],
) -> Any:
    from kforge_nb.proposers.prompting import render

    return render(
        Request(
            target, "draft", device=device, roofline_us=roofline_us, index=index,
            baseline_us=mean_us,
        )
    )  # fmt: skip


def _as_sent(prompt: Any) -> str:
    """All messages with their roles, as they stand in the request."""
    return "\n\n".join(f"[{m['role']}]\n{m['content']}" for m in prompt.messages)


def _priced(plain: DryRun, prompts: dict[int, Any], options: OptimizeOptions) -> DryRun:
    """The worst case: every candidate needs its form mended, every attempt is lost and paid."""
    from kforge_nb.proposers.cost import Plan, price_of, tokens_bound, worst_case

    model = str(options.model)
    price = price_of(model, price_in=options.price_in, price_out=options.price_out)
    calls = 2 * options.budget
    plans = [
        Plan(index, calls, tokens_bound(_as_sent(prompt)) + options.max_tokens + GROWTH)
        for index, prompt in prompts.items()
    ]
    most = {"max_tokens": options.max_tokens, "attempts": ATTEMPTS, "budget": calls}
    free = worst_case(price, plans, **most)
    capped = worst_case(price, plans, **most, max_cost=options.max_cost)
    return replace(plain, usd=capped.usd, calls=capped.calls, uncapped_usd=free.usd, model=model)
