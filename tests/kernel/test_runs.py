"""Runs in a real kernel: cells go on beside them, and no accident loses what was found."""

from __future__ import annotations

from pathlib import Path

import pytest

from kforge_nb.store.store import Store

SETUP = """
import torch
from torch import nn

class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

def mlp(d):
    torch.manual_seed(0)
    made = nn.Sequential(RMSNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
    return made.eval().requires_grad_(False)

model, x = mlp(128), torch.randn(64, 128)
other, y = mlp(96), torch.randn(32, 96)

# A device that nothing comes near to, so that no search ends because a target is fast already.
from kforge_nb.profile import calibration
calibration._MEASURED.clear()
calibration._read = calibration.recall = lambda path, identity: None
calibration._write = calibration.remember = lambda path, measured: measured
calibration._measure = lambda device, identity: calibration.Calibration(
    device, identity, 1e7, {1: 1e7}, {"float32": 1e7}, 0.0
)
"""
FAST = "--baseline eager --rest eager --guard-time 5"
PATIENCE_S = 240


def optimize(kernel, options, cell="model(x)"):
    """Starts a run by the magic; the reply of its cell."""
    reply = kernel.run(f"%%kforge optimize {FAST} {options}\n{cell}", PATIENCE_S)
    assert reply.status == "ok", reply
    return reply


def state_of(kernel, name):
    """State of the run bound to a name, as the kernel says it."""
    return kernel.run(f"{name}.state").text.strip("'")


def nodes_on_disk(folder: Path) -> dict[str, str]:
    """Digest of every node by id, read by another process than the kernel."""
    file = folder / ".kforge" / "runs.db"
    if not file.exists():
        return {}
    with Store(file, read_only=True) as store:
        return {n["id"]: n["digest"] for run in store.runs() for n in store.nodes(run["id"])}


@pytest.fixture(scope="module")
def prepared(module_kernel):
    """One kernel with two models."""
    assert module_kernel.run(SETUP).status == "ok"
    return module_kernel


@pytest.mark.slow
def test_the_cell_returns_and_other_cells_run_meanwhile(prepared, wait_for):
    """Optimize returns while the search goes on; the saved view replaces the live one."""
    reply = optimize(prepared, "--budget 3 --as first")

    assert len(reply.outputs) == 1
    assert state_of(prepared, "first") in {"searching", "guarding", "done"}
    assert prepared.run("40 + 2").text == "42"
    waited = prepared.run("%kforge wait first", PATIENCE_S)
    assert "run first: done" in waited.stdout
    seen = [u["data"] for u in reply.updates + waited.updates if "text/html" in u["data"]]
    last = seen[-1] if seen else prepared.run("first").outputs[-1]  # the others are wait's own line
    assert set(last) == {"application/vnd.kforge.run+json", "text/html", "text/plain"}
    assert prepared.run("len(first.nodes)").text == "3"


@pytest.mark.slow
def test_stop_ends_a_run_and_resume_goes_on(prepared):
    """Stop leaves what was found; resume in the same kernel needs no cell and ends it properly."""
    optimize(prepared, "--budget 200 --patience 200 --as second")

    stopped = prepared.run("%kforge stop second")

    assert "second: stopped" in stopped.stdout
    judged = int(prepared.run("len(second.nodes)").text)
    assert judged < 200
    resumed = prepared.run("%kforge resume second")
    assert resumed.status == "ok", resumed
    assert state_of(prepared, "second") in {"searching", "interrupted", "stopped"}
    prepared.run("%kforge stop second")
    assert int(prepared.run("len(second.nodes)").text) >= judged


@pytest.mark.slow
def test_the_buttons_of_the_live_view_hold_and_end_a_run(prepared, wait_for):
    """Pause and Stop pressed in the widget reach the run thread while no cell runs."""
    optimize(prepared, "--budget 500 --patience 500 --as pressed")
    press = (
        "from kforge_nb.run import live\n"
        "live.find(pressed.id)._views[0].widget.command = {'name': %r, 'at': 1}"
    )

    assert prepared.run(press % "pause").status == "ok"
    assert "(paused)" in prepared.run("%kforge status pressed").stdout
    assert prepared.run(press % "stop").status == "ok"

    wait_for(lambda: state_of(prepared, "pressed") == "stopped", PATIENCE_S, "the run to stop")
    assert "stopped by the button" in prepared.run("%kforge status pressed").stdout


