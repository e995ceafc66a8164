"""Stages run in children with limits; what a stopped child had written is kept."""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_models, gpu_models_run, gpu_models_search, gpu_models_time
from benchmarks.gpu_models_cases import build
from benchmarks.gpu_models_kernels import Kernels
from benchmarks.gpu_models_profile import profile_stage
from benchmarks.gpu_models_rows import rows_of
from benchmarks.gpu_models_search import (
    LEAST_S,
    LINES,
    Budget,
    Diary,
    fitted,
    follow,
    search_stage,
)
from benchmarks.gpu_models_sides import Sides, all_sides
from benchmarks.gpu_models_state import Places, StageFile, waited
from benchmarks.gpu_models_time import time_stage

CHILD = """
import json, os, subprocess, sys, time
name, stage = sys.argv[1:3]
state = sys.argv[sys.argv.index("--state") + 1]
path = os.path.join(state, f"{name}.{stage}.json")
body = {"model": name, "stage": stage, "done": stage == "profile", "step": "half way",
        "seconds": {"build": 1.0}, "pid": os.getpid()}
open(path, "w").write(json.dumps(body))
if stage == "search":
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    open(path, "w").write(json.dumps({**body, "helper": helper.pid}))
    time.sleep(60)
if stage == "fidelity":
    sys.exit("it broke")
"""


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Options of a call whose children are the small program above."""
    program = tmp_path / "child.py"
    program.write_text(CHILD)
    monkeypatch.setattr(gpu_models_run, "_COMMAND", (sys.executable, str(program)))
    monkeypatch.setattr(gpu_models_run, "GRACE_S", 0.5)
    places = Places(tmp_path / "state", tmp_path / "work")
    places.state.mkdir()
    places.work.mkdir()
    given = {"search_time": 1.0, "guard_time": 1.0, "rest": "auto", "baseline": "eager",
             "candidates": 1, "seconds": 1.0, "sides": [], "ahead": False, "overlap": False,
             "ops": False, "time_limit": 20.0, "compile_limit": 5.0, "device": "cpu",
             "size": ""}  # fmt: skip
    deadline = time.monotonic() + 30.0
    return argparse.Namespace(places=places, deadline=deadline, **given)


def _told(options, *stages):
    lines: list[str] = []
    gpu_models_run.run_stages("vae", stages, options, lines.append)
    return lines


def test_a_child_that_hangs_is_stopped_with_all_it_started(options):
    """One model must not eat the time of the others, nor leave processes on the GPU."""
    options.time_limit = 1.5
    (line,) = _told(options, "search")
    assert "did_not_finish" in line
    assert "half way" in line
    helper = json.loads(options.places.file("vae", "search").read_text())["helper"]
    gone = time.monotonic() + 5.0
    while time.monotonic() < gone and _runs(helper):
        time.sleep(0.02)
    assert not _runs(helper)


def _runs(pid: int) -> bool:
    """Whether a process computes or sleeps; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_failure_is_told_and_the_next_stage_runs(options):
    """The child's log says why; a stage that is done is not run again."""
    lines = _told(options, "fidelity", "profile", "profile")
    assert "failed (it broke)" in lines[0]
    assert lines[1].startswith("vae profile: done in")
    assert lines[2] == "vae profile: done before"


