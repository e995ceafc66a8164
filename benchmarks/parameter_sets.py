"""Which parameter sets of a recipe are tried when its best is wanted without a tree search."""

from __future__ import annotations

from typing import Any

from kforge_nb.candidates.recipes.family import default_params

__all__ = ["mixtures", "single_changes"]


def single_changes(
    family: Any, match: Any, start: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """A set (the best guess), then every set that differs from it in one parameter."""
    start = start or default_params(family, match)
    values = family.parameters(match)
    changed = ({**start, name: v} for name, options in values.items() for v in options)
    return [start, *(params for params in changed if params != start)]


def mixtures(
    start: dict[str, Any], timed: list[tuple[float, dict[str, Any]]], us: float
) -> list[dict[str, Any]]:
    """Sets with several of the changes that gained, at most eight."""
    gains: dict[str, tuple[float, Any]] = {}
    for found, params in timed:
        for name, value in params.items():
            best = gains.get(name, (us * 0.995, None))[0]
            if value != start[name] and found < best:
                gains[name] = (found, value)
    ranked = sorted(gains, key=lambda name: gains[name][0])
    mixed = [
        {**start, **{name: gains[name][1] for name in ranked[:count]}}
        for count in range(2, len(ranked) + 1)
    ]
    mixed += [{**start, **{n: gains[n][1] for n in (ranked[0], other)}} for other in ranked[2:]]
    return mixed[:8]
