"""Compile with Inductor in a process that can be killed, so that the notebook only reads a cache.

A compile in the notebook's own process cannot be broken off, and Dynamo's lock holds up the user's
own compiles meanwhile. So a child compiles the same graphs first, with a time limit; Stop kills it.
It writes to a cache folder of its own, for a killed compiler leaves half-written libraries, which
Inductor would load; what it has finished moves to the user's cache, file by file. The notebook's
compile then finds it there and takes a second or two. A rest whose child did not end is left out.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.errors import BadInput
from kforge_nb.guard import launch
from kforge_nb.guard.ahead_graph import graph_to_rows, specs_of
from kforge_nb.guard.measure import Timer
from kforge_nb.guard.short import shorten
from kforge_nb.settings import open_environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import fx

    from kforge_nb.guard.switch import Site
    from kforge_nb.workload.calls import GradState

__all__ = ["Ahead", "NotFinished"]

ANSWERS = "answers.json"
"""Beside the request: what the child says of each graph."""
LOOK_SECONDS = 0.1
CORES_EACH = 4
"""So many cores for each process that compiles; Inductor's own helpers need some as well."""
BESIDE_CORES = 2 * CORES_EACH
"""With fewer cores nothing is compiled beside what the guard does meanwhile."""
BESIDE_NICE = 15
"""How far such a child stands back from the notebook's own threads."""
PATCHES = {"triton.cudagraphs": False}


class NotFinished(Exception):
    """The child was killed at its time limit, or died as the notebook would have died."""


class _NoAnswer(Exception):
    """The child ended without a word on its graphs; its last words."""


@dataclass
class Ahead:
    """Compiles graphs ahead; remembers what came of each. ``seconds`` is what the last took."""

    seconds: float = 0.0
    _done: dict[str, str] = field(default_factory=dict)
    """Of each graph, as the child said it, why it could not be compiled, empty if it was."""
    _beside: _Beside | None = None

    def begin(
        self, sites: Iterable[Site], kept: frozenset[str], timer: Timer, *more: frozenset[str]
    ) -> bool:
        """As ``compile``, but only begin it; ``compile`` waits for what is under way.

        Returns:
            Whether it was begun: where cores are few it would only disturb what goes on beside.
        """
        if self._beside is not None or len(os.sched_getaffinity(0)) < BESIDE_CORES:
            return False
        jobs, kernels, _ = _jobs(sites, kept, *more)
        new = {key: job for key, job in jobs.items() if key not in self._done}
        if new:
            self._beside = _Beside(list(new), _request(new.values(), kernels), timer.left)
        return bool(new)

    def stop(self) -> None:
        """End what is under way; nothing where nothing is."""
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.end()

    def _wait(self, timer: Timer) -> None:
        """Wait for what is under way, and take what came of it; raises as ``compile`` does."""
        beside = self._beside
        if beside is None:
            return
        try:
            with suppress(_NoAnswer):  # then they are compiled again
                self._done.update(zip(beside.keys, beside.answers(timer), strict=True))
        finally:
            self.stop()

    def compile(
        self, sites: Iterable[Site], kept: frozenset[str], timer: Timer, *more: frozenset[str]
    ) -> str:
        """Have the graphs of these sites compiled: without kernels, with those kept, with others.

        Returns:
            Why a graph was not compiled ahead, so that the notebook's process has to do it; empty
            if all were.

        Raises:
            NotFinished: time was over, or the child was killed by a signal; the text says which.
            Stopped: Stop was pressed; the child is gone.
        """
        start = time.monotonic()
        jobs, kernels, why = _jobs(sites, kept, *more)
        try:
            self._wait(timer)
            new = {key: job for key, job in jobs.items() if key not in self._done}
            if new:
                answers = _run(_request(new.values(), kernels), timer)
                self._done.update(zip(new, answers, strict=True))
        except _NoAnswer as ended:  # which of them was to blame is not known: ask again
            return str(ended)
        finally:
            self.seconds = time.monotonic() - start
        return next(filter(None, (self._done[key] for key in jobs)), why)


class _Beside:
    """A compile ahead on a thread of its own, which waits for the children."""

    def __init__(self, keys: Sequence[str], request: dict[str, Any], seconds: float) -> None:
        self.keys = keys
        self._halt = threading.Event()
        self._begun = time.monotonic()
        self._found: Future[list[str]] = Future()
        timer = Timer.of(seconds, self._halt)
        self._thread = threading.Thread(target=self._compile, args=(request, timer), daemon=True)
        self._thread.start()

    def _compile(self, request: dict[str, Any], timer: Timer) -> None:
        try:
            self._found.set_result(_run({**request, "nice": BESIDE_NICE}, timer))
        except BaseException as problem:  # noqa: BLE001 (whoever waits for it gets it)
            self._found.set_exception(problem)

    def answers(self, timer: Timer) -> list[str]:
        """What came of each graph; raises as ``_run`` does."""
        while True:
            timer.check()
            if timer.left <= 0 and not self._found.done():
                raise NotFinished(f"did not finish in {time.monotonic() - self._begun:.0f} s")
            with suppress(TimeoutError):
                return self._found.result(LOOK_SECONDS)

    def end(self) -> None:
        """Kill the children, if they still run, and wait for the thread."""
        self._halt.set()
        self._thread.join()