def test_a_cuda_error_is_told_by_its_first_line():
    """Torch ends its message with advice that is the same for every error."""
    log = """a warning
Traceback (most recent call last):
  File "a.py", line 3, in <module>
    main()
RuntimeError: the first

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "a.py", line 9, in main
    torch.cuda.synchronize()
torch.AcceleratorError: CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
    assert gpu_models_run._why(log) == (
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    )
    assert gpu_models_run._why("some words\nKilled\n") == "Killed"
    assert gpu_models_run._why("") == ""


def test_the_guards_compiles_and_those_ahead_serve_the_time_stage(options, monkeypatch):
    """What the search stage's guard compiled is in the caches of the children and of the timing.

    A rest that keeps no kernel is compiled once, as empty.
    """
    places = options.places
    places.file("vae", "search").write_text(json.dumps({"by_rest": {"eager": [0], "inductor": []}}))
    theirs = places.cache("vae", "search")
    theirs.mkdir()
    (theirs / "graph").write_text("compiled by the guard")
    begun = []

    def one(name, stage, options, most=None, share=1.0):
        begun.append((stage, (places.cache(name, stage) / "graph").read_text()))
        (places.cache(name, stage) / stage).write_text("compiled ahead")
        places.file(name, stage).write_text(json.dumps({"done": True}))
        return stage

    monkeypatch.setattr(gpu_models_run, "_one", one)
    gpu_models_run._ahead("vae", options, lambda line: None)
    assert {stage for stage, _ in begun} == {
        "ahead.empty-inductor", "ahead.compile", "ahead.max-autotune",
    }  # fmt: skip
    assert {text for _, text in begun} == {"compiled by the guard"}
    found = {file.name for file in places.cache("vae", "time").iterdir()}
    assert found == {"graph", *(stage for stage, _ in begun)}


def test_without_kernels_the_guarded_side_is_the_empty_one(monkeypatch):
    """A rest that keeps no kernel is compiled once; each side has the kernels of its own rest."""
    torch._dynamo.reset()
    asked = []

    def apply(modules, kernels, rest, calls):
        asked.append((rest, list(kernels)))
        return _Applied(modules, kernels)

    monkeypatch.setattr("kforge_nb.guard.apply.apply", apply)
    kernels = Kernels({"eager": ["kernel"], "inductor": []},
                      {"eager": "eager", "inductor": "inductor"})  # fmt: skip
    sides = Sides(build("resnet50-b1", "tiny", "cpu"), kernels, "cpu")
    for side in ("guarded-eager", "empty-eager", "guarded-inductor", "empty-inductor"):
        sides._add_rest(side)
    assert asked == [("eager", ["kernel"]), ("eager", []), ("inductor", [])]
    assert sides.calls["empty-inductor"] is sides.calls["guarded-inductor"]
    assert sides.calls["empty-eager"] is not sides.calls["guarded-eager"]
    assert sides.decided == {"guarded-eager": "eager", "guarded-inductor": "inductor"}


class _Applied:
    """What ``apply`` returns, as far as sides look at it."""

    def __init__(self, modules, kernels):
        self.guarded = [argparse.Namespace(module=module) for module in modules]
        self.replaced = dict.fromkeys(kernels, 1)

    def report(self):
        """One graph with these kernels."""
        return {"graphs": [{"replaced": self.replaced, "reasons": []}], "refused": {}}


def test_nothing_is_begun_when_the_time_is_up(options):
    """A call ends within its total, whatever is left to do."""
    options.deadline = time.monotonic()
    assert _told(options, "profile") == ["vae profile: not begun, the time is up"]
    assert not list(options.places.state.iterdir())


def test_a_stage_file_shows_the_step_it_is_in(tmp_path):
    """What is read from outside while a step lasts, and the seconds afterwards."""
    places = Places(tmp_path, tmp_path)
    stage = StageFile(places, "vae", "time")
    with stage.measuring("time"):
        assert places.read("vae", "time")["step"] == "time"
    stage.put(done=True)
    body = places.read("vae", "time")
    assert body["done"]
    assert set(body["seconds"]) == {"wait", "time"}


def test_the_most_telling_sides_are_prepared_first():
    """Where time is short the figures that the bars ask for are there."""
    assert all_sides("cuda", "cudagraphs")[:7] == [
        "eager", "empty-eager", "guarded-eager", "empty-cudagraphs", "guarded-cudagraphs",
        "reduce-overhead", "compile",
    ]  # fmt: skip
    assert all_sides("cuda", "eager")[:4] == [
        "eager", "empty-eager", "guarded-eager", "reduce-overhead",
    ]  # fmt: skip
    assert len(set(all_sides("cuda", "inductor"))) == len(all_sides("cuda", "eager")) == 12
    assert not [side for side in all_sides("cpu", "eager") if "cudagraphs" in side.split("-", 1)[-1]
                and side != "max-autotune"]  # fmt: skip


def test_profile_and_time_of_a_tiny_model(tmp_path):
    """The stages themselves on a CPU: a list with shares, and every side timed as often."""
    torch._dynamo.reset()
    places = Places(tmp_path, tmp_path)
    profile_stage("resnet50-b1", "tiny", "cpu", places)
    time_stage("resnet50-b1", "tiny", "cpu", places, limit=120.0, seconds=0.3,
               only=("guarded-eager", "empty-eager"))  # fmt: skip
    profiled = places.read("resnet50-b1", "profile")
    assert profiled["done"]
    assert any(target["family"] == "batch_norm" for target in profiled["targets"])
    timed = places.read("resnet50-b1", "time")
    assert timed["done"]
    assert set(timed["samples"]) == {"eager", "guarded-eager", "empty-eager"}
    assert len({len(taken) for taken in timed["samples"].values()}) == 1
    assert max(timed["differences"].values()) < 1e-5


def test_without_a_gpu_one_sentence_is_all(monkeypatch, capsys):
    """Nothing is started for each model only to fail there; results of elsewhere can be told."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu_models, "_run", pytest.fail)
    monkeypatch.setattr(sys, "argv", ["gpu_models", "--list", "--json"])
    assert gpu_models.main() == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "needs a GPU" in shown.err


