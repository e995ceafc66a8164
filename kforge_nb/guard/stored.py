"""Kernels of the registry for ``torch.compile(model, backend="kforge")``, verified when needed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.errors import KForgeError
from kforge_nb.guard.backend import ORDER, Backend
from kforge_nb.guard.laid_out import turned, wants_layout
from kforge_nb.guard.policy import RECORDS
from kforge_nb.guard.registry import Registry
from kforge_nb.targets import partition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set
    from pathlib import Path

    from torch import fx

    from kforge_nb.guard.backend import GraphReport

__all__ = ["StoredBackend", "not_for", "stored_backend"]


class StoredBackend(Backend):
    """A backend over a registry: a kernel is looked at only when a graph holds its target.

    ``refused`` has the reason for each kernel that did not pass.
    """

    def __init__(self, registry: Registry, rest: str = "eager") -> None:
        super().__init__([], rest)
        self.registry = registry
        self.known: dict[str, Path] = {}
        self._devices: set[str] = set()
        self._turned: set[str] = set()
        """Kernels for this rest whose places are in graphs laid out channels-last."""
        self._look("cpu")

    def _look(self, device: str) -> None:
        """Take in what the registry has for a device that has not been looked at."""
        if device not in self._devices:
            self._devices.add(device)
            found = self.registry.entries(device)
            self.known.update(found)
            kernels = {f: self.registry.read(path) for f, path in found.items()}
            ours = {f: k for f, k in kernels.items() if not not_for(k.evidence, self.rest)}
            self._turned.update(f for f, kernel in ours.items() if wants_layout([kernel]))

    def _look_at(self, example_inputs: Sequence[Any]) -> None:
        """Take in what the registry has for the devices of these inputs."""
        for value in example_inputs:
            if isinstance(value, torch.Tensor) and value.is_cuda:
                self._look(str(value.device))

    def _laid_out(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> fx.GraphModule:
        """Laid out where more kernels have their places then; the registry may have both kinds."""
        self._look_at(example_inputs)
        found = turned(gm, example_inputs) if self._turned else None
        if found is None:
            return gm
        usable = self.known.keys() - self.refused.keys()
        there = self._places(found, example_inputs, usable)
        here = self._places(gm, example_inputs, usable - self._turned)
        return found if there > here else gm

    @staticmethod
    def _places(gm: fx.GraphModule, example_inputs: Sequence[Any], usable: Set[str]) -> int:
        return sum(
            cut.fingerprint in usable
            for granularity in ORDER
            for cut in partition.cut(gm, example_inputs, granularity, vendor=granularity == "op")
        )

    def _rewrite(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], report: GraphReport
    ) -> fx.GraphModule:
        try:
            self._fetch(gm, example_inputs)
        except Exception as problem:  # noqa: BLE001 (an original that runs beats a failed compile)
            report.reasons.append(f"registry: {type(problem).__name__}: {problem}")
        return super()._rewrite(gm, example_inputs, report)

    def _fetch(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        """Verify and register the kernels of this graph that have not been looked at yet."""
        self._look_at(example_inputs)
        waiting = self.known.keys() - self.accepted.keys() - self.refused.keys()
        if not waiting:
            return
        for granularity in ORDER:
            cuts = partition.cut(gm, example_inputs, granularity, vendor=granularity == "op")
            for fingerprint in {cut.fingerprint for cut in cuts} & waiting:
                waiting.discard(fingerprint)
                self._admit(fingerprint)

    def _admit(self, fingerprint: str) -> None:
        try:
            kernel = self.registry.verified(self.known[fingerprint])
            if why := not_for(kernel.evidence, self.rest):
                self.refused[fingerprint] = why
                return
            self.handles[fingerprint] = kernel.register()
            self.accepted[fingerprint] = kernel
        except KForgeError as problem:
            self.refused[fingerprint] = str(problem)


def not_for(evidence: Mapping[str, Any], rest: str) -> str:
    """Why the run that a kernel comes from keeps it out of a rest; empty where it does not.

    Recordings of what another rest runs follow that one where they were not measured themselves.
    """
    rests = evidence.get("rests")
    known = rests if isinstance(rests, dict) else {}
    installed = known.get(rest, known.get(RECORDS.get(rest, "")))
    return f"its run found that rest={rest!r} is faster without it" if installed is False else ""


_backends: dict[str, StoredBackend] = {}
_lock = threading.Lock()


def stored_backend(rest: str = "eager") -> StoredBackend:
    """The process's backend over the default registry, for one rest.

    Raises:
        BadInput: an unknown rest.
        MissingTool: there is no C++ compiler.
    """
    with _lock:
        if rest not in _backends:
            _backends[rest] = StoredBackend(Registry(), rest)
        return _backends[rest]
