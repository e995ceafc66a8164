"""Compiles ahead: the notebook finds them in the cache, and Stop and time limits kill them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from kforge_nb.errors import BadInput
from kforge_nb.guard import ahead
from kforge_nb.guard.ahead import Ahead, NotFinished
from kforge_nb.guard.ahead_graph import graph_to_rows, rows_to_graph, specs_of
from kforge_nb.guard.decide import decide
from kforge_nb.guard.measure import Model, Stopped, Timer


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Inductor's cache is empty, and the test's own."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))


@pytest.fixture
def x(device):
    """The input that the kernels were accepted for."""
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(3)).to(device)


def sites(workload, accepted):
    """The eager sites of a workload, as the guard has them when it comes to Inductor."""
    model = Model.of(workload.calls, accepted, "eager")
    model.run(frozenset())
    return model.backend.sites


def test_a_kernel_less_is_compiled_ahead_too(workload, block, accept, x, monkeypatch):
    """Where some kernels were dropped, the graphs are those that the notebook compiles later.

    Their originals once stood in them as functions of ours, which no other process can be told.
    """
    accepted = accept(block, x)
    kept = frozenset(k.target_fingerprint for k in accepted[1:])
    asked = []

    def run(request, timer):
        asked.extend(request["graphs"])
        return [""] * len(request["graphs"])

    monkeypatch.setattr(ahead, "_run", run)
    assert Ahead().compile(sites(workload, accepted), kept, Timer.of(60)) == ""
    launched = sorted(json.dumps(graph["rows"]).count("kforge.launch") for graph in asked)
    assert launched == [0, len(kept)]
    (site,) = sites(workload, accepted[1:])
    assert ahead._job(site.rewritten, site.example_inputs, site.state)["rows"] in [
        graph["rows"] for graph in asked
    ]


def test_the_notebook_finds_what_the_children_compiled(workload, block, accept, x, monkeypatch):
    """With, without and with some kernels Inductor's own compile is read from the cache.

    That with some must be compiled while Dynamo is at it: later the cache is not looked at.
    """
    monkeypatch.setattr(ahead, "_children", lambda graphs: 2)
    accepted = accept(block, x)
    kept = frozenset(k.target_fingerprint for k in accepted)
    some = frozenset([accepted[0].target_fingerprint])
    assert Ahead().compile(sites(workload, accepted), kept, Timer.of(200), some) == ""
    counters.clear()
    live = Model.of(workload.calls, accepted, "inductor", early=[some])
    for chosen in (kept, frozenset(), some):
        live.run(chosen)
    found = counters["inductor"]
    assert found["fxgraph_cache_hit"] == 3, dict(found)
    assert not found["fxgraph_cache_miss"]


def test_what_was_compiled_is_not_compiled_again(workload, accept, block, x, monkeypatch):
    """The same graphs for another rest cost nothing."""
    asked = []

    def run(request, timer):
        asked.append(request)
        return [""] * len(request["graphs"])

    monkeypatch.setattr(ahead, "_run", run)
    first = Ahead()
    for _ in range(2):
        first.compile(sites(workload, accept(block, x)), frozenset(), Timer.of(9))
    assert len(asked) == 1
    assert len(asked[0]["graphs"]) == 1
    assert "weight" not in str(asked[0]["graphs"][0]["inputs"])


def leftovers():
    """Processes that this one started to compile ahead and that still run."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = place.read_bytes()
            if b"ahead_child" in words and str(os.getpid()).encode() in words:
                found.append(place)
    return found


@pytest.fixture
def endless(monkeypatch):
    """The child sleeps instead of compiling; its command line names this process."""
    command = [
        ahead.sys.executable, "-c", "import time; time.sleep(600)", "ahead_child", str(os.getpid()),
    ]  # fmt: skip
    monkeypatch.setattr(ahead, "_command", lambda path: command)


def test_stop_kills_the_child(workload, endless):
    """Stop ends a compile at once, and no process is left."""
    stop = threading.Event()
    timer = Timer.of(60, stop)
    found = sites(workload, [])
    threading.Timer(0.5, stop.set).start()
    start = time.monotonic()
    with pytest.raises(Stopped):
        Ahead().compile(found, frozenset(), timer)
    assert time.monotonic() - start < 10
    assert not leftovers()


