"""The built-in proposer: hand-written kernel families and the generator, needing no key.

Which families are asked goes by the target's device: those for the CPU write C++, those for CUDA
write device code. A draft is the best guess of a family that knows the target: tuned families
first, the generator last. Optimising changes one parameter of the parent; repairing goes back
towards what is safest. The same request always gets the same answer.
"""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.recipes.family import (
    Explains,
    Family,
    Match,
    Params,
    default_params,
)
from kforge_nb.proposers.protocol import Attempt, Refusal, Request

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["RecipeProposer"]

MAX_REPAIRS = 4
MAX_MIXED_DRAFTS = 12
_TRIES = 60
_KEPT_TARGETS = 256
_DEVICES = ("cpu", "cuda")

Known = tuple[Family, Match]


class RecipeProposer:
    """Proposes candidates from recipe families.

    Args:
        families: in the order in which they are asked, for targets of every device; if not given,
            the tuned families and the generator of the target's device.
    """

    name = "recipes"

    def __init__(self, families: Iterable[Family] | None = None) -> None:
        self._families = tuple(families) if families is not None else None
        self._known: OrderedDict[tuple[str, str], list[Known]] = OrderedDict()

    def supports(self, target: Target) -> str | None:
        """None if a recipe knows the target, else the reason in words."""
        problem = _unfit(target)
        if problem:
            return problem
        if self._matches(target):
            return None
        reasons = [f.why_not(target) for f in self._asked(target) if isinstance(f, Explains)]
        reason = next((r for r in reasons if r), "no family knows it")
        return f"no recipe for {target.name} on {target.device}: {reason}"

    def propose(self, request: Request) -> Candidate | Refusal:
        """A candidate for the request; a Refusal when nothing untried is left."""
        known = self._matches(request.target)
        if not known:
            return Refusal(self.supports(request.target) or "no recipe for this target")
        if request.action in ("draft", "restart") or request.parent is None:
            found = _first_new(_drafts(known, request), request)
            return found or Refusal("every family and a dozen mixtures have been drafted")
        return _next_to_parent(known, request, request.parent)

    def _matches(self, target: Target) -> list[Known]:
        """The families that know the target, kept for the last few hundred targets."""
        key = (target.fingerprint, target.device)
        found = self._known.get(key)
        if found is None:
            asked = () if _unfit(target) else self._asked(target)
            matches = [(family, family.match(target)) for family in asked]
            found = [(family, match) for family, match in matches if match is not None]
            self._known[key] = found
            while len(self._known) > _KEPT_TARGETS:
                self._known.popitem(last=False)
        return found

    def _asked(self, target: Target) -> tuple[Family, ...]:
        """The families for the target's device, the generator last."""
        if self._families is not None:
            return self._families
        return _cuda_families() if target.device.startswith("cuda") else _cpu_families()


@lru_cache(maxsize=1)
def _cpu_families() -> tuple[Family, ...]:
    from kforge_nb.candidates.recipes.families import tuned_families
    from kforge_nb.candidates.recipes.generator import GENERATOR

    return (*tuned_families(), GENERATOR)


@lru_cache(maxsize=1)
def _cuda_families() -> tuple[Family, ...]:
    from kforge_nb.candidates.recipes.cuda import cuda_families

    return cuda_families()


def _unfit(target: Target) -> str | None:
    """Why no recipe can be asked at all: where the target's tensors are."""
    devices = list(dict.fromkeys(spec.device for spec in (*target.outputs, *target.inputs)))
    if len(devices) > 1:
        return f"a recipe works on one device; this target's tensors are on {', '.join(devices)}"
    if not target.device.startswith(_DEVICES):
        return f"the recipes write C++ and CUDA; this target is on {target.device}"
    return None


def _drafts(known: list[Known], request: Request) -> Iterator[Candidate]:
    """Best guesses in order of the families, then mixtures of their parameters."""
    for family, match in known:
        yield family.emit(match, default_params(family, match))
    if len(request.siblings) >= len(known) + MAX_MIXED_DRAFTS:
        return
    chance = random.Random(f"draft {request.target.fingerprint} {request.seed}")  # noqa: S311
    for _ in range(_TRIES):
        family, match = chance.choice(known)
        values = family.parameters(match)
        yield family.emit(match, {name: chance.choice(options) for name, options in values.items()})


def _next_to_parent(known: list[Known], request: Request, parent: Attempt) -> Candidate | Refusal:
    origin = parent.candidate.origin
    if origin.get("proposer") != "recipes":
        return Refusal("the parent was not written by a recipe, so it has no parameters to change")
    found = next((pair for pair in known if pair[0].name == origin.get("recipe")), None)
    if found is None:
        return Refusal(f"there is no recipe {origin.get('recipe')!r} for this target any more")
    family, match = found
    if request.action == "repair" and len(request.siblings) >= MAX_REPAIRS:
        return Refusal(f"{MAX_REPAIRS} repairs of this candidate have failed")
    values = family.parameters(match)
    given = origin.get("params", {})
    current = {name: given.get(name, options[0]) for name, options in values.items()}
    moves = _moves(values, current, request)
    new = _first_new((family.emit(match, params) for params in moves), request)
    return new or Refusal("every single change of a parameter has been tried from here")


def _moves(values: dict[str, list[Any]], current: Params, request: Request) -> list[Params]:
    """Parameter sets one change away from ``current``, most promising first.

    A parameter comes earlier the less often the siblings have changed it in vain and the earlier
    its family names it; a repair begins with going back to the best guesses.
    """
    chance = random.Random(f"move {request.target.fingerprint} {request.seed}")  # noqa: S311
    changed = _in_vain(request, current)
    ranked = []
    for place, (name, options) in enumerate(values.items()):
        for position, value in enumerate(options):
            if _same(value, current[name]):
                continue
            back = request.action == "repair" and position == 0
            rank = (not back, changed.get(name, 0), place, position, chance.random())
            ranked.append((rank, {**current, name: value}))
    return [params for _, params in sorted(ranked, key=lambda entry: entry[0])]


def _in_vain(request: Request, current: Params) -> dict[str, int]:
    """How often siblings changed each parameter without a gain, less how often with one."""
    before = (request.parent.evaluation.speedup if request.parent else None) or 0.0
    counts: dict[str, int] = {}
    for attempt in request.siblings:
        params = attempt.candidate.origin.get("params", {})
        gained = attempt.evaluation.correct and (attempt.evaluation.speedup or 0.0) > before
        for name, value in current.items():
            if name in params and not _same(params[name], value):
                counts[name] = counts.get(name, 0) + (-1 if gained else 1)
    return counts


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _first_new(candidates: Iterable[Candidate], request: Request) -> Candidate | None:
    """The first candidate whose source and plan have not been judged for this target."""
    tried = {*request.tried, *(attempt.candidate.digest for attempt in request.siblings)}
    if request.parent is not None:
        tried.add(request.parent.candidate.digest)
    return next((c for c in candidates if c.digest not in tried), None)
