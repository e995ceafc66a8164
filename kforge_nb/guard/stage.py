"""What one rest found while the guard decides, and the reason where it found nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kforge_nb.guard.fidelity import Fidelity
    from kforge_nb.guard.measure import Model
    from kforge_nb.guard.report import Whole
    from kforge_nb.judge.evaluation import Comparison

__all__ = ["Late", "Stage", "Unusable"]


class Unusable(Exception):
    """A rest that cannot do here what its name says; the text says why."""


class Late(Unusable):
    """A rest for which the guard's time did not suffice."""


@dataclass
class Stage:
    """What one rest found; ``reasons`` says of each kernel that it dropped why.

    ``peaks`` has the peak of GPU memory while each side ran, in bytes, on one GPU; ``held`` is what
    the rest's recordings keep for themselves beside that. ``laid_out`` is the rest laid out for its
    kernels, without any, against the rest as it is.
    """

    rest: str
    model: Model
    kept: frozenset[str]
    whole: list[Whole] = field(default_factory=list)
    fidelity: Fidelity | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    held: int = 0
    laid_out: Comparison | None = None

    @property
    def right(self) -> bool:
        """Whether its outputs are as good as eager's."""
        return self.fidelity is None or self.fidelity.good

    def against(self, name: str) -> Comparison | None:
        """This rest, with its kernels or without any, against something."""
        return next((w.comparison for w in self.whole if w.against == name), None)
