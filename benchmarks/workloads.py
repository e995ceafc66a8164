"""Recorded shares of four models' non-vendor targets, and synthetic runs of the search on them.

Two records of each model: the paper of Kernel Forge (GB10, 50 iterations for every operation: share
of runtime and the speed-up it reached, where it tells both), and a first profile of our own (H200,
eager: share of device time by operator). The paper leaves a part of the time unnamed; it is split
among targets of which two of twelve can be made faster, as in its count of 13 of 24.

What a record does not say is drawn from the seed: what the search could reach, how hard it is, and
the head-room that a profile would show, which promises more than can be reached.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from benchmarks.landscapes import Landscape, Point, chance

__all__ = ["WORKLOADS", "Operation", "SyntheticTarget", "Workload", "draw_targets"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One non-vendor target: its share of the time and, where recorded, the speed-up reached."""

    name: str
    share: float
    reached: float | None = None
    chance: float = 13 / 24
    """That it can be made faster at all, where no speed-up is recorded."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, where the figures are from, and its non-vendor targets."""

    model: str
    source: str
    operations: tuple[Operation, ...]


def _unnamed(share: float) -> tuple[Operation, ...]:
    """The time that the paper's table leaves unnamed, as four targets of falling size."""
    parts = (0.5, 0.25, 0.15, 0.1)
    return tuple(
        Operation(f"unnamed {i}", share * part, chance=2 / 12) for i, part in enumerate(parts)
    )


WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "ResNet-50",
        "paper",
        (
            Operation("batch_norm", 0.1929, 0.992),  # what the others leave
            Operation("add", 0.1371, 1.257),
            Operation("relu", 0.1190, 1.004),
            Operation("max_pool", 0.0163, 1.212),
            Operation("adaptive_avg_pool", 0.0012, 1.515),
        ),
    ),
    Workload(
        "ResNet-50",
        "profile",
        (Operation("batch_norm", 0.33), Operation("relu", 0.08), Operation("add", 0.07)),
    ),
    Workload(
        "SD3.5 Medium",
        "paper",
        (
            Operation("group_norm", 0.0572, 1.699),
            Operation("layer_norm", 0.0476, 1.049),
            Operation("silu", 0.0019, 1.052),
            *_unnamed(0.0881),
        ),
    ),
    Workload(
        "SD3.5 Medium",
        "profile",
        (
            Operation("mul", 0.16),
            Operation("copy", 0.08),
            Operation("cat", 0.07),
            Operation("mean", 0.06),
            Operation("add", 0.05),
            Operation("pow", 0.025),
        ),
    ),
    Workload("Gemma 4 E2B", "paper", (Operation("softmax", 0.0593, 2.827), *_unnamed(0.0394))),
    Workload(
        "Gemma 4 E2B",
        "profile",
        (
            Operation("copy", 0.20),
            Operation("mul", 0.20),
            Operation("add", 0.07),
            Operation("softmax", 0.07, 3.2),
            Operation("mean", 0.06),
            Operation("pow", 0.05),
        ),
    ),
    Workload(
        "Qwen 3.5",
        "paper",
        (
            Operation("softmax", 0.0019, 1.544),
            Operation("conv1d", 0.0040, 1.292),
            *_unnamed(0.0579),
        ),
    ),
    Workload("Qwen 3.5", "profile", (Operation("copy", 0.20), Operation("mul", 0.13))),
)


@dataclass(frozen=True, slots=True)
class SyntheticTarget:
    """A target of one seed: what can be reached (1 and above), and what a profile promises."""

    index: int
    operation: Operation
    reachable: float
    headroom: float
    landscape: Landscape


def draw_targets(workload: Workload, seed: int) -> list[SyntheticTarget]:
    """The targets of a workload, with what no record says drawn from the seed."""
    return [
        _draw(index, operation, f"{seed}/{workload.model}/{workload.source}/{index}")
        for index, operation in enumerate(workload.operations)
    ]


def _draw(index: int, operation: Operation, place: str) -> SyntheticTarget:
    rng = random.Random(place)
    reachable = operation.reached
    if reachable is None:
        could = rng.random() < operation.chance
        reachable = math.exp(min(rng.lognormvariate(-1.2, 0.8), 1.5)) if could else 1.0
    reachable = max(reachable, 1.0)
    promise = math.exp(abs(rng.gauss(0.25, 0.25)))
    landscape = _ladder(rng.randrange(2**31), reachable, rng.uniform(0.15, 0.45), rng.random())
    return SyntheticTarget(index, operation, reachable, reachable * promise, landscape)


def _ladder(seed: int, reachable: float, ease: float, trouble: float) -> Landscape:
    """Drafts that start below eager, and moves that close a part of what is left, or lose a little.

    ``ease`` is the chance that a move helps, ``trouble`` says how many candidates fail: one in ten
    to one in two. The paper's zero-shot kernels ran at 0.5 to 0.9 of eager's speed.
    """
    top = math.log(reachable)
    failing = 0.1 + 0.4 * trouble

    def truth(point: Point) -> float | None:
        repaired = point[-1][1] < 0
        if chance(seed, "fails", point) < failing * (0.5 if repaired else 1.0):
            return None
        value = math.log(0.5 + 0.4 * chance(seed, "draft", point[0]))
        for depth in range(2, len(point) + 1):
            part = chance(seed, "part", point[:depth])
            if chance(seed, "helps", point[:depth]) < ease:
                value += (top - value) * (0.2 + 0.4 * part)
            else:
                value -= 0.2 * part
        return math.exp(value)

    return Landscape("ladder", seed, 4, 4, reachable, truth, noise=0.01)
