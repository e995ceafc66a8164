"""Was it worth it: the gain against what it cost, and what equal budgets would have spent.

Pure functions of the run document. The browser has its twin, ``labextension/src/view/worth.ts``; a
test holds both to one set of figures.

*Cost* is what was spent by the time a candidate was judged, in four units: candidates, calls of a
language model, US dollars, and seconds. A second counts once however many candidates are under
way, and time in which nothing was (pauses, nights between sessions) is left out: the gap before a
candidate counts for no more than the candidate itself took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from kforge_nb.view.facts import Document, estimate

__all__ = ["REACH", "Spot", "Uniform", "curve", "uniform"]

REACH = 0.99
"""The part of the saved time from which a result counts as the same one."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Spot:
    """The gain reached (a speed-up) when so much had been spent; ``calls`` of a language model."""

    judged: float
    calls: float
    usd: float
    seconds: float
    gain: float


@dataclass(frozen=True, slots=True)
class Uniform:
    """What equal budgets would have spent for the result of a run: an estimate.

    ``rounds`` candidates for each of ``targets`` targets reach it at ``spent``; this run reached
    it at ``ours``. ``spots`` is their way there, one a round.
    """

    rounds: int
    targets: int
    spent: Spot
    ours: Spot
    spots: tuple[Spot, ...]


@dataclass(frozen=True, slots=True)
class _Try:
    """One judged candidate with its price, and the time at which it was judged."""

    target: int
    created: str
    speedup: float
    calls: float
    usd: float
    seconds: float


def curve(document: Document, target: int | None = None) -> list[Spot]:
    """Best gain so far against cost, from nothing spent to all that was.

    For the whole model the gain is the one *expected* of the best accepted candidates (Amdahl over
    the shares); for one ``target`` it is their speed-up alone, against what that target cost. One
    spot a judged candidate, in order, and one at the end where more was spent after the last.
    """
    tries = [t for t in _tries(document) if target is None or t.target == target]
    costs = _sorted(c for c in document["costs"] if target is None or c["target"] == target)
    return _curve(document, tries, costs, target)


def _curve(
    document: Document, tries: Sequence[_Try], costs: Sequence[Row], target: int | None
) -> list[Spot]:
    """The curve through these candidates and costs, both in order of time."""
    best: dict[int, float] = {}
    spots = [Spot(0, 0, 0.0, 0.0, 1.0)]
    calls, usd, seconds, paid = 0, 0.0, 0.0, 0
    for judged, one in enumerate(tries, start=1):
        while paid < len(costs) and costs[paid]["created"] <= one.created:
            calls, usd = calls + costs[paid]["calls"], usd + (costs[paid]["usd"] or 0.0)
            paid += 1
        seconds += one.seconds
        gain = spots[-1].gain
        if one.speedup > best.get(one.target, 1.0):
            best[one.target] = one.speedup
            gain = _gain(document, best) if target is None else one.speedup
        spots.append(Spot(judged, calls, usd, seconds, gain))
    if paid < len(costs):
        calls += sum(c["calls"] for c in costs[paid:])
        usd += sum(c["usd"] or 0.0 for c in costs[paid:])
        spots.append(Spot(len(tries), calls, usd, seconds, spots[-1].gain))
    return spots


def uniform(document: Document) -> Uniform | None:
    """What the same number of candidates for every target would have spent for the same result.

    The run's own candidates are played again, in rounds: in round ``k`` every target that was
    taken for search gets its ``k``-th recorded candidate, at the price recorded for it. Where a
    target has no more of them (the run gave it up, or never tried it), the candidate of that round
    costs what its candidates cost on average (the run's, where it has none) and brings nothing.
    The result counts as the same from 99% of the time saved, for this run too. It is an estimate:
    what further candidates would have found on a target that was given up, nobody knows.

    None where nothing was gained, or fewer than two targets shared the budget.
    """
    indices = [t["index"] for t in document["targets"] if t["state"] != "skipped"]
    tries = _tries(document)
    lists: dict[int, list[_Try]] = {index: [] for index in indices}
    for one in tries:
        if one.target in lists:
            lists[one.target].append(one)
    ours = _curve(document, tries, _sorted(document["costs"]), None)
    if len(indices) < 2 or ours[-1].gain <= 1.0:
        return None
    wanted = 1.0 / (1.0 - REACH * (1.0 - 1.0 / ours[-1].gain))
    spots = _rounds(document, list(lists.values()), wanted)
    reached = next(spot for spot in ours if spot.gain >= wanted)
    return Uniform(len(spots) - 1, len(indices), spots[-1], reached, tuple(spots))


