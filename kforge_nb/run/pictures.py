"""A run document as DataFrames and matplotlib figures: the half that every handle can do."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from kforge_nb.run import tables

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["Pictures"]


class Pictures:
    """Tables and figures of ``_document()``; pandas and matplotlib are imported when used."""

    @abstractmethod
    def _document(self, *, details: bool = True) -> dict[str, Any]:
        """The run document as it is now, with or without the nodes' details."""

    # -- tables ----------------------------------------------------------------------------

    @property
    def targets(self) -> pd.DataFrame:
        """One row a target: share, roofline, times and best speed-up with its interval, state."""
        return tables.targets(self._document(details=False))

    @property
    def nodes(self) -> pd.DataFrame:
        """One row a judged candidate: verdict, speed-up with its interval, times in µs."""
        return tables.nodes(self._document(details=False))

    @property
    def decisions(self) -> pd.DataFrame:
        """One row a decision of the guard, with the evidence and the counters since ``apply``."""
        return tables.decisions(self._document(details=False))

    @property
    def whole(self) -> pd.DataFrame:
        """One row a comparison of the whole model: what ran, against what, ratio with interval.

        ``shown`` says what the interval shows: ``faster``, ``slower``, ``same`` where it holds 1,
        ``open`` where there is none.
        """
        return tables.whole(self._document(details=False))

    @property
    def costs(self) -> pd.DataFrame:
        """One row a call of a model (or other booking), in order, with running totals.

        Tokens, US dollars and seconds of each, what was spent until then, and for it the
        milliseconds of one run of the workload that the best candidates save.
        """
        return tables.costs(self._document(details=False))

    def costs_by(self, what: str = "target") -> pd.DataFrame:
        """The same summed by ``target`` or ``node``, or for the whole ``run``.

        With what was saved and US dollars for each millisecond of it.
        """
        return tables.costs_by(self._document(details=False), what)

    # -- figures ---------------------------------------------------------------------------

    def plot_targets(self, ax: Axes | None = None, *, limit: int = 15) -> Axes:
        """Where the time goes: the ``limit`` largest shares, eager and with the best candidate."""
        from kforge_nb.view import plots

        return plots.plot_targets(self._document(details=False), ax, limit=limit)

    def plot_tree(self, target: int | None = None, ax: Axes | None = None) -> Axes:
        """The search tree of one target (the largest one where none is given)."""
        from kforge_nb.view import plots

        return plots.plot_tree(self._document(details=False), target, ax=ax)

    def plot_cost(
        self, ax: Axes | None = None, *, by: str | None = None, target: int | None = None
    ) -> Axes:
        """Gain against cost in ``usd``, ``calls``, ``seconds`` or ``judged`` candidates.

        Of the whole model (expected), or of one ``target`` alone.
        """
        from kforge_nb.view import plots

        return plots.plot_cost(self._document(details=False), ax, by=by, target=target)

    def plot_guard(self, ax: Axes | None = None, *, limit: int = 15) -> Axes:
        """What the guard decided: alone and in the model, with 95% intervals and a line at 1."""
        from kforge_nb.view import plot_guard

        return plot_guard.plot_guard(self._document(details=False), ax, limit=limit)

    def plot_whole(self, ax: Axes | None = None) -> Axes:
        """The whole model in each measured way, over eager and over the same rest alone."""
        from kforge_nb.view import plot_guard

        return plot_guard.plot_whole(self._document(details=False), ax)
