"""The GPU table's own arithmetic: bars, least bytes, and that each of its rows has a recipe."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu_ops
from benchmarks.gpu_op_added import ALL, LAID_OUT, least_bytes
from benchmarks.gpu_op_bars import bar_rows, bar_text, missed
from benchmarks.gpu_op_cases import Case, make_target
from benchmarks.gpu_ops import Supervisor
from benchmarks.timing import Comparison
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
    asked = ["softmax 65536x4096", "rms norm composed 8192x4096", "add", "mul"]
    found = {r["name"]: r for r in bar_rows(rows, asked)}
    assert found["bar: softmax 65536x4096, over eager"]["met"]
    assert not found["bar: softmax 65536x4096, of copy bandwidth"]["met"]
    share = found["bar: share of the list not slower than eager"]
    assert (share["value"], share["met"]) == (0.25, False)
    assert share["slower"] == ["add", "rms norm composed 8192x4096 (no figure)", "mul (no figure)"]
    assert found["bar: geometric mean over max-autotune"]["met"]
    failed = found["bar: rms norm composed 8192x4096, over eager"]
    assert (failed["value"], failed["met"]) == (0.0, False)
    assert not any("group norm" in name for name in found)
    text = bar_text(list(found.values()))
    assert "MISSED  bar: softmax 65536x4096, of copy bandwidth" in text
    assert "reached bar: softmax 65536x4096, over eager" in text
    assert "slower: add" in text
    assert "4 bars missed" in text


def test_a_side_without_any_row_misses_its_bars() -> None:
    """Where torch.compile gave no figure at all, its bars are missed, not forgotten."""
    rows = [row("group norm silu 512x128x128", "eager", 9.0)]
    asked = ["group norm silu 512x128x128"]
    assert missed(bar_rows(rows, asked)) == [
        "bar: group norm silu 512x128x128, over compile",
        "bar: geometric mean over max-autotune",
    ]
    assert missed(bar_rows(rows, asked, ["eager"])) == []


def entry(ratio: float, compiled: float | None = None) -> dict[str, Any]:
    """What the worker answers for a case."""
    sides = {"eager": ratio, **({} if compiled is None else {"compile": compiled})}
    compared = {
        side: Comparison(found, found, found, 40, 10.0, 10.0 * found)
        for side, found in sides.items()
    }
    facts = ("family", "params", "error", "eager_error", "tried", "registers", "spills")
    return {
        "compared": {side: asdict(found) for side, found in compared.items()},
        "bytes": 9e6,
        **dict.fromkeys((*facts, "wrong", "seconds"), 0),
    }


GROUP = "group norm silu 512x128x128"


@pytest.mark.parametrize(
    ("found", "compile", "status"),
    [
        ({GROUP: entry(9.0, 1.4)}, True, 0),
        ({GROUP: entry(8.3, 1.4)}, True, 1),
        ({GROUP: entry(9.0, 1.2)}, True, 1),
        ({GROUP: entry(9.0)}, False, 0),
        ({GROUP: entry(9.0)}, True, 1),
        ({GROUP: {"failed": "wrong"}}, True, 1),
        ({}, True, 1),
    ],
    ids=[
        "all reached",
        "over eager",
        "over compile",
        "no compile",
        "none compiled",
        "failed",
        "cut",
    ],
)
def test_the_exit_status_is_that_of_the_bars(
    found: dict[str, Any], compile: bool, status: int, monkeypatch: Any, capsys: Any
) -> None:
    """0 only if each case has its figures and all bars asked for are reached, else 1."""
    facts = argparse.Namespace(name="GPU", multi_processor_count=1, total_memory=1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    monkeypatch.setattr("benchmarks.gpu_timing.copy_bandwidth", lambda: 1000.0)
    monkeypatch.setattr(Supervisor, "run", lambda self, names: self.found.update(found))
    words = ["gpu_ops", "--only", GROUP, *([] if compile else ["--no-compile"])]
    monkeypatch.setattr("sys.argv", words)
    assert gpu_ops.main() == status
    told = capsys.readouterr().err
    assert ("MISSED" in told) == bool(status)


def described(case: Case) -> Any:
    """The case's target without data, said to be on a GPU."""
    inputs = [
        torch.empty(shape, dtype=getattr(torch, dtype), device="meta").to(
            memory_format=torch.channels_last if layout == "last" else torch.preserve_format
        )
        for shape, dtype, layout in case.inputs
    ]
    return on_cuda(make_target(case.fn, inputs, case.name))


def test_a_table_counts_with_the_rows_that_are_read() -> None:
    """An embedding moves its numbers, and each answered row once in and once out."""
    case = next(c for c in ALL if c.name.startswith("embedding 1024 of 262144"))
    assert least_bytes(case, described(case)) == 1024 * 8 + 2 * (1024 * 1536 * 2)


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_every_row_has_a_recipe(case: Case) -> None:
    """Each operator of the table is taken by a CUDA family, what is laid out by a tuned one."""
    family, match = find(described(case))
    assert match.target.name == case.name
    assert case not in LAID_OUT or family.name != "generated"


def test_names_are_distinct() -> None:
    """Rows are told apart by name alone."""
    assert len({case.name for case in ALL}) == len(ALL)


def test_a_case_that_stops_its_worker_comes_again_once(tmp_path: Path) -> None:
    """First with its best guess alone, then as failed; the cases behind it still wait."""
    options = argparse.Namespace(
        time_limit=60.0, quick=False, no_compile=True, tries=None, rounds=None
    )
    supervisor = Supervisor(options, tmp_path)
    out = tmp_path / "lines"
    out.write_text(json.dumps({"begin": "one"}) + "\n")
    supervisor._blame(out, ["one", "two"], "no answer: a kernel hangs")
    assert supervisor.found == {}
    assert supervisor._request(["one"])["plain"] == ["one"]
    supervisor._blame(out, ["one", "two"], "no answer: a kernel hangs")
    assert supervisor.found == {"one": {"case": "one", "failed": "no answer: a kernel hangs"}}


def test_nothing_begun_ends_the_table(tmp_path: Path) -> None:
    """A worker that dies before its first case would die each time: the reason is told at once."""
    options = argparse.Namespace(
        time_limit=60.0, quick=False, no_compile=True, tries=None, rounds=None
    )
    supervisor = Supervisor(options, tmp_path)
    out = tmp_path / "lines"
    out.touch()
    supervisor._blame(out, ["one"], "the worker ended (1): no driver")
    assert supervisor.end == 0.0
    assert supervisor.notes == ["no case could be run: the worker ended (1): no driver"]
