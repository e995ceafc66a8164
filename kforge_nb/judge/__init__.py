"""The judge: policy, correctness, timing and the isolated runner that executes candidates."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kforge_nb.judge.bench import Bench
    from kforge_nb.judge.judge import Judge

__all__ = ["Bench", "Judge"]


def __getattr__(name: str) -> Any:
    """``Judge`` and ``Bench`` need torch, which is only loaded when they are asked for."""
    if name == "Judge":
        from kforge_nb.judge.judge import Judge

        return Judge
    if name == "Bench":
        from kforge_nb.judge.bench import Bench

        return Bench
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
