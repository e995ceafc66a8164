"""Emitted sources fit the machine: only instruction sets that it has, and all levels compile."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from kforge_nb.candidates.recipes.families import isa, tuned_families
from kforge_nb.candidates.recipes.family import default_params
from kforge_nb.compilers.cpp import find_compiler
from tests.helpers import make_target
from tests.recipes.cases import CASES, inputs_of

FLAGS = {"avx512": "x86-64-v4", "avx2": "x86-64-v3", "portable": "x86-64"}
ONE_OF_EACH = ["softmax", "rms-norm", "group-norm-silu", "group-norm-last", "gelu", "max-pool"]


def source_of(name: str, level: str, dtype: torch.dtype) -> str:
    """The source that the first family emits for a case at a level."""
    target = make_target(CASES[name][1], *inputs_of(name, dtype))
    for family in tuned_families():
        match = family.match(target)
        if match is not None:
            return family.emit(match, {**default_params(family, match), "isa": level}).source
    raise AssertionError(name)


@pytest.mark.skipif(isa.platform.machine() not in ("x86_64", "AMD64"), reason="flags of x86-64")
@pytest.mark.parametrize("level", FLAGS)
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_compiles_for_a_machine_with_just_that(name: str, level: str, tmp_path: Path) -> None:
    """The source of a level needs no instruction beyond it."""
    source = tmp_path / "kernel.cpp"
    source.write_text(source_of(name, level, torch.bfloat16))
    command = [*find_compiler().command, "-std=c++17", f"-march={FLAGS[level]}", "-fopenmp", "-O1"]
    command += ["-S", "-o", str(tmp_path / "kernel.s"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        (set(), ["portable"]),
        ({"avx2"}, ["portable"]),
        ({"avx2", "fma", "f16c"}, ["avx2", "portable"]),
        ({"avx2", "fma", "f16c", "avx512f"}, ["avx2", "portable"]),
        (
            {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"},
            ["avx512", "avx2", "portable"],
        ),
    ],
)
def test_never_an_instruction_set_that_is_missing(
    flags: set[str], levels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A level is offered only where the CPU reports everything that it needs."""
    monkeypatch.setattr(isa, "_cpu_flags", lambda: frozenset(flags))
    assert isa.available_isas() == levels