WAITER = """
import json, os, sys, time
name, stage = sys.argv[1:3]
state = sys.argv[sys.argv.index("--state") + 1]
path = os.path.join(state, f"{name}.{stage}.json")
body = {"model": name, "stage": stage, "done": False, "seconds": {}, "step": "wait for optimize"}
open(path + ".new", "w").write(json.dumps({**body, "waiting_since": time.monotonic()}))
os.replace(path + ".new", path)
time.sleep(2.5)
open(path + ".new", "w").write(json.dumps({**body, "seconds": {"wait": 2.5}, "done": True}))
os.replace(path + ".new", path)
"""


def test_waiting_for_the_device_costs_a_stage_nothing_of_its_limit(options, tmp_path):
    """Beside a model that holds the device another one keeps its time; only the call's end stays.

    Its own time here would be over long before it has the device.
    """
    (tmp_path / "child.py").write_text(WAITER)
    options.time_limit = 1.0
    (line,) = _told(options, "search")
    assert "search: done in" in line
    options.places.file("vae", "search").unlink()
    options.deadline = time.monotonic() + 2.0
    (line,) = _told(options, "search")
    assert "did_not_finish" in line
    assert "last step: wait for optimize" in line


def test_a_step_tells_since_when_it_waits(tmp_path):
    """What is read from outside counts the waiting while it lasts, and afterwards."""
    places = Places(tmp_path, tmp_path)
    assert waited({}) == 0.0
    body = {"waiting_since": time.monotonic() - 100.0, "seconds": {"wait": 7.0}}
    assert 107.0 <= waited(body) < 160.0
    stage = StageFile(places, "vae", "search")
    with stage.measuring("optimize"):
        assert "waiting_since" not in places.read("vae", "search")


def test_with_little_time_the_first_sides_are_timed_shortly():
    """A stage that begins late gives shorter timing, not a report without any side."""
    begun = time.monotonic()
    seconds, until = gpu_models_time._shares(20.0, 30.0)
    assert seconds == pytest.approx(7.0)
    assert 9.0 < until - begun < 12.0
    assert gpu_models_time._shares(400.0, 30.0)[0] == 30.0


def test_where_the_time_is_over_one_side_is_compared_all_the_same():
    """Eager alone says nothing; the first pair is made ready, and the others are told."""
    added = []
    sides = argparse.Namespace(calls={"eager": []})

    def add(side):
        added.append(side)
        sides.calls[side] = []

    sides.add = add
    stage = argparse.Namespace(
        step=lambda name: nullcontext(), put=lambda **values: None, body={"seconds": {}}
    )
    wanted = ["eager", "empty-eager", "guarded-eager"]
    left = gpu_models_time._prepare(sides, stage, wanted, time.monotonic() - 1.0)
    assert added == ["eager", "empty-eager"]
    assert left == {"guarded-eager": "not prepared: the time was over"}


def test_a_side_that_would_take_too_long_is_not_begun():
    """Preparing cannot be broken off: what took long before is not begun with little time left."""
    sides = argparse.Namespace(calls={"eager": [], "empty-eager": []}, add=pytest.fail)
    stage = argparse.Namespace(body={"seconds": {"build": 90.0, "prepare empty-eager": 40.0}})
    left = gpu_models_time._prepare(sides, stage, ["guarded-eager"], time.monotonic() + 50.0)
    assert left == {"guarded-eager": gpu_models_time.TIME_OVER}


def test_figures_of_a_first_call_stay_until_a_second_has_its_own(tmp_path, monkeypatch):
    """A time stage that is gone on with, and then broken off, has lost nothing."""
    places = Places(tmp_path, tmp_path)
    StageFile(places, "vae", "time").put(samples={"eager": [1.0]}, left_out={"compile": "late"})
    monkeypatch.setattr(gpu_models_time, "build", lambda *_: pytest.fail("it is broken off here"))
    with pytest.raises(pytest.fail.Exception):
        time_stage("vae", "tiny", "cpu", places, limit=60.0, seconds=1.0)
    body = places.read("vae", "time")
    assert body["samples"] == {"eager": [1.0]}
    assert body["step"] == "build"
    assert not body["done"]


