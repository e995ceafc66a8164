"""Compiles graphs with Inductor ahead of the notebook, for its cache; a process of its own.

``python -m kforge_nb.guard.ahead_child REQUEST`` reads a JSON file and compiles each graph of it on
fake tensors: nothing is allocated, nothing is run, no code of the user's is here. What Inductor
writes to its cache serves the notebook's own compile of the same graph; ``answers.json`` beside the
request says of each graph why it could not be compiled, if so. The launch op is declared with its
fake implementation only. The process ends with the notebook that started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from kforge_nb.guard import launch
from kforge_nb.guard.ahead import ANSWERS
from kforge_nb.guard.ahead_graph import rows_to_graph
from kforge_nb.targets.target import TensorSpec
from kforge_nb.workload.calls import GradState

__all__ = ["main"]

LOOK_SECONDS = 0.5


def main(path: str) -> int:
    """Compile what the request asks for, graph by graph, and say what came of each; 0."""
    request = json.loads(Path(path).read_text(encoding="utf-8"))
    os.nice(request.get("nice", 0))
    threading.Thread(target=_end_with, args=(request["parent"],), daemon=True).start()
    _take_settings(request["settings"])
    _declare(request["kernels"])
    answers = [_try(job, request["patches"]) for job in request["graphs"]]
    Path(path).with_name(ANSWERS).write_text(json.dumps(answers), encoding="utf-8")
    return 0


def _try(job: dict[str, Any], patches: dict[str, Any]) -> str:
    """Compile one graph; why it failed, empty if it did not."""
    try:
        _compile(job, patches)
    except Exception as problem:  # noqa: BLE001 (the others are compiled all the same)
        lines = str(problem).strip().splitlines() or [""]
        return f"{type(problem).__name__}: {lines[0]}"[:200]
    return ""


def _end_with(parent: int) -> None:
    """End this process, and all that it has started, once the notebook is gone."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os.killpg(0, signal.SIGKILL)  # its own group: the notebook started it as a leader


def _take_settings(settings: dict[str, Any]) -> None:
    """What compiled code depends on beside the graph; what is so already is not touched.

    (Setting a precision to what it is makes it an explicit wish, which is another cache key.)
    """
    torch.set_num_threads(settings["threads"])
    torch.use_deterministic_algorithms(settings["deterministic"])
    torch.set_default_dtype(getattr(torch, settings["dtype"]))
    if torch.get_float32_matmul_precision() != settings["matmul"]:
        torch.set_float32_matmul_precision(settings["matmul"])
    _see_torch_in(settings["torch_seen_in"])
    matmul: Any = torch.backends.cuda.matmul
    if settings["fp32"] is not None and matmul.fp32_precision != settings["fp32"]:
        matmul.fp32_precision = settings["fp32"]


def _see_torch_in(module: str) -> None:
    """Let pickle find torch's memory formats where the notebook's process finds them.

    Inductor's cache keys hold pickled memory formats, and those hold the name of the first loaded
    module that has torch as an attribute; which one that is depends on what was imported first. So
    an empty module of that name, with torch in it, stands first here.
    """
    stand_in = types.ModuleType(module)
    stand_in.torch = torch  # type: ignore[attr-defined]
    loaded = dict(sys.modules)
    sys.modules.clear()
    sys.modules[module] = loaded.pop(module, stand_in)
    sys.modules.update(loaded)


def _declare(kernels: list[dict[str, Any]]) -> None:
    """The launch op's fake, for the handles of the notebook's process."""
    if not kernels:
        return
    launch._library = launch._define()
    for row in kernels:
        inputs, outputs = (tuple(TensorSpec(*s) for s in row[k]) for k in ("inputs", "outputs"))
        reference = rows_to_graph(row["graph"])
        launch._kernels[row["handle"]] = launch.Kernel(
            row["handle"], "ahead", "", "", reference, inputs, outputs
        )


def _compile(job: dict[str, Any], patches: dict[str, Any]) -> None:
    gm = rows_to_graph(job["rows"])
    mode = FakeTensorMode(shape_env=ShapeEnv())  # without one Inductor keeps nothing in its cache
    with mode:
        inputs = [
            torch.empty_strided(
                shape, stride, dtype=getattr(torch, dtype), device=device
            ).requires_grad_(needs)
            for shape, stride, dtype, device, needs in job["inputs"]
        ]
    autocast = tuple((d, getattr(torch, t)) for d, t in job["autocast"])
    state = GradState(job["grad"], job["inference"], autocast, job["autocast_cache"])
    with state.restored(), tracing(TracingContext(mode)):
        compile_fx(gm, inputs, config_patches=patches)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
