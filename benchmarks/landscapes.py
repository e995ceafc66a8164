"""Synthetic kernel landscapes whose optimum is known, for judging search policies without kernels.

A candidate is a point: how its draft was written, and the moves since. A landscape says what a
point's true speed-up is, or that it fails; all of it is a pure function of a seed, so a search can
be repeated. How many families and moves there are is drawn from the seed as well, so that no policy
can be fitted to one size.

They were fixed before the search was tuned on them; see docs/decisions/019.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict
from kforge_nb.proposers.protocol import Action

__all__ = ["LANDSCAPES", "Landscape", "Point", "chance", "evaluation"]

Step = tuple[int, int]
"""What was done (family or move), and the how-manieth attempt at it this was."""
Point = tuple[Step, ...]
"""The family of the draft, then moves."""

_ATTEMPTS = 10**6
_DRAFT_MOVES = 3  # a draft comes with 0, 1 or 2 moves of its own


@dataclass(frozen=True, slots=True)
class Landscape:
    """``truth`` gives a point's speed-up, None for a failure; ``noise`` is that of its timing.

    ``noise`` is the standard deviation of the logarithm of a measured time. ``optimum`` is the
    largest speed-up there is.
    """

    name: str
    seed: int
    families: int
    moves: int
    optimum: float
    truth: Callable[[Point], float | None]
    noise: float = 0.0

    def step(self, parent: Point | None, action: Action, rng: random.Random) -> Point:
        """A new point, as a proposer that knows nothing would make it."""
        attempt = rng.randrange(_ATTEMPTS)
        if parent is None:
            own = [(rng.randrange(self.moves), attempt) for _ in range(rng.randrange(_DRAFT_MOVES))]
            return ((rng.randrange(self.families), attempt), *own)
        if action == "repair":  # the same idea, tried again
            return (*parent[:-1], (parent[-1][0], -1 - attempt))
        return (*parent, (rng.randrange(self.moves), attempt))

    def measure(self, point: Point, number: int) -> Evaluation:
        """What the judge would say of a point, the ``number``-th of its search."""
        true = self.truth(point)
        if true is None:
            return evaluation(None)
        noise = random.Random(f"{self.seed}/{number}/{point}").gauss(0.0, self.noise)
        return evaluation(true * math.exp(noise))


def evaluation(speedup: float | None, verdict: Verdict | None = None) -> Evaluation:
    """An evaluation with this speed-up over an eager call of 100 µs; None for a failure."""
    if speedup is None:
        return Evaluation(verdict or Verdict.COMPILE_FAILED, "does not compile")
    timing = Comparison("eager", speedup, speedup * 0.98, speedup * 1.02, 15, 100 / speedup, 100)
    word = verdict or (Verdict.ACCEPTED if speedup > 1.02 else Verdict.SLOWER)
    return Evaluation(word, f"{speedup:.2f}x", timings=(timing,))


def chance(seed: int, *what: object) -> float:
    """A number in [0, 1) that depends on the arguments alone."""
    return int(hashlib.sha256(repr((seed, what)).encode()).hexdigest()[:12], 16) / 16**12


def deep_good_parent(seed: int) -> Landscape:
    """Families look alike at first; in one of them a path whose every step gains leads to 8x."""
    families, moves = _sizes(seed)
    good = int(chance(seed, "family") * families)

    def truth(point: Point) -> float:
        gain = 1.0 + 0.2 * chance(seed, "base", point[0])
        for depth, step in enumerate(point[1:]):
            right = point[0][0] == good and step[0] == int(chance(seed, "move", depth) * moves)
            gain *= 1.25 if right else 0.85 + 0.1 * chance(seed, "step", point[: depth + 2])
        return min(gain, 8.0)

    return Landscape("deep good parent", seed, families, moves, 8.0, truth)


def deceptive(seed: int) -> Landscape:
    """The families that start best end at 2x; the one that starts at 0.8x ends at 6x."""
    families, moves = _sizes(seed)
    good = int(chance(seed, "family") * families)

    def truth(point: Point) -> float:
        steps = point[1:]
        if point[0][0] == good:
            right = sum(s[0] == int(chance(seed, "move", d) * moves) for d, s in enumerate(steps))
            return min(0.8 * 1.4**right * 0.97 ** (len(steps) - right), 6.0)
        top = 1.6 + 0.4 * chance(seed, "top", point[0][0])
        return top * (1 - 0.02 * chance(seed, "step", point))

    return Landscape("deceptive", seed, families, moves, 6.0, truth)


def flat(seed: int) -> Landscape:
    """Nothing is better than anything else, up to a percent."""
    families, moves = _sizes(seed)

    def truth(point: Point) -> float:
        return 1.1 * (1 + 0.01 * chance(seed, "point", point))

    return Landscape("flat", seed, families, moves, 1.1 * 1.01, truth)


def noisy_timing(seed: int) -> Landscape:
    """Twelve switches that each gain or lose some percent, read by a clock that errs by four."""
    families, _ = _sizes(seed)
    switches = 12
    gains = [math.log(0.93) + math.log(1.12 / 0.93) * chance(seed, "gain", m) for m in range(12)]
    bases = [math.log(1.0 + 0.3 * chance(seed, "base", f)) for f in range(families)]

    def truth(point: Point) -> float:
        return math.exp(bases[point[0][0]] + sum(gains[m] for m in {s[0] for s in point[1:]}))

    optimum = math.exp(max(bases) + sum(max(g, 0.0) for g in gains))
    return Landscape("noisy timing", seed, families, switches, optimum, truth, noise=0.04)


def mostly_failing(seed: int) -> Landscape:
    """Four of five candidates fail, two of three repairs; each step that works gains a fifth."""
    families, moves = _sizes(seed)

    def truth(point: Point) -> float | None:
        repaired = point[-1][1] < 0
        if chance(seed, "fails", point) < (0.65 if repaired else 0.8):
            return None
        return min(1.2 ** (len(point) - 1) * (1 + 0.3 * chance(seed, "point", point)), 4.0)

    return Landscape("mostly failing", seed, families, moves, 4.0, truth)


def _sizes(seed: int) -> tuple[int, int]:
    """Three to six families, three to five moves."""
    return 3 + int(4 * chance(seed, "families")), 3 + int(3 * chance(seed, "moves"))


LANDSCAPES: tuple[Callable[[int], Landscape], ...] = (
    deep_good_parent,
    deceptive,
    flat,
    noisy_timing,
    mostly_failing,
)
