"""Stop, wait and await on the ipykernel versions that people have: 6.31, 7.1, 7.3 and 7.4.

They differ in the thread on which a button's message is taken, and in whether that happens while a
cell runs. Each is put first on the path of a kernel of its own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time

import pytest

VERSIONS = ("6.31.0", "7.1.0", "7.3.0", "7.4.0")
EVENT_LOOPS = "nest-asyncio"  # what 6.31 and 7.1 need beyond what is installed here
BUSY_S = 0.7

pytestmark = pytest.mark.timeout(120)


def installed(version, cache):
    """The folder with this ipykernel, from the package index once; skips where that is closed.

    With KFORGE_REQUIRE_KERNELS=1 a version that is not to be had fails.
    """
    folder = cache / f"ipykernel-{version}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        fresh = cache / "fresh"
        shutil.rmtree(fresh, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        command += ["--target", str(fresh), f"ipykernel=={version}", EVENT_LOOPS]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        if done.returncode == 0:
            fresh.rename(folder)
            return folder
    reason = f"ipykernel {version} cannot be installed: {done.stderr.strip()[-300:]}"
    if os.environ.get("KFORGE_REQUIRE_KERNELS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
    return None


@pytest.fixture(scope="module", params=VERSIONS)
def versioned(request, tmp_path_factory, home, kernel_class):
    """A kernel of one version; it says so itself."""
    packages = installed(request.param, request.config.cache.mkdir("kernels"))
    made = kernel_class(tmp_path_factory.mktemp("kernel"), home, packages)
    said = made.run("import ipykernel; ipykernel.__version__").text.strip("'")
    assert said == request.param
    assert made.run("from tests.kernel.light_run import begin\nimport time").status == "ok"
    yield made, tuple(map(int, said.split(".")))
    made.close()


def begin(kernel, name):
    """Starts a run in a cell that returns at once; the id of its widget's comm."""
    reply = kernel.run(f"{name} = begin({name!r})")
    assert reply.status == "ok", reply
    assert reply.seconds < 5
    return kernel.comms()[-1]


def state_of(kernel, name):
    """State and reason in one line, by a cell."""
    return kernel.run(f"print({name}.status())").stdout


def state_in(message):
    """Traits that a message to the page sets."""
    return message["content"].get("data", {}).get("state", {})


def answers_of(number, since):
    """Whether the request of this number has been answered, by the messages since."""

    def answered(seen):
        details = [state_in(m).get("detail", {}) for m in seen[since:]]
        return [d for d in details if any(number in a["n"] for a in d.values())]

    return answered


def until_ended(kernel, name):
    """Waits in a cell for the end; the status."""
    return kernel.run(f"{name}.wait(20); print({name}.status())").stdout


def test_stop_after_the_cell_has_returned_acts_at_once(versioned):
    """With no cell running, a click ends the run; the saved view follows without any cell."""
    kernel, _ = versioned
    for n, subshell in enumerate((None, kernel.subshell())):
        comm, heard = begin(kernel, f"idle{n}"), len(kernel.seen)
        begun = time.monotonic()
        kernel.press(comm, subshell, command={"name": "stop", "n": n})

        def saved(seen, heard=heard):
            return [m for m in seen[heard:] if m["msg_type"] == "update_display_data"]

        (last,) = kernel.listen(saved)[-1:]
        assert time.monotonic() - begun < 5
        assert "text/html" in last["content"]["data"]
        assert f"idle{n}: stopped by the button" in state_of(kernel, f"idle{n}")


@pytest.mark.parametrize("over", ["shell", "subshell"])
def test_stop_while_a_cell_runs_acts_after_it_at_the_latest(versioned, over):
    """The cell ends as it should, the run ends by the button, and the next cell works."""
    kernel, version = versioned
    subshell = kernel.subshell() if over == "subshell" else None
    if over == "subshell" and subshell is None:
        assert version < (7, 0, 0)
        return
    at_once = subshell is not None  # beside the cell, on another thread
    name = f"busy_{over}"
    comm = begin(kernel, name)
    code = f"print('begun', flush=True)\nend = time.monotonic() + {20 if at_once else BUSY_S}\n"
    code += f"while time.monotonic() < end and {name}.state != 'stopped': pass\nprint({name}.state)"
    asked = kernel.start(code)
    kernel.await_output(asked, "begun")
    kernel.press(comm, subshell, command={"name": "stop", "n": 1})
    reply = kernel.answer(asked)

    assert reply.status == "ok", reply
    assert ("stopped" in reply.stdout) == at_once
    assert f"{name}: stopped by the button" in until_ended(kernel, name)
    assert kernel.run("40 + 2").text == "42"


def test_stop_is_heard_though_the_last_to_ask_was_a_subshell_that_is_gone(versioned):
    """A page that opens asks over a subshell of its own and ends it; its buttons work after that.

    The view's next message comes from a thread, for which the kernel names that subshell.
    """
    kernel, version = versioned
    gone, stays = kernel.subshell(), kernel.subshell()
    if gone is None:
        assert version < (7, 0, 0)
        return
    comm = begin(kernel, "reopened")
    kernel.press(comm, gone, detail_request={"id": "0.0", "n": "a.1"})
    kernel.listen(answers_of("a.1", len(kernel.seen)))
    heard = len(kernel.seen)
    kernel.end_subshell(gone)
    kernel.listen(lambda seen: [m for m in seen[heard:] if "changes" in state_in(m)])
    kernel.press(comm, stays, command={"name": "stop", "n": "b.1"})

    assert "reopened: stopped by the button" in until_ended(kernel, "reopened")


def test_wait_await_and_stop_from_cells(versioned):
    """``run.stop()`` ends a run from any cell, and both ways of waiting return the run."""
    kernel, _ = versioned
    begin(kernel, "run")
    stopped = kernel.run("run.stop(); print(run.status()); (await run) is run.wait()")
    assert "run: stopped by the user" in stopped.stdout
    assert stopped.text == "True"
    ended = kernel.run("short = begin('short', budget=5, show=False)\n(await short).state")
    assert ended.text == "'done'"
    timed = kernel.run(
        "import asyncio\nlong = begin('long', show=False)\n"
        "async def wait(): return await long\n"
        "try:\n    await asyncio.wait_for(wait(), 0.3)\n"
        "except TimeoutError:\n    print(long.state)\nlong.stop()"
    )
    assert timed.stdout == "searching\n"


def test_an_interrupt_ends_an_awaiting_cell_and_not_the_run(versioned):
    """The Interrupt button frees a cell that awaits a run."""
    kernel, _ = versioned
    begin(kernel, "kept")
    asked = kernel.start("print('begun', flush=True)\nawait kept")
    kernel.await_output(asked, "begun")
    kernel.interrupt()

    assert kernel.answer(asked).status == "error"
    assert "kept: searching" in state_of(kernel, "kept")
    assert "kept: stopped" in kernel.run("kept.stop(); print(kept.status())").stdout