def test_time_kills_the_child_and_the_rest_is_left_out(workload, endless):
    """A compile that takes longer than the guard may is named, and the model is left alone."""
    with pytest.raises(NotFinished, match="did not finish"):
        Ahead().compile(sites(workload, []), frozenset(), Timer.of(0.5))
    report = decide(workload, [], "inductor", time_limit=4)
    assert any("inductor was not used" in n and "did not finish" in n for n in report.notes)
    assert {w.rest for w in report.whole} == {"eager"}
    assert not leftovers()


def files(folder):
    """Every file under a folder, by its path in it."""
    found = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_text(errors="replace") for p in found}


def test_a_killed_compiler_leaves_no_half_written_library(workload, monkeypatch, tmp_path):
    """Inductor would load it, and the user's own compile would fail for good."""
    script = (
        "import os, pathlib, time; c = pathlib.Path(os.environ['TORCHINDUCTOR_CACHE_DIR']);"
        "c.mkdir(); (c / 'half.so').write_text('ELF'); print('written'); time.sleep(600)"
    )
    monkeypatch.setattr(ahead, "_command", lambda path: [ahead.sys.executable, "-c", script])
    with pytest.raises(NotFinished):
        Ahead().compile(sites(workload, []), frozenset(), Timer.of(3))
    assert files(tmp_path / "inductor") == {}


def test_finished_files_move_to_the_users_cache_and_replace_nothing(
    workload, monkeypatch, tmp_path
):
    """What the user's own process has written there is in use."""
    script = (
        "import os, pathlib; c = pathlib.Path(os.environ['TORCHINDUCTOR_CACHE_DIR']);"
        "(c / 'aa').mkdir(parents=True); (c / 'aa/new.py').write_text('new');"
        "(c / 'aa/old.py').write_text('other');"
        "pathlib.Path('answers.json').write_text('[\"\"]')"
    )
    monkeypatch.setattr(ahead, "_command", lambda path: [ahead.sys.executable, "-c", script])
    cache = tmp_path / "inductor"
    (cache / "aa").mkdir(parents=True)
    (cache / "aa/old.py").write_text("old")
    assert Ahead().compile(sites(workload, []), frozenset(), Timer.of(60)) == ""
    assert files(cache) == {"aa/new.py": "new", "aa/old.py": "old"}


