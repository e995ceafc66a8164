"""Have a file's Triton kernels compiled in a process of their own (:mod:`triton_child`)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from kforge_nb.compilers.cpp import Built, build
from kforge_nb.compilers.process import run_limited
from kforge_nb.compilers.sweep import EXPIRED
from kforge_nb.errors import MissingTool
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.extension.session import readable, worker_environment
from kforge_nb.judge.stages import Ended, compile_failed
from kforge_nb.settings import cache_dir

if TYPE_CHECKING:
    from kforge_nb.judge.foreign.session import Loading
    from kforge_nb.targets.target import Target

__all__ = ["compile_triton"]

_SECONDS = 240.0
_MEMORY = 1 << 47  # address space: a CUDA context maps far more than there is
_MAIN = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1])['path']; "
    "from kforge_nb.judge.foreign.triton_child import main; main()"
)
_SYSTEM = ("/usr", "/opt", "/bin", "/lib", "/lib64", "/etc", "/proc", "/sys")


def compile_triton(
    loading: Loading, target: Target, folder: Path, threads: int,
    stop: Callable[[], bool] | None = None,
) -> str:  # fmt: skip
    """Compile what one call needs into Triton's cache under ``folder``; the log.

    Raises:
        Ended: the file cannot be called, or its kernels do not compile.
        MissingTool: there is no compiler for the sandbox.
    """
    cache = Path(loading.cache)
    cache.mkdir(exist_ok=True)
    own = folder / "compiling"
    own.mkdir(exist_ok=True)
    lines = (*readable(loading.source, target.device), *loading.files)
    start = {
        **loading.told(),
        "cache": str(cache),
        "confine": str(_library()),
        "device": target.device,
        "inputs": [(s.shape, s.stride, s.dtype) for s in target.inputs],
        "files": [*lines, *(f"r{path}" for path in _SYSTEM), f"w{cache}", f"w{own}"],
        "path": [str(Path(__file__).parents[3]), *(entry for entry in sys.path if entry)],
    }
    environment = worker_environment(threads) | {"TMPDIR": str(own), "HOME": str(own)}
    folders = [str(Path(sys.executable).parent), *os.environ.get("PATH", "").split(os.pathsep)]
    environment["PATH"] = os.pathsep.join(filter(None, folders))
    for name in ("CC", "CXX"):
        if name in os.environ:
            environment[name] = os.environ[name].split()[0]
    here = Path(__file__).parents[2] / "compilers"
    outcome = run_limited(
        [
            *(sys.executable, "-I", "-S", str(here / "sweep.py"), f"{_SECONDS:g}"),
            *(sys.executable, "-I", "-c", _MAIN, json.dumps(start)),
        ],
        folder=own, environment=environment, time_limit=_SECONDS + 30.0, memory_limit=_MEMORY,
        stop=stop,
    )  # fmt: skip
    if outcome.stopped:
        raise Ended(Verdict.UNDECIDED, "stopped while its kernels were compiled")
    if outcome.timed_out or outcome.status == EXPIRED:
        raise compile_failed("", True)
    if outcome.status != 0:
        last = [line for line in outcome.log.strip().splitlines() if line.strip()][-12:]
        words = last[-1][:300] if last else f"it ended with status {outcome.status}"
        raise Ended(Verdict.COMPILE_FAILED, words, log="\n".join(last))
    return outcome.log[-4000:]


def _library() -> Path:
    judge = files("kforge_nb.judge")
    layers = (judge / "runner" / "sandbox.hpp").read_text().replace("#pragma once", "")
    source = layers + (judge / "foreign" / "compiling.cpp").read_text()
    built = build(source, "kforge_confine_compiling", cache=cache_dir() / "cpp")
    if not isinstance(built, Built):
        raise MissingTool(f"the judge's sandbox could not be compiled: {built.distilled[:600]}")
    return built.library
