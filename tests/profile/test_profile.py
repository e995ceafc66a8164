"""Profiles of small models: what the rows say and how they are shown."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import matplotlib as mpl
import pytest
import torch
from torch import nn

from kforge_nb.errors import BadInput
from kforge_nb.profile.believing import is_crowded
from kforge_nb.profile.cost import flops_of, moved_bytes
from kforge_nb.profile.elsewhere import elsewhere, overfull
from kforge_nb.profile.measuring import Measured
from kforge_nb.profile.profile import profile
from kforge_nb.profile.table import Profile, Row
from kforge_nb.profile.timing import ForeignLoad
from kforge_nb.targets.inputs import CapturedInputs
from tests.helpers import make_target

mpl.use("agg")


class Block(nn.Module):
    """A norm, a projection and an activation."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.linear = nn.Linear(64, 64)

    def forward(self, x, *, scale=1.0):
        return torch.nn.functional.gelu(self.linear(self.norm(x))) * scale


class Evil(nn.Module):
    """A module whose name would be markup."""

    def __init__(self):
        super().__init__()
        self.add_module("<img src=x onerror=alert(1)>", nn.Softmax(-1))

    def forward(self, x):
        return next(iter(self.children()))(x)


@pytest.fixture
def profiled(calibrated):
    model, x = nn.Sequential(Block(), Block()), torch.randn(4, 16, 64)
    with torch.no_grad():
        return profile(lambda: model(x), seconds=0.2)


def test_rows_hold_targets_vendor_operators_and_plausible_figures(profiled):
    """Shares are parts of the wall time, ceilings follow Amdahl, vendor rows are marked."""
    families = {row.family for row in profiled.rows}
    assert {"layer_norm", "vendor:linear"} <= families
    assert [row.index for row in profiled.rows] == list(range(len(profiled.rows)))
    shares = [row.share for row in profiled.rows]
    shown = [round(share, 3) for share in shares]
    assert shown == sorted(shown, reverse=True)
    for row in profiled.rows:
        assert row.vendor == row.family.startswith("vendor:")
        assert 0 < row.share <= 1
        assert row.headroom >= 1
        best = 1 / (1 - row.share * (1 - 1 / row.headroom))
        assert row.ceiling == pytest.approx(best)
        assert row.calls == sum(o.calls for o in row.target.occurrences)
    linear = next(r for r in profiled.rows if r.vendor)
    assert linear.flops == 2 * 64 * 64 * 64
    assert linear.bytes == 4 * (2 * 64 * 64 + 64 * 64 + 64)
    assert linear.modules == ["0.linear", "1.linear"]
    assert profiled.wall_us > 0
    assert 0 < profiled.device_us <= profiled.wall_us


@pytest.mark.parametrize("granularity", ["op", "module", "region"])
def test_every_granularity_gives_a_profile(calibrated, granularity):
    """Op shows the activation apart, module the norm, region whatever fuses."""
    model, x = Block(), torch.randn(2, 64)
    with torch.no_grad():
        found = profile(lambda: model(x, scale=2.0), granularity=granularity, seconds=0.05)
    names = [row.name for row in found.rows if not row.vendor]
    assert "layer_norm" in " ".join(names)
    assert ("gelu" in names) == (granularity == "op")
    assert ("gelu·mul" in names) == (granularity == "region")
    assert {row.granularity for row in found.rows} == {granularity}


class UsesUp(torch.nn.Module):
    """Takes its input from an iterator: a second call with the same arguments finds nothing."""

    def forward(self, source):
        return torch.relu(next(source))


def test_a_call_that_cannot_be_repeated_is_told_and_the_others_come():
    """What is used up by one call is a note; where nothing else is left, one clear message."""
    once, model, x = UsesUp(), torch.nn.Softmax(-1), torch.randn(64, 64)

    def source():
        yield x

    with torch.no_grad():
        found = profile(lambda: (once(source()), model(x)), seconds=0.2)
        assert [row.target.family for row in found.rows] == ["softmax"]
        assert any("second call of once" in n and "StopIteration" in n for n in found.notes)
        with pytest.raises(BadInput, match=r"second call of once.*can be made again"):
            profile(lambda: once(source()), seconds=0.2)