INTERRUPT_WAITING = """
import signal, sys, threading, time, traceback
def press():
    main = threading.main_thread().ident
    def waits():
        stack = traceback.extract_stack(sys._current_frames()[main])
        return any(f.name == "join" and "conductor" in f.filename for f in stack)
    while not waits():
        time.sleep(0.01)
    signal.pthread_kill(main, signal.SIGINT)
threading.Thread(target=press).start()
%kforge wait third
"""


@pytest.mark.slow
def test_an_interrupt_leaves_the_run_alone(prepared, wait_for):
    """The Interrupt button ends the cell that runs or waits, not the run or its processes."""
    optimize(prepared, "--budget 500 --patience 500 --as third")
    waiting = prepared.start("print('here', flush=True)\nwhile True: pass")
    prepared.await_output(waiting, "here")

    prepared.interrupt()

    assert prepared.answer(waiting).error.startswith("KeyboardInterrupt")
    assert "run third goes on" in prepared.run(INTERRUPT_WAITING).stderr
    judged = int(prepared.run("len(third.nodes)").text)
    wait_for(
        lambda: (
            int(prepared.run("len(third.nodes)").text) > judged
            or state_of(prepared, "third") != "searching"
        ),
        PATIENCE_S,
        "the run to go on",
    )
    assert state_of(prepared, "third") in {"searching", "guarding", "done"}
    assert "third: " in prepared.run("%kforge stop third").stdout


@pytest.mark.slow
def test_the_commands_show_a_run(prepared, tmp_path):
    """Status, show, guard, export and runs each answer for a run by its name."""
    optimize(prepared, "--budget 1 --as shown")
    prepared.run("%kforge wait shown", PATIENCE_S)

    assert "run shown: done" in prepared.run("%kforge status shown").stdout
    shown = prepared.run("%kforge show shown").outputs[-1]
    assert "application/vnd.kforge.run+json" in shown
    assert "targets are replaced" in prepared.run("%kforge guard shown").outputs[-1]["text/plain"]
    path = tmp_path / "shown.kforge.json"
    assert (
        f"wrote run shown to {path}" in prepared.run(f"%kforge export shown {path} --redact").stdout
    )
    assert path.exists()
    assert "shown" in prepared.run("%kforge runs").text
    assert "everything needed is here" in prepared.run("%kforge doctor").text


@pytest.mark.slow
def test_two_runs_at_once_keep_apart(prepared):
    """Two runs of different models go on beside each other and both end with their own nodes."""
    optimize(prepared, "--budget 2 --as left")
    optimize(prepared, "--budget 2 --as right", "other(y)")

    assert "left: done" in prepared.run("%kforge wait left", PATIENCE_S).stdout
    assert "right: done" in prepared.run("%kforge wait right", PATIENCE_S).stdout
    assert prepared.run("len(left.nodes), len(right.nodes)").text == "(2, 2)"
    assert prepared.run("left.id != right.id").text == "True"


@pytest.mark.slow
def test_a_killed_kernel_loses_no_finished_evaluation(start_kernel, tmp_path, wait_for):
    """After kill -9 a new kernel resumes: old nodes stay, and only new ones are judged."""
    kernel = start_kernel()
    kernel.run("%load_ext kforge_nb")
    kernel.run(SETUP)
    optimize(kernel, "--budget 8 --patience 50 --as run")
    wait_for(lambda: len(nodes_on_disk(tmp_path)) >= 2, PATIENCE_S, "two nodes on disk")
    kernel.kill()
    before = nodes_on_disk(tmp_path)

    again = start_kernel()
    again.run("%load_ext kforge_nb")
    assert "interrupted" in again.run("%kforge status run").stdout
    again.run(SETUP)
    resumed = again.run("%%kforge resume --as run run\nmodel(x)", PATIENCE_S)
    assert resumed.status == "ok", resumed
    waited = again.run("%kforge wait run", PATIENCE_S)

    assert "run run: done" in waited.stdout
    after = nodes_on_disk(tmp_path)
    assert before.items() <= after.items()
    assert len(before) < len(after) <= 8, waited.stdout
    assert len(set(after.values())) == len(after)
