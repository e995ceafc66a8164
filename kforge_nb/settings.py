"""Where kforge keeps its files, and the options of one optimize run, as plain validated values."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from kforge_nb.errors import BadInput

__all__ = ["SECRET_NAME", "Settings", "cache_dir", "open_environment"]

SECRET_NAME = re.compile(
    r"(^|_)(api_?key|key|token|secret|password|passwd|passphrase|credentials?|auth|pat)(_|$|\d)",
    re.IGNORECASE,
)
"""Names of environment variables whose values are nobody else's business."""

GRANULARITIES = ("op", "module", "region")
RESTS = ("auto", "eager", "inductor", "cudagraphs", "inductor-cudagraphs")


def cache_dir() -> Path:
    """Folder for caches, calibrations and the registry: ``$KFORGE_HOME`` or ~/.cache/kforge_nb.

    The folder is made if it is missing; raises BadInput where that is not possible.
    """
    chosen = os.environ.get("KFORGE_HOME")
    folder = Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "kforge_nb"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"the cache folder {folder} cannot be made ({error.strerror}); "
            "set KFORGE_HOME to a folder that you can write to"
        ) from error
    return folder


def open_environment() -> dict[str, str]:
    """This process's environment for a process that runs no candidate, without the secrets."""
    return {name: value for name, value in os.environ.items() if not SECRET_NAME.search(name)}


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one run. Times are seconds, sizes bytes, money US dollars.

    ``budget`` is the number of candidates judged; ``max_cost`` and ``time_limit`` end a run too
    (None: no such limit). ``patience`` is how many judged candidates without a better one end a
    target's search; ``roofline_stop`` is the share of the roofline at which a target is done;
    ``min_share`` leaves out targets that take less of the workload's time. ``memory_limit`` bounds
    the captured inputs held in memory. ``allow_host_code`` lets torch extensions be judged.
    """

    granularity: Literal["op", "module", "region"] = "region"
    budget: int = 50
    max_cost: float | None = None
    time_limit: float | None = None
    seed: int = 0
    threads: int = 0
    memory_limit: int = 1 << 30
    rest: Literal["auto", "eager", "inductor", "cudagraphs", "inductor-cudagraphs"] = "auto"
    patience: int = 12
    roofline_stop: float = 0.9
    min_share: float = 0.005
    max_targets: int = 32
    proposer: str = "recipes"
    language: str = "auto"
    engine: str = "local"
    workers: int = 1
    allow_host_code: bool = False

    def __post_init__(self) -> None:
        _one_of("granularity", self.granularity, GRANULARITIES)
        _one_of("rest", self.rest, RESTS)
        for name in ("budget", "patience", "max_targets", "workers"):
            _at_least(name, getattr(self, name), 1)
        for name in ("threads", "memory_limit", "min_share", "seed"):
            _at_least(name, getattr(self, name), 0)
        for name in ("max_cost", "time_limit"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 0)
        if not 0 < self.roofline_stop <= 1:
            raise BadInput(f"roofline_stop is {self.roofline_stop}; give a share in (0, 1]")

    def to_document(self) -> dict[str, Any]:
        """Plain JSON-ready data."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_document(cls, data: dict[str, Any]) -> Settings:
        """Inverse of :meth:`to_document`; raises BadInput for an option that does not exist."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise BadInput(
                f"unknown option {', '.join(unknown)}; the options are {', '.join(sorted(known))}"
            )
        return cls(**data)


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise BadInput(f"{name} is {value!r}; choose one of {', '.join(allowed)}")


def _at_least(name: str, value: float, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
        raise BadInput(f"{name} is {value!r}; give a number of at least {least}")
