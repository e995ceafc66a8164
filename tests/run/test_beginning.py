"""What is said before a run begins, and by the quickstart where a run has found nothing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import kforge_nb
from kforge_nb.errors import BadInput
from kforge_nb.profile.measuring import Measured
from kforge_nb.run.dry import DryRun

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"


def test_a_budget_of_nothing_is_refused_before_the_cell_runs(tmp_path):
    """Such a run could only end; kernels from cells alone are another matter."""
    with pytest.raises(BadInput, match="--budget 0 lets no candidate be judged"):
        kforge_nb.optimize(pytest.fail, budget=0, store=tmp_path / "store")


def test_a_dry_run_that_costs_nothing_names_no_dollars_and_counts_up(home, monkeypatch):
    """Targets in the order of their numbers; what the profile noted, and options without effect."""

    def timed(targets, _note, _seconds):
        return [Measured(100.0 + 50.0 * i, 1) for i, _ in enumerate(targets)]

    monkeypatch.setattr("kforge_nb.profile.profile.measure", timed)
    monkeypatch.setattr("kforge_nb.profile.profile.wall_us", lambda _workload: 1e4)
    parts = torch.nn.Softmax(-1), torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)
    model, x = torch.nn.Sequential(*parts).eval(), torch.randn(8, 64)
    with torch.inference_mode():
        found = kforge_nb.optimize(
            lambda: model(x),
            dry_run=True,
            target="softmax",
            show_prompt=True,
            layout="channels_last",
        )
    assert isinstance(found, DryRun)
    for told in (repr(found), found._repr_html_()):
        assert "--show-prompt has nothing to show: --proposer recipes sends no prompts" in told
        assert "so --layout channels_last does nothing" in told
    assert repr(found).splitlines()[0].endswith("would be judged, at no cost")
    assert [index for index, _, _ in found.rows] == ["0", "1", "2"]
    assert found.rows[2][1] == "softmax"


def test_the_quickstart_says_once_that_nothing_was_applied(capsys):
    """Where nothing won it neither counts originals of no kernel nor undoes what nobody did."""
    cells = [c for c in json.loads(QUICKSTART.read_text())["cells"] if c["cell_type"] == "code"]
    last = [s for c in cells if "embed(batch)" in (s := "".join(c["source"])) or "one short" in s]
    run = SimpleNamespace(
        document={"recommendation": None}, guard=SimpleNamespace(installed=[]), counters=dict
    )
    names = {"run": run, "torch": torch, "batch": {}, "vectors": torch.ones(1)}
    names |= {"tokenizer": lambda *_, **__: {}, "embed": lambda _: torch.ones(1)}
    for source in last[-3:]:
        exec(source, names)
    told = capsys.readouterr().out
    assert "nothing was applied" in told
    assert "None" not in told
    assert "undone" not in told
