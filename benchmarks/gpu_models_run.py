"""Runs the stages of ``gpu_models``, each in a child with a limit; says in a line how it went."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from signal import SIGKILL

from benchmarks.gpu_models_sides import ahead_of
from benchmarks.gpu_models_state import Places
from benchmarks.gpu_models_time import wanted_sides

__all__ = ["COMPILE_S", "run_stages"]

GRACE_S = 5.0
COMPILE_S = 180.0
"""A baseline that has not compiled after so long did not finish."""
_COMMAND = (sys.executable, "-m", "benchmarks.gpu_models_child")
LARGE = "qwen35-35b"
"""Two of this model do not fit into one GPU's memory, so only one child at a time has one."""
_large = threading.Lock()


def run_stages(
    name: str, stages: Sequence[str], options: argparse.Namespace, tell: Callable[[str], None]
) -> None:
    """Run the stages of one model that are not done yet; ``tell`` gets a line for each.

    The time stage is three: compiles ahead, the whole model, and the listed targets alone. What
    does not hang on the search is compiled during it where ``options.overlap`` says so: that takes
    less time in all, and disturbs the search.
    """
    with ThreadPoolExecutor(1) as pool:
        early = None
        if "time" in stages and options.ahead and options.overlap:
            early = pool.submit(_ahead, name, options, tell, guarded=False)
        for stage in stages:
            if stage != "time":
                tell(_one(name, stage, options))
                continue
            if early is not None:
                early.result()
            if options.ahead:
                _ahead(name, options, tell)
            tell(_one(name, "time", options))
            if options.ops:
                tell(_one(name, "ops", options))


def _one(name: str, stage: str, options: argparse.Namespace, most: float | None = None) -> str:
    places: Places = options.places
    if places.read(name, stage).get("done"):
        return f"{name} {stage}: done before"
    limit = min(most or options.time_limit, options.deadline - time.monotonic() - GRACE_S)
    if limit < GRACE_S:
        return f"{name} {stage}: not begun, the time is up"
    start = time.monotonic()
    with _large if name.startswith(LARGE) else nullcontext():
        how = _child(name, stage, options, limit)
    body = places.read(name, stage)
    steps = " ".join(f"{k} {v:.0f}" for k, v in body.get("seconds", {}).items() if v >= 0.5)
    said = "done" if body.get("done") else f"{how}, last step: {body.get('step', 'starting')}"
    return f"{name} {stage}: {said} in {time.monotonic() - start:.0f} s ({steps})"


def _ahead(
    name: str, options: argparse.Namespace, tell: Callable[[str], None], *, guarded: bool = True
) -> None:
    """Compile what Inductor has a part in, side by side, for the cache of the time stage.

    Without ``guarded`` only the sides that hold no kernels.
    """
    places: Places = options.places
    wanted = wanted_sides(places, name, options.device, options.sides)
    sides = [side for side in dict.fromkeys(map(ahead_of, wanted)) if side]
    sides = [s for s in sides if guarded or not s.startswith("guarded")]
    sides = [s for s in sides if not places.read(name, f"ahead.{s}").get("done")]
    with ThreadPoolExecutor(max(1, len(sides))) as pool:
        for line in pool.map(partial(_compiled, name, options), sides):
            tell(line)
    for side in sides:
        source = places.cache(name, f"ahead.{side}")
        if places.read(name, f"ahead.{side}").get("done") and source.is_dir():
            shutil.copytree(source, places.cache(name, "time"), dirs_exist_ok=True)


def _compiled(name: str, options: argparse.Namespace, side: str) -> str:
    return _one(name, f"ahead.{side}", options, options.compile_limit)


def _child(name: str, stage: str, options: argparse.Namespace, limit: float) -> str:
    """Run the child; its output goes to a log in the state folder. Returns how it ended."""
    places: Places = options.places
    root = Path(__file__).resolve().parent.parent
    log = places.log(name, stage)
    with log.open("w") as file:
        child = subprocess.Popen(
            [*_COMMAND, *_words(name, stage, options), "--limit", f"{limit:.0f}"],
            cwd=root,
            env=_environment(root, places.cache(name, stage)),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = child.wait(timeout=limit + GRACE_S)
        except subprocess.TimeoutExpired:
            _stop(child)
            return f"did_not_finish within {limit:.0f} s"
        except BaseException:
            _stop(child)
            raise
    if code == 0:
        return "ended"
    last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"failed ({last[-1][:200] if last else f'exit {code}'})"


def _words(name: str, stage: str, options: argparse.Namespace) -> Sequence[str]:
    given = {
        "--device": options.device,
        "--state": options.places.state,
        "--work": options.places.work,
        "--search-time": options.search_time,
        "--guard-time": options.guard_time,
        "--rest": options.rest,
        "--baseline": options.baseline,
        "--candidates": options.candidates,
        "--seconds": options.seconds,
    }
    words = [name, stage, *(str(word) for pair in given.items() for word in pair)]
    needs = ["--need-ahead"] if options.ahead else []
    return [*words, *needs, "--sides", *options.sides]


def _environment(root: Path, cache: Path) -> dict[str, str]:
    path = os.pathsep.join(p for p in (str(root), os.environ.get("PYTHONPATH", "")) if p)
    return {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONPATH": path}


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Stop a child with everything that it started."""
    os.killpg(child.pid, SIGKILL)
    child.wait()