def test_an_unknown_granularity_is_refused_before_the_cell_runs(calibrated):
    """A typing error costs no run of the model."""
    ran = []
    with pytest.raises(BadInput, match="op, module or region"):
        profile(lambda: ran.append(1), granularity="layers")
    assert ran == []


def test_two_modules_in_one_cell_and_notes(calibrated):
    """Both are in the workload; a graph break is a note and the profile still comes."""

    class Broken(nn.Module):
        def forward(self, x):
            y = torch.exp(x) * 2
            torch._dynamo.graph_break()
            return y.softmax(-1)

    one, two, x = Block(), Broken(), torch.randn(2, 64)
    with torch.no_grad():
        found = profile(lambda: two(one(x)), seconds=0.05)
    modules = found.to_document()["workload"]["modules"]
    assert [(m["name"], m["class"], m["calls"]) for m in modules] == [
        ("one", "Block", 1),
        ("two", "Broken", 1),
    ]
    assert any("breaks into 2 graphs" in note for note in found.notes)
    assert {"softmax", "pointwise"} <= {row.family for row in found.rows}
    assert "breaks into 2 graphs" in repr(found)
    assert "breaks into 2 graphs" in found._repr_html_()


def test_profiling_leaves_buffers_and_arguments_alone(calibrated):
    """A module that counts its calls has counted only the cell's."""

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("runs", torch.zeros(1))

        def forward(self, x):
            self.runs += 1
            x += 1
            return torch.exp(x) * self.runs

    model, x = Counts(), torch.zeros(2, 64)
    with torch.no_grad():
        profile(lambda: model(x), seconds=0.05)
    assert float(model.runs) == 1.0
    assert torch.equal(x, torch.ones(2, 64))


def test_the_table_is_a_frame_with_one_line_a_target(profiled):
    """Columns of the run document, indexed by the target's number."""
    table = profiled.table
    assert list(table.index) == [row.index for row in profiled.rows]
    assert table.loc[0, "fingerprint"] == profiled.targets[0].fingerprint
    assert {"name", "calls", "mean_us", "share", "headroom", "ceiling", "variant"} <= set(table)


def test_the_document_is_plain_json_with_all_fields(profiled):
    """Every field of a target in the run document, nothing that JSON cannot hold."""
    body = json.loads(json.dumps(profiled.to_document(), allow_nan=False))
    assert set(body["targets"][0]) == {
        "index", "fingerprint", "name", "family", "granularity", "vendor", "calls", "mean_us",
        "share", "bytes", "flops", "roofline_us", "headroom", "ceiling", "variant", "modules",
        "code", "inputs", "outputs",
    }  # fmt: skip
    assert "def forward" in body["targets"][0]["code"]
    assert set(body["workload"]) == {"wall_us", "device_us", "launch_bound", "notes", "modules"}


def test_the_plot_has_a_bar_for_each_of_the_largest(profiled):
    """Two parts a bar, largest on top; it draws into axes that it is given."""
    axes = profiled.plot(limit=2)
    assert len(axes.containers) == 2
    assert len(axes.containers[0]) == 2
    assert axes.yaxis_inverted()
    assert profiled.plot(axes) is axes


def test_html_is_escaped_and_has_no_script(calibrated):
    """Names from the user's model are text, never markup."""
    model, x = Evil(), torch.randn(2, 64)
    with torch.no_grad():
        found = profile(lambda: model(x), seconds=0.05)
    found.workload.note("<script>alert(2)</script>")
    html = found._repr_html_()
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;script&gt;" in html
    assert re.search(r"&lt;img src=x", html)
    assert "prefers-color-scheme: dark" in html


def test_a_profile_without_targets_says_so(calibrated):
    """Nothing to replace is a result, not an error."""
    model, x = nn.Identity(), torch.randn(2)
    found = profile(lambda: model(x), seconds=0.05)
    assert found.rows == []
    assert "no targets" in repr(found)
    assert "No targets" in found._repr_html_()
    assert found.table.empty
    found.plot()


def test_a_launch_bound_workload_is_flagged(profiled):
    """The flag is in the sentence and in the HTML."""
    waiting = Profile(profiled.workload, profiled.rows, 100.0, 10.0, True, "region", {})
    assert "launch-bound" in repr(waiting)
    assert "launch-bound" in waiting._repr_html_()


