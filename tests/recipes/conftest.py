"""Build recipes and run them in this process through ctypes, on outputs full of NaN."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.recipes.families import tuned_families
from kforge_nb.candidates.recipes.family import Family, Match, default_params
from kforge_nb.compilers import cpp
from kforge_nb.targets.target import Target

Run = Callable[..., list[torch.Tensor]]


def find(target: Target) -> tuple[Family, Match]:
    """The first tuned family that takes the target."""
    for family in tuned_families():
        match = family.match(target)
        if match is not None:
            return family, match
    raise AssertionError(f"no family takes {target.graph.code}")


def call(function: ctypes._CFuncPtr, candidate: Candidate, target: Target, threads: int) -> Run:
    """A function of the inputs that allocates poisoned outputs and scratch, and launches."""

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        buffers = {f"in{i}": t for i, t in enumerate(inputs)}
        for i, spec in enumerate(target.outputs):
            out = torch.empty_strided(spec.shape, spec.stride, dtype=getattr(torch, spec.dtype))
            buffers[f"out{i}"] = out.fill_(float("nan"))
        for name, item in candidate.plan.scratch.items():
            shape = [int(n) for n in item.shape]
            buffers[name] = torch.full(shape, float("nan"), dtype=getattr(torch, item.dtype))
        names = candidate.plan.kernels[0].args[:-1]
        function(*[ctypes.c_void_p(buffers[n].data_ptr()) for n in names], ctypes.c_int32(threads))
        return [buffers[f"out{i}"] for i in range(len(target.outputs))]

    return run


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[..., Run]:
    """``recipe(target, threads=1, **params)``: build the target's tuned recipe and load it."""
    base = tmp_path_factory.getbasetemp()
    cache: Path = (base if worker_id == "master" else base.parent) / "recipes"  # for all workers

    def build(target: Target, threads: int = 1, **params: object) -> Run:
        family, match = find(target)
        candidate = family.emit(match, {**default_params(family, match), **params})
        kernel = candidate.plan.kernels[0]
        built = cpp.build(candidate.source, kernel.name, cache=cache)
        assert isinstance(built, cpp.Built), built.log
        function = getattr(ctypes.CDLL(str(built.library)), kernel.name)
        function.restype = None
        return call(function, candidate, target, threads)

    return build