def test_the_child_knows_no_secret(monkeypatch, tmp_path):
    """It needs the user's environment, but not the keys in it."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-children")
    monkeypatch.setenv("CXX", "g++-for-children")
    found = ahead._environment(tmp_path)
    assert found["CXX"] == "g++-for-children"
    assert "sk-not-for-children" not in found.values()


def test_a_child_that_crashes_is_a_rest_less(workload, monkeypatch):
    """What kills the child would have killed the notebook: the rest is not compiled here."""
    command = [ahead.sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"]
    monkeypatch.setattr(ahead, "_command", lambda path: command)
    with pytest.raises(NotFinished, match="SIGSEGV"):
        Ahead().compile(sites(workload, []), frozenset(), Timer.of(60))


def test_a_child_that_fails_leaves_the_work_to_the_notebook(workload, monkeypatch):
    """An exception in the child is told; the compile then happens here, as ever."""
    command = [ahead.sys.executable, "-c", "raise SystemExit('no such compiler')"]
    monkeypatch.setattr(ahead, "_command", lambda path: command)
    assert Ahead().compile(sites(workload, []), frozenset(), Timer.of(60)) == "no such compiler"


def test_a_child_that_failed_says_nothing_of_its_graphs(workload, monkeypatch):
    """A child that ended for reasons of its own does not condemn what it was asked for."""
    broken = [ahead.sys.executable, "-c", "raise SystemExit('no memory left')"]
    whole = [
        ahead.sys.executable, "-c", "import pathlib;"
        "pathlib.Path('cache').mkdir(); pathlib.Path('answers.json').write_text('[\"\"]')",
    ]  # fmt: skip
    commands = [broken, whole]
    monkeypatch.setattr(ahead, "_command", lambda path: commands.pop(0))
    found, one = sites(workload, []), Ahead()
    assert one.compile(found, frozenset(), Timer.of(60)) == "no memory left"
    assert one.compile(found, frozenset(), Timer.of(60)) == ""
    assert commands == []


def test_what_failed_is_not_taken_for_compiled(workload, accept, block, x, monkeypatch):
    """Asked again for the same graphs, it says why; and one that fails costs the others nothing."""
    accepted = accept(block, x)
    kept = frozenset(k.target_fingerprint for k in accepted)
    found, asked = sites(workload, accepted), []

    def run(request, timer):
        asked.append(len(request["graphs"]))
        return ["no such operator", ""][: len(request["graphs"])]

    monkeypatch.setattr(ahead, "_run", run)
    both = Ahead()
    assert both.compile(found, kept, Timer.of(9)) == "no such operator"
    assert both.compile(found, kept, Timer.of(9)) == "no such operator"
    assert asked == [2]
    assert both.compile([], kept, Timer.of(9)) == ""


def test_the_child_goes_on_after_a_graph_that_fails(workload, accept, block, x, tmp_path):
    """It says of each graph what came of it, and what it compiled is in the cache."""
    (site,) = sites(workload, accept(block, x))
    good = ahead._job(site.gm, site.example_inputs, site.state)
    bad = {**good, "rows": [["call", ["torch", "no_such_function"], [], {}]]}
    request = {
        "parent": os.getpid(), "settings": ahead._settings(), "patches": ahead.PATCHES,
        "kernels": [], "graphs": [bad, good],
    }  # fmt: skip
    first, second = ahead._run(request, Timer.of(200))
    assert "no_such_function" in first
    assert second == ""
    assert any(name.endswith(".py") for name in files(tmp_path / "inductor"))


NOTEBOOK = """
import subprocess, sys, time
child = subprocess.Popen(sys.argv[1:], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""
CHILD = """
import json, os, sys, time
from kforge_nb.guard import ahead_child
def endless(job, patches):
    print("compiling", flush=True)
    time.sleep(600)
ahead_child._compile = endless
with open(sys.argv[1]) as file:
    request = json.load(file)
with open(sys.argv[1], "w") as file:
    json.dump({**request, "parent": os.getppid()}, file)
ahead_child.main(sys.argv[1])
"""


def test_the_child_ends_with_the_notebook(tmp_path):
    """A notebook that is killed leaves no compile behind."""
    request = {"settings": ahead._settings(), "patches": {}, "kernels": [], "graphs": [{}]}
    path = tmp_path / "request.json"
    path.write_text(json.dumps(request))
    python = [ahead.sys.executable, "-c"]
    notebook = subprocess.Popen(
        [*python, NOTEBOOK, *python, CHILD, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    child = Path("/proc", notebook.stdout.readline().decode().strip())
    try:
        assert notebook.stdout.readline() == b"compiling\n"
        notebook.kill()
        notebook.wait()
        end = time.monotonic() + 20
        while _runs(child) and time.monotonic() < end:
            time.sleep(0.1)
        assert not _runs(child)
    finally:
        notebook.kill()
        if _runs(child):
            os.kill(int(child.name), signal.SIGKILL)


def _runs(process):
    """Whether a process is there and no zombie."""
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_graphs_keep_what_they_compute(workload, block, accept, x):
    """A graph that was written and read gives the same values, launches included."""
    accepted = accept(block, x)
    for site in sites(workload, accepted):
        for gm in (site.gm, site.rewritten):
            again = rows_to_graph(graph_to_rows(gm))
            args = site.example_inputs
            for mine, theirs in zip(again(*args), gm(*args), strict=True):
                torch.testing.assert_close(mine, theirs)


def test_arguments_of_every_kind_are_kept():
    """Slices, ellipses, dtypes, devices, formats, infinities and nested lists survive."""

    def fn(x):
        y = x[..., 1:3].to(torch.float64, memory_format=torch.contiguous_format)
        z = torch.cat([y, torch.zeros(2, 2, device=torch.device("cpu"), dtype=y.dtype)], dim=0)
        masked = z.masked_fill(z > 0, float("-inf"))
        return (torch.nn.functional.gelu(z, approximate="tanh"), masked.softmax(-1).size(0))

    found = []

    def keep(gm, example_inputs):
        found.append(gm)
        return gm.forward

    torch.compile(fn, backend=keep, dynamic=False)(torch.randn(2, 4))
    again = rows_to_graph(graph_to_rows(found[0]))
    x = torch.randn(2, 4)
    for mine, theirs in zip(again(x), found[0](x), strict=True):
        assert torch.equal(mine, theirs)


def test_what_has_no_name_in_torch_is_told():
    """A function of the user's, and sizes that change, cannot be handed to the child."""

    def mine(x):
        return x

    graph = torch.fx.Graph()
    graph.output((graph.call_function(mine, (graph.placeholder("x"),)),))
    with pytest.raises(BadInput, match="cannot be named to another process"):
        graph_to_rows(torch.fx.GraphModule({}, graph))
    with pytest.raises(BadInput, match="sizes change"):
        specs_of([3])