@pytest.mark.parametrize("cores", [0.0, 1.7])
def test_a_profile_beside_other_work_claims_nothing_as_sure(calibrated, monkeypatch, cores):
    """Times of a busy moment say nothing about launches, and their shares are called rough."""

    class Load(ForeignLoad):
        def __exit__(self, *_):
            self.cores = cores

    monkeypatch.setattr("kforge_nb.profile.profile.ForeignLoad", Load)
    monkeypatch.setattr("kforge_nb.profile.profile.device_us", lambda _workload: 1e-3)
    model, x = nn.Softmax(-1), torch.randn(64, 256)
    with torch.no_grad():
        found = profile(lambda: model(x), seconds=0.05)
    assert found.to_document()["workload"]["launch_bound"] is (None if cores else True)
    assert is_crowded(found.notes) is bool(cores)
    assert ("1.7 cores busy" in repr(found)) is bool(cores)
    for text in (repr(found), found._repr_html_()):
        assert ("share (rough)" in text) is ("ceiling (rough)" in text) is bool(cores)
        assert ("launch-bound" in text.split("note:")[0].split("<ul>")[0]) is not bool(cores)


def test_bytes_count_broadcast_axes_once_and_elements_are_operations():
    """An expanded bias is read once; each element-wise operator costs one operation an element."""
    x, bias = torch.randn(8, 16), torch.randn(16).expand(8, 16)
    target = make_target(lambda a, b: torch.tanh(a + b), x, bias)
    assert moved_bytes(target) == 4 * (8 * 16 + 16 + 8 * 16)
    assert flops_of(target, [x, bias]) == 2 * 8 * 16


def test_a_target_that_cannot_run_alone_has_no_time_but_a_row(calibrated):
    """Missing figures are dashes in every view, never zeros."""
    target = make_target(lambda a: torch.tanh(a), torch.randn(2))
    target.captured = CapturedInputs()
    row = Row(target, 1, None, 8, 2, None, 100.0)
    assert (row.share, row.headroom, row.ceiling) == (None, None, None)
    from kforge_nb.profile.text import cells

    assert cells(row)[4:8] == ("–", "–", "–", "–")


def test_an_impossible_roofline_is_not_shown_as_a_fact(monkeypatch, limits):
    """With figures of a busy machine: no share above 100%, no ceiling of 1.00×, and a note."""
    slow = dict.fromkeys(limits.bandwidth_by_bytes, 1e-4)
    wrong = replace(limits, bandwidth_gbs=1e-4, bandwidth_by_bytes=slow, busy=True)
    monkeypatch.setattr("kforge_nb.profile.profile.calibrate", lambda device: wrong)
    model, x = nn.Softmax(-1), torch.randn(64, 256)
    with torch.no_grad():
        found = profile(lambda: model(x), seconds=0.05)
    (row,) = found.rows
    assert (row.roofline_us, row.headroom, row.ceiling) == (None, None, None)
    assert any("faster than the roofline" in n and ": 0 softmax (" in n for n in found.notes)
    assert any("busy while its limits were measured" in note for note in found.notes)
    assert found.to_document()["device"]["calibrated_busy"] is True


@pytest.mark.parametrize(
    ("shares", "wall", "device", "parts"),
    [
        ([0.02, 0.015], 262e3, 262e3, (0.035, 0.0, 0.965)),
        ([0.1, None], 100.0, 30.0, (0.1, 0.7, 0.2)),
        ([0.5], 100.0, 10.0, (0.5, 0.5, 0.0)),
        ([0.95], 100.0, 100.0, None),
        ([0.8, 0.8], 100.0, 100.0, None),
    ],
)
def test_what_no_row_has_is_split_into_waiting_and_computing(shares, wall, device, parts):
    """The headline fits the rows: rows, waiting and the rest are the whole; small rests are not."""
    found = elsewhere(shares, wall, device)
    if parts is None:
        assert found is None
    else:
        assert (found.rows, found.waiting, found.computing) == pytest.approx(parts)
        assert found.rows + found.share == pytest.approx(1.0)


