"""The kernels of a model's run, rest by rest: what its guard decided is what is timed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.gpu_models_state import Body, Places

if TYPE_CHECKING:
    from kforge_nb.guard.accepted import Accepted

__all__ = ["Kernels", "kernels_of", "without_kernels"]


@dataclass(frozen=True)
class Kernels:
    """``by_rest`` are the kernels to install with each rest, ``decided`` the rest they come from.

    ``every`` are all that the guard has measured, in its order.
    """

    by_rest: Mapping[str, list[Accepted]] = field(default_factory=dict)
    decided: Mapping[str, str] = field(default_factory=dict)
    every: tuple[Accepted, ...] = ()

    def register(self) -> None:
        """Give each kernel the handle that it had in the process of the run.

        A graph in Inductor's cache names kernels by their handles, so only then is what the guard
        has compiled found again.
        """
        from kforge_nb.errors import KForgeError

        for kernel in self.every:
            with suppress(KForgeError):  # a side that wants it says so itself
                kernel.register()


def kernels_of(places: Places, name: str) -> Kernels:
    """What the model's run decided; nothing where there is no run that is done."""
    import kforge_nb
    from kforge_nb.errors import BadInput
    from kforge_nb.guard.policy import RESTS
    from kforge_nb.run.by_rest import decided_for
    from kforge_nb.run.guarding import installed_kernels, measured_kernels

    try:
        record = kforge_nb.load_run(name, store=places.store(name)).record
        decisions = record.store.decisions(record.id)
        advice = record.run["recommendation"]
        return Kernels(
            {rest: installed_kernels(record, rest) for rest in RESTS},
            {rest: decided_for(decisions, advice, rest) for rest in RESTS},
            tuple(measured_kernels(record)),
        )
    except BadInput:
        return Kernels()


def without_kernels(searched: Body) -> set[str]:
    """The rests that were measured and keep no kernel: with them guarded is empty."""
    by_rest = searched.get("by_rest") or {}
    return {rest for rest, installed in by_rest.items() if not installed}