def _rounds(document: Document, lists: Sequence[Sequence[_Try]], wanted: float) -> list[Spot]:
    """A candidate of each list a round, until the gain is reached or there are no more of them.

    What a round costs for targets that have none left is summed up as each one runs out, so that
    the work grows with the candidates and not with rounds times targets.
    """
    best: dict[int, float] = {}
    spots = [Spot(0, 0, 0.0, 0.0, 1.0)]
    searched = _mean([one for mine in lists for one in mine])
    missing = (0.0, 0.0, 0.0)
    for _ in range(sum(not mine for mine in lists)):
        missing = _plus(missing, searched)
    left = [mine for mine in lists if mine]
    while spots[-1].gain < wanted and left:
        done = len(spots)
        sums = _plus(astuple(spots[-1])[1:4], missing)
        better = False
        for one in (mine[done - 1] for mine in left):
            sums = _plus(sums, _price(one))
            if one.speedup > best.get(one.target, 1.0):
                best[one.target] = one.speedup
                better = True
        for mine in left:
            if len(mine) == done:
                missing = _plus(missing, _mean(mine))
        left = [mine for mine in left if len(mine) > done]
        gain = _gain(document, best) if better else spots[-1].gain
        spots.append(Spot(len(lists) * done, *sums, gain))
    return spots


Price = tuple[float, float, float]


def _price(one: _Try) -> Price:
    return one.calls, one.usd, one.seconds


def _plus(a: Price, b: Price) -> Price:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _mean(tries: Sequence[_Try]) -> Price:
    """Calls, dollars and seconds that one of these cost on average; nothing where there is none."""
    sums = (0.0, 0.0, 0.0)
    for one in tries:
        sums = _plus(sums, _price(one))
    calls, usd, seconds = (part / max(1, len(tries)) for part in sums)
    return calls, usd, seconds


def _tries(document: Document) -> list[_Try]:
    """The judged candidates in order of time, each with its own calls and its part of the rest.

    Calls that came to no judged candidate of their target count for all of its candidates alike.
    """
    nodes = _sorted(document["nodes"])
    known = {node["id"] for node in nodes}
    own: dict[Any, list[float]] = {}
    for cost in document["costs"]:
        key = cost["node"] if cost["node"] in known else cost["target"]
        sums = own.setdefault(key, [0.0, 0.0])
        sums[0] += cost["calls"]
        sums[1] += cost["usd"] or 0.0
    counts: dict[int, int] = {}
    for node in nodes:
        counts[node["target"]] = counts.get(node["target"], 0) + 1
    times = [_seconds(document["created"]), *(_seconds(node["created"]) for node in nodes)]
    found = []
    for node, (before, then) in zip(nodes, pairwise(times), strict=True):
        target, took = node["target"], node["seconds"]
        mine, rest = own.get(node["id"], (0.0, 0.0)), own.get(target, (0.0, 0.0))
        calls, usd = (m + r / counts[target] for m, r in zip(mine, rest, strict=True))
        gap = max(0.0, then - before)
        seconds = gap if took is None else min(gap, took)
        speedup = (node["speedup"] or 0.0) if node["verdict"] == "accepted" else 0.0
        found.append(_Try(target, node["created"], speedup, calls, usd, seconds))
    return found


def _gain(document: Document, best: Mapping[int, float]) -> float:
    return estimate(document["targets"], best) or 1.0


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: str(row["created"]))


def _seconds(when: str) -> float:
    return datetime.fromisoformat(when).timestamp()