def test_a_search_is_made_to_fit_the_time_that_is_left():
    """A run that is broken off in its guard has decided nothing."""
    asked = Budget(60.0, 120.0)
    assert fitted(asked, 500.0, 40.0) == asked
    short = fitted(asked, 200.0, 40.0)
    assert short.search / short.guard == pytest.approx(0.5, rel=0.01)
    assert 40.0 + short.search + 30.0 + short.guard < 200.0
    assert fitted(asked, 1.0, 40.0).search == LEAST_S


def test_a_search_leaves_time_to_time_what_it_found(options, monkeypatch):
    """A call for both ends with rows of both; a search alone may take all of it."""
    limits = []
    monkeypatch.setattr(
        gpu_models_run,
        "_child",
        lambda _name, _stage, _options, limit: limits.append(limit) or "ended",
    )
    options.time_limit = 1000.0
    options.deadline = time.monotonic() + 200.0
    gpu_models_run.run_stages("vae", ("search", "time"), options, lambda _line: None)
    gpu_models_run.run_stages("vae", ("search",), options, lambda _line: None)
    both, timed, alone = limits
    assert 100.0 < both < 140.0 < timed < 200.0
    assert 140.0 < alone < 200.0


def test_a_search_that_was_broken_off_has_a_row(tmp_path):
    """What it was doing when its time was over is in the report."""
    places = Places(tmp_path, tmp_path)
    StageFile(places, "vae", "search").put(step="optimize: measuring", seconds={"build": 3.0})
    (row,) = rows_of(places, "vae")
    assert row["name"] == "vae: search did_not_finish (optimize: measuring)"
    assert row["value"] == 3.0


def test_what_a_run_is_doing_is_told_while_it_goes_on():
    """A stage that is broken off has the run's last words in its file."""
    said = iter(["searching", "measuring in the model", "done"])
    ends = iter([TimeoutError, TimeoutError, None])

    def wait(_seconds):
        end = next(ends)
        if end is not None:
            raise end

    run = argparse.Namespace(status=lambda: next(said), wait=wait)
    told: list[str] = []
    follow(run, told.append)
    assert told == ["searching", "measuring in the model", "done"]


def test_a_diary_has_a_line_where_a_run_says_something_else():
    """Counts that move on are no news, another step is, and the status is always the newest."""
    clock = iter([100.0, 101.0, 140.0])
    diary = Diary(lambda: next(clock))
    diary.told("searching, 1 of 40 candidates judged")
    diary.told("searching, 2 of 40 candidates judged")
    found = diary.told("measuring in the model, 54 s left")
    assert found["step"] == "optimize: measuring in the model, 54 s left"
    assert found["diary"] == [
        (1.0, "searching, 1 of 40 candidates judged"),
        (40.0, "measuring in the model, 54 s left"),
    ]


def test_a_diary_keeps_its_newest_lines_and_their_beginnings():
    """A run that changes its mind all the time fills no file."""
    diary = Diary()
    words = [f"{'searching' if i % 2 else 'waiting'} {'x' * i}" for i in range(LINES + 50)]
    for status in words:
        found = diary.told(status)
    assert [line for _, line in found["diary"]] == [status[:200] for status in words[50:]]
    assert found["step"] == f"optimize: {words[-1]}"


def test_a_search_that_is_broken_off_leaves_its_diary_and_its_candidates(tmp_path, monkeypatch):
    """What was found until then is in the file already, however the process ends."""
    node = {"id": 1, "target": 0, "title": "tiles of 8", "verdict": "slower", "speedup": 0.5,
            "created": 3.0, "reason": "slower"}  # fmt: skip
    document = {"targets": [{"index": 0, "name": "silu"}], "nodes": [node]}
    stored = argparse.Namespace(node=lambda *_: {"evaluation": {"seconds": {"timing": 1.234}}})

    def broken_off(_seconds):
        raise KeyboardInterrupt

    run = argparse.Namespace(
        status=lambda: "searching, 1 of 9 candidates judged", wait=broken_off, document=document,
        record=argparse.Namespace(id="r", store=stored), state="searching",
    )  # fmt: skip
    monkeypatch.setattr(gpu_models_search, "build", lambda *_: None)
    monkeypatch.setattr(gpu_models_search, "workload_of", lambda _: None)
    monkeypatch.setattr(gpu_models_search, "_run", lambda *_: run)
    places = Places(tmp_path, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        search_stage("vae", "tiny", "cpu", places, Budget())
    body = places.read("vae", "search")
    assert not body["done"]
    assert [line for _, line in body["diary"]] == ["searching, 1 of 9 candidates judged"]
    (candidate,) = body["candidates"]
    assert (candidate["target"], candidate["verdict"]) == ("silu", "slower")
    assert candidate["seconds"] == {"timing": 1.23}
