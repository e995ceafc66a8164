"""Runs the stages of ``gpu_models``, each in a child with a limit; says in a line how it went."""

from __future__ import annotations

import argparse
import json
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

from benchmarks.gpu_models_cases import size_for
from benchmarks.gpu_models_kernels import without_kernels
from benchmarks.gpu_models_sides import MODES, ahead_of
from benchmarks.gpu_models_state import Body, Places, waited
from benchmarks.gpu_models_time import wanted_sides

__all__ = ["COMPILE_S", "run_stages"]

GRACE_S = 5.0
COMPILE_S = 180.0
"""A baseline that has not compiled after so long did not finish."""
BUILD_S = 25.0
"""What a child may take beside that, to start and to build the model."""
AHEAD_SHARE = 0.5
"""So much of the time that is left compiling ahead may take, or nothing would be timed."""
SEARCH_SHARE = 0.7
"""So much of the time that is left a search may take where its result is to be timed as well."""
LOOK_S = 0.5
"""Seconds between two looks at whether a child waits for the device."""
UNFINISHED = "did_not_finish"
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
                more = stage == "search" and "time" in stages
                tell(_one(name, stage, options, share=SEARCH_SHARE if more else 1.0))
                continue
            if early is not None:
                early.result()
            if options.ahead:
                _ahead(name, options, tell)
            tell(_one(name, "time", options))
            if options.ops:
                tell(_one(name, "ops", options))


def _one(
    name: str,
    stage: str,
    options: argparse.Namespace,
    most: float | None = None,
    share: float = 1.0,
) -> str:
    """Run one stage, within ``most`` seconds and this share of what the call has left."""
    places: Places = options.places
    if places.read(name, stage).get("done"):
        return f"{name} {stage}: done before"
    with _large if name.startswith(LARGE) else nullcontext():
        start = time.monotonic()
        limit = min(most or options.time_limit, share * (options.deadline - start) - GRACE_S)
        if limit < GRACE_S:
            return f"{name} {stage}: not begun, the time is up"
        how = _child(name, stage, options, limit)
    body = places.read(name, stage)
    if most is not None and limit >= options.compile_limit and how.startswith(UNFINISHED):
        body = {**body, "gave_up": True}
        places.file(name, stage).write_text(json.dumps(body) + "\n")
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
    alone = without_kernels(places.read(name, "search"))
    sides = [side for side in dict.fromkeys(ahead_of(s, alone) for s in wanted) if side]
    sides = [s for s in sides if guarded or not s.startswith("guarded")]
    sides = [s for s in sides if not _settled(places, name, s)]
    for stage in ("time", *(f"ahead.{side}" for side in sides)):
        _take_over(places, name, "search", stage)
    with ThreadPoolExecutor(max(1, len(sides))) as pool:
        for line in pool.map(partial(_compiled, name, options), sides):
            tell(line)
    for side in sides:
        if places.read(name, f"ahead.{side}").get("done"):
            _take_over(places, name, f"ahead.{side}", "time")


def _take_over(places: Places, name: str, stage: str, other: str) -> None:
    """Let a stage find in its cache what another one has compiled."""
    source = places.cache(name, stage)
    if source.is_dir():
        shutil.copytree(source, places.cache(name, other), dirs_exist_ok=True)


def _settled(places: Places, name: str, side: str) -> bool:
    """Whether a side was compiled, or given up after its full time: it is not tried again."""
    body = places.read(name, f"ahead.{side}")
    return bool(body.get("done") or body.get("gave_up"))


def _compiled(name: str, options: argparse.Namespace, side: str) -> str:
    """Compile one side; of a large model none any more once a compiler was given up on."""
    places: Places = options.places
    if name.startswith(LARGE):
        with _large:
            tried = [places.read(name, f"ahead.{mode}") for mode in MODES]
        if any(body.get("gave_up") for body in tried):
            return f"{name} ahead.{side}: not tried, since another one {UNFINISHED}"
    share = AHEAD_SHARE * (options.deadline - time.monotonic())
    return _one(name, f"ahead.{side}", options, min(options.compile_limit + BUILD_S, share))


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
            code = _wait(child, partial(places.read, name, stage), limit, options.deadline)
        except subprocess.TimeoutExpired:
            _stop(child)
            return f"{UNFINISHED} within {limit:.0f} s"
        except BaseException:
            _stop(child)
            raise
    if code == 0:
        return "ended"
    return f"failed ({_why(log.read_text(errors='replace')) or f'exit {code}'})"


def _wait(
    child: subprocess.Popen[bytes], body: Callable[[], Body], limit: float, deadline: float
) -> int:
    """The child's exit status; raises TimeoutExpired where its limit, or the whole call, is over.

    The time in which it waits for a device that another stage holds counts against the call only.
    """
    start = time.monotonic()
    while True:
        left = min(start + limit + GRACE_S + waited(body()), deadline) - time.monotonic()
        try:
            return child.wait(timeout=max(0.0, min(LOOK_S, left)))
        except subprocess.TimeoutExpired:
            if left <= LOOK_S:
                raise


def _why(log: str) -> str:
    """The line of a log that says why a child failed, with the exception's type and message.

    What comes after it may be more of the message: an error of CUDA ends with lines of advice.
    """
    lines = [line for line in log.splitlines() if line.strip()]
    traces = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call")]
    after = lines[traces[-1] + 1 :] if traces else []
    said = [line for line in after if not line.startswith((" ", "\t"))]
    return (said or lines[-1:] or [""])[0][:300]


def _words(name: str, stage: str, options: argparse.Namespace) -> Sequence[str]:
    given = {
        "--device": options.device,
        "--size": size_for(options.device, options.size),
        "--state": options.places.state,
        "--work": options.places.work,
        "--search-time": options.search_time,
        "--guard-time": options.guard_time,
        "--rest": options.rest,
        "--baseline": options.baseline,
        "--candidates": options.candidates,
        "--seconds": options.seconds,
        "--ends": options.deadline,
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