def test_rows_that_are_more_than_a_run_are_told():
    """Shares that add up to six runs are no shares, and whoever adds them up is told why."""
    assert "add up to 588% of a run" in overfull([0.9, 0.9, 4.08, None])
    assert overfull([0.6, 0.45, None]) is None


def test_everything_else_is_a_line_of_the_table_and_a_note(profiled):
    """Text, HTML and the frame's attributes tell what no row has; a full table has no such line."""
    rest = Profile(profiled.workload, profiled.rows[:1], 1e6, 1e6, False, "region")
    for row in rest.rows:
        row.wall_us = 1e6
    part = rest.everything_else.share
    assert 0.9 < part <= 1.0
    lines = [line for line in repr(rest).splitlines() if "everything else" in line]
    assert f"{part:.1%}" in lines[0]
    assert "everything else" in rest._repr_html_()
    assert rest.table.attrs["everything_else"] == part
    whole = replace(rest, wall_us=1.0)
    whole.rows[0].wall_us = whole.rows[0].mean_us * whole.rows[0].calls
    assert whole.everything_else is None
    assert '<td class="kf-l">everything else</td>' not in whole._repr_html_()
    assert whole.table.attrs["everything_else"] == 0.0


def test_a_profile_notes_what_no_row_has(calibrated, monkeypatch):
    """A run that takes far longer than its rows says so in its notes, which the view shows."""
    monkeypatch.setattr("kforge_nb.profile.profile.wall_us", lambda _workload: 1e7)
    monkeypatch.setattr("kforge_nb.profile.profile.device_us", lambda _workload: 9e6)
    model, x = nn.Softmax(-1), torch.randn(8, 16)
    with torch.no_grad():
        found = profile(lambda: model(x), seconds=0.05)
    (note,) = [n for n in found.notes if "everything else" in n]
    assert "10.0% between operators" in note


def test_equal_shares_keep_the_order_of_the_model(calibrated, monkeypatch):
    """Differences below what is shown do not move a target to another index."""

    def times(targets, _note, _seconds):
        return [Measured(1000.0 + place * 0.01, 0) for place in range(len(targets))]

    monkeypatch.setattr("kforge_nb.profile.profile.measure", times)
    monkeypatch.setattr("kforge_nb.profile.profile.wall_us", lambda _workload: 1e5)
    model, x = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Softmax(-1)), torch.randn(4, 8)
    with torch.no_grad():
        found = profile(lambda: model(x), seconds=0.05)
    assert [row.family for row in found.rows] == ["layer_norm", "vendor:linear", "softmax"]


def test_a_target_keeps_its_number_when_shares_change(calibrated, monkeypatch):
    """--target 2 means the same one in the next profile of this model, whatever was measured."""
    times = []

    def timed(targets, _note, _seconds):
        factor = times.pop()
        return [Measured(200.0 + factor * 50.0 * i, 1) for i, _ in enumerate(targets)]

    monkeypatch.setattr("kforge_nb.profile.profile.measure", timed)
    monkeypatch.setattr("kforge_nb.profile.profile.wall_us", lambda _workload: 1e4)
    model = nn.Sequential(nn.Softmax(-1), nn.Linear(64, 64), nn.LayerNorm(64)).eval()
    x = torch.randn(8, 64)
    found = []
    for factor in (1.0, -1.0):
        times.append(factor)
        with torch.no_grad():
            found.append(profile(lambda: model(x), seconds=0.05))
    first, second = ([row.name for row in f.rows] for f in found)
    assert first == second[::-1]
    assert len(first) == 3
    named = [{row.name: row.index for row in f.rows} for f in found]
    assert named[0] == named[1] == {name: i for i, name in enumerate(first)}


@pytest.mark.parametrize("training", [True, False])
def test_a_model_that_was_left_in_training_mode_is_told(calibrated, training):
    """Dropout would be measured and kept; one that drops nothing is not worth a word."""
    model = nn.Sequential(nn.Softmax(-1), nn.Dropout(0.5)).train(training)
    x = torch.randn(8, 64)
    with torch.no_grad():
        found = profile(lambda: model(x), seconds=0.05)
    told = [note for note in found.notes if note.startswith("in training mode")]
    assert len(told) == int(training)
    assert all("model; where that is not meant, call .eval()" in note for note in told)
