"""The GPU table's own arithmetic: bars, least bytes, and that each of its rows has a recipe."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.gpu_op_added import ALL, least_bytes
from benchmarks.gpu_op_bars import bar_rows, bar_text
from benchmarks.gpu_op_cases import Case, make_target
from tests.cuda.targets import find, on_cuda


def row(name: str, against: str, ratio: float, share: float = 0.5) -> dict[str, Any]:
    """A row of the table, as far as bars look at it."""
    return {"name": name, "against": against, "ratio": ratio, "copy_share": share}


def test_bars_are_met_or_named() -> None:
    """A bar compares its own row's figure; what is below it is marked, with the slower rows."""
    rows = [
        row("softmax 65536x4096", "eager", 3.1, 0.94),
        row("add", "eager", 0.98),
        {"name": "geometric mean over compile", "value": 1.2},
    ]
    found = {r["name"]: r for r in bar_rows(rows, cases=4)}
    assert found["bar: softmax 65536x4096, over eager"]["met"]
    assert not found["bar: softmax 65536x4096, of copy bandwidth"]["met"]
    share = found["bar: share of the list not slower than eager"]
    assert (share["value"], share["met"], share["slower"]) == (0.25, False, ["add"])
    assert found["bar: geometric mean over max-autotune"]["met"]
    text = bar_text(list(found.values()))
    assert "LESS bar: softmax 65536x4096, of copy bandwidth" in text
    assert "slower: add" in text


def described(case: Case) -> Any:
    """The case's target without data, said to be on a GPU."""
    inputs = [
        torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        for shape, dtype, _ in case.inputs
    ]
    return on_cuda(make_target(case.fn, inputs, case.name))


def test_a_table_counts_with_the_rows_that_are_read() -> None:
    """An embedding moves its numbers, and each answered row once in and once out."""
    case = next(c for c in ALL if c.name.startswith("embedding 1024 of 262144"))
    assert least_bytes(case, described(case)) == 1024 * 8 + 2 * (1024 * 1536 * 2)


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_every_row_has_a_recipe(case: Case) -> None:
    """Each operator of the table is taken by a CUDA family."""
    assert find(described(case))[1].target.name == case.name


def test_names_are_distinct() -> None:
    """Rows are told apart by name alone."""
    assert len({case.name for case in ALL}) == len(ALL)