def _jobs(
    sites: Iterable[Site], kept: frozenset[str], *more: frozenset[str]
) -> tuple[dict[str, dict[str, Any]], dict[int, dict[str, Any]], str]:
    """The graphs to compile by their text, the kernels in them, and why others cannot be told."""
    jobs, why = {}, ""
    kernels: dict[int, dict[str, Any]] = {}
    for site in sites:
        for enabled in {frozenset[str](), *(site.present(chosen) for chosen in (kept, *more))}:
            try:
                gm = site.only(enabled)
                job = _job(gm, site.example_inputs, site.state)
                kernels.update(_kernels(gm))
            except BadInput as problem:
                why = str(problem)
            else:
                jobs[json.dumps(job)] = job
    return jobs, kernels, why


def _request(jobs: Iterable[dict[str, Any]], kernels: dict[int, dict[str, Any]]) -> dict[str, Any]:
    return {
        "parent": os.getpid(),
        "settings": _settings(),
        "patches": PATCHES,
        "kernels": list(kernels.values()),
        "graphs": list(jobs),
    }


def _job(gm: fx.GraphModule, example_inputs: list[Any], state: GradState) -> dict[str, Any]:
    """The graph as its rest hands it to Inductor, with what it is compiled for."""
    return {
        "rows": graph_to_rows(shorten(gm)),
        "inputs": specs_of(example_inputs),
        "grad": state.grad,
        "inference": state.inference,
        "autocast": [[d, str(t).removeprefix("torch.")] for d, t in state.autocast],
        "autocast_cache": state.autocast_cache,
    }


def _kernels(gm: fx.GraphModule) -> dict[int, dict[str, Any]]:
    """What the launch op's fake needs of each kernel of a graph, by handle."""
    found = {}
    for node in gm.graph.nodes:
        if node.op == "call_function" and str(node.target) == "kforge.launch.default":
            handle = int(node.args[1])
            kernel = launch.kernel(handle)
            found[handle] = {
                "handle": handle,
                "graph": graph_to_rows(kernel.reference),
                "inputs": [astuple(spec) for spec in kernel.inputs],
                "outputs": [astuple(spec) for spec in kernel.outputs],
            }
    return found


def _settings() -> dict[str, Any]:
    return {
        "threads": torch.get_num_threads(),
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "torch_seen_in": pickle.whichmodule(  # type: ignore[attr-defined]
            torch.contiguous_format, "torch.contiguous_format"
        ),
        "fp32": getattr(torch.backends.cuda.matmul, "fp32_precision", None),
    }


def _children(graphs: int) -> int:
    """How many processes compile so many graphs: most of a compile is one thread's work."""
    return max(1, min(graphs, len(os.sched_getaffinity(0)) // CORES_EACH))


def _run(request: dict[str, Any], timer: Timer) -> list[str]:
    """Start children and wait for them, looking at the time and at Stop.

    Returns:
        Of each graph of the request why it was not compiled, empty if it was.

    Raises:
        _NoAnswer: a child ended by itself and left no answers.
    """
    start, graphs = time.monotonic(), request["graphs"]
    count = _children(len(graphs))
    answers = [""] * len(graphs)
    with tempfile.TemporaryDirectory(prefix=".kforge-ahead-", dir=_cache()) as folder:
        children: list[_Child] = []
        try:
            for turn in range(count):
                home = Path(folder, str(turn))
                children.append(_Child(home, {**request, "graphs": graphs[turn::count]}))
            while any(child.status() is None for child in children):
                timer.check()
                if timer.left <= 0:
                    raise NotFinished(f"did not finish in {time.monotonic() - start:.0f} s")
        finally:
            for child in children:
                child.kill()
        for turn, child in enumerate(children):
            answers[turn::count] = child.answers()
            _move(child.cache, _cache())
    return answers


class _Child:
    """A process that compiles some graphs, with a folder and a cache of its own."""

    def __init__(self, home: Path, request: dict[str, Any]) -> None:
        home.mkdir()
        self.cache = home / "cache"
        self._log = home / "log.txt"
        self._graphs = len(request["graphs"])
        self._path = home / "request.json"
        self._path.write_text(json.dumps(request), encoding="utf-8")
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                _command(self._path),
                cwd=home,
                env=_environment(self.cache),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def status(self) -> int | None:
        """How it ended, None if it has not within a moment."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(LOOK_SECONDS)
        return None

    def kill(self) -> None:
        """End it and all that it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def answers(self) -> list[str]:
        """What it said of each of its graphs; raises as ``_run`` does."""
        status = self._process.returncode
        if status < 0:
            raise NotFinished(f"ended its process by {signal.Signals(-status).name}")
        found = _answers(self._path.with_name(ANSWERS)) if not status else []
        if len(found) != self._graphs:
            raise _NoAnswer(_last_words(self._log))
        return found


def _answers(path: Path) -> list[str]:
    """What the child says of each graph; nothing where it left no such list."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [str(entry) for entry in found] if isinstance(found, list) else []


def _command(path: Path) -> list[str]:
    return [sys.executable, "-m", "kforge_nb.guard.ahead_child", str(path)]


def _cache() -> Path:
    """Inductor's cache folder in this process."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    folder = Path(cache_dir())
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _environment(cache: Path) -> dict[str, str]:
    """The notebook's without its secrets, with the package on the path and a cache of its own."""
    home = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    own = {"PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    environment = open_environment() | own
    environment.pop("TRITON_CACHE_DIR", None)  # the default is a folder in Inductor's
    return environment


def _move(source: Path, target: Path) -> None:
    """Give each file its place in ``target``, whole or not at all; what is there already stays."""
    for file in sorted(p for p in source.rglob("*") if p.is_file() and not p.is_symlink()):
        place = target / file.relative_to(source)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            file.replace(place)


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return (lines or ["the process gave no reason"])[-1][:200]
