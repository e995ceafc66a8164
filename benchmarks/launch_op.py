"""What a call costs the host: the launch op against eager's own op, and Dynamo around a model.

``python -m benchmarks.launch_op [--only cpu|cuda] [--seconds S] [--json [FILE]]``

On the CPU: softmax 64x64 float32, one thread. On a GPU, where there is one: softmax 64x1024
bfloat16, through the compiled op and through CuPy, each in a process of its own. A GPU's figures
are host time: a batch of calls is enqueued, so few that the launch queue never fills, and waited
for outside the clock. The op is called in all its forms: as ``torch.ops.kforge.launch(x, handle)``,
as graphs call it for a kernel of one input and one output, as its overload ``.in1``, and as its
overload ``.default`` with lists; with grad mode off and on. Dynamo's host time for a model call is
a row of its own: a small module compiled with kforge and no kernel, less the module itself.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import (
    add_json_option,
    compare_row,
    make_report,
    measure_row,
    write_report,
)
from benchmarks.timing import Watch, allocator_environment, compare

if TYPE_CHECKING:
    from kforge_nb.targets.target import Target

__all__ = ["main"]

BATCH = 100
"""Calls between two looks at the clock; a stream's launch queue holds about a thousand."""
SHAPES = {"cpu": ((64, 64), "float32"), "cuda": ((64, 1024), "bfloat16")}
FORMS = ("launch", "in graphs", "launch.in1", "launch.default")
"""The op itself, as the bar names it; as graphs call it; its overloads."""
_MARK = "RESULT "
Call = Callable[[], object]


def _candidate(target: Target, device: str, cache: Path) -> tuple[Any, Path]:
    """The recipes' first draft for a target, compiled for the device."""
    from kforge_nb.candidates.recipes.family import default_params

    if device == "cpu":
        from kforge_nb.candidates.recipes.families import tuned_families as families
    else:
        from kforge_nb.candidates.recipes.cuda import cuda_families as families
    matches = ((family, family.match(target)) for family in families())
    family, match = next((f, m) for f, m in matches if m is not None)
    candidate = family.emit(match, default_params(family, match))
    names = tuple(kernel.name for kernel in candidate.plan.kernels)
    if device == "cpu":
        from kforge_nb.compilers import cpp

        built = cpp.build(candidate.source, names[0], cache=cache)
        assert isinstance(built, cpp.Built), built
        return candidate, built.library
    from kforge_nb.compilers.nvrtc import CudaBuilt, build_cuda

    image = build_cuda(candidate.source, names, cache=cache)
    assert isinstance(image, CudaBuilt), image.distilled
    return candidate, image.cubin


def _rounds(calls: Mapping[str, Call], seconds: float, wait: Call) -> dict[str, list[float]]:
    """Seconds a call on the host, one figure a round, in random order, never with a full queue."""
    order, rng = list(calls), random.Random(0)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    for call in calls.values():
        for _ in range(2 * BATCH):
            call()
        wait()
    while time.perf_counter() < end or len(samples[order[0]]) < 20:
        rng.shuffle(order)
        for name in order:
            call = calls[name]
            start = time.perf_counter()
            for _ in range(BATCH):
                call()
            samples[name].append((time.perf_counter() - start) / BATCH)
            wait()
    return samples


def _op_calls(device: str, cache: Path) -> dict[str, Call]:
    """The op and eager on the same input, after a check that both agree."""
    import torch

    from benchmarks.gpu_op_cases import make_target, softmax
    from kforge_nb.guard import launch
    from kforge_nb.guard.short import direct

    shape, dtype = SHAPES[device]
    x = torch.randn(shape, dtype=getattr(torch, dtype), device=device)
    target = make_target(softmax, [x], "softmax")
    candidate, library = _candidate(target, device, cache)
    handle = launch.register(
        candidate, library, target.graph, target.inputs, target.outputs, shadow=0
    )  # fmt: skip
    op, graphs = torch.ops.kforge.launch, direct(1)
    short, lists = op.in1, op.default
    for found in (op(x, handle), graphs(x, handle), short(x, handle), lists([x], handle)[0]):
        torch.testing.assert_close(found, softmax(x), rtol=2e-2, atol=1e-3)
    assert launch.counters(handle)["launches"] == 4, launch.counters(handle)
    calls: tuple[Call, ...] = (
        lambda: op(x, handle),
        lambda: graphs(x, handle),
        lambda: short(x, handle),
        lambda: lists([x], handle),
    )
    return {**dict(zip(FORMS, calls, strict=True)), "eager": lambda: softmax(x)}


def _model_calls(device: str) -> dict[str, Call]:
    """A small module compiled with kforge and no kernel, and the module itself."""
    import torch

    from kforge_nb.guard.backend import Backend

    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).to(device).eval()
    compiled = torch.compile(module, backend=Backend([]), dynamic=False)
    x = torch.randn(64, 64, device=device)
    torch.testing.assert_close(compiled(x), module(x))
    return {"ours": lambda: compiled(x), "eager": lambda: module(x)}


def _child(device: str, seconds: float) -> dict[str, Any]:
    """All samples of one device and implementation, in this process; plain JSON."""
    import torch

    from kforge_nb.guard import launch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    found: dict[str, Any] = {"implementation": launch.implementation()}
    with tempfile.TemporaryDirectory() as folder, Watch() as watch:
        calls = _op_calls(device, Path(folder))
        with torch.no_grad():
            found["op"] = _rounds(calls, seconds, wait)
        found["op, grad mode on"] = _rounds(calls, seconds / 2, wait)
        with torch.no_grad():
            found["model"] = _rounds(_model_calls(device), seconds / 2, wait)
    name = torch.cuda.get_device_name() if device == "cuda" else ""
    return {**found, "foreign": watch.foreign, "gpu": name}


def _run_child(device: str, implementation: str, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.launch_op", "--child", device]
    done = subprocess.run(
        [*command, "--seconds", str(seconds)],
        env={**allocator_environment(1), "KFORGE_LAUNCH": implementation},
        cwd=Path(__file__).resolve().parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return dict(json.loads(line.removeprefix(_MARK)))
    raise RuntimeError(f"{device} through {implementation} failed:\n{done.stderr[-2000:]}")


def _rows(device: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Op against eager in both grad modes; Dynamo's part of a model call, as a row of its own."""
    shape, dtype = SHAPES[device]
    how = found["implementation"]
    what = f"{device}, softmax {'x'.join(map(str, shape))} {dtype}"
    more = {"foreign_cpus": round(found["foreign"], 3)}
    rows = []
    for key, mode in (("op", "no_grad"), ("op, grad mode on", "grad mode on")):
        for form in FORMS:
            result = compare(found[key][form], found[key]["eager"])
            rows.append(compare_row(f"{form} ({how}), {what}, {mode}", "eager", result, **more))
    if found["implementation"] == "c++":
        model = found["model"]
        result = compare(model["ours"], model["eager"])
        rows.append(compare_row(f"small module without kernels, {device}", "raw", result, **more))
        rows.append(_difference(f"Dynamo's host time a model call, {device}", model, more))
    return rows


def _difference(
    name: str, model: Mapping[str, list[float]], more: Mapping[str, Any]
) -> dict[str, Any]:
    rng = random.Random(0)
    extra = [(o - e) * 1e6 for o, e in zip(model["ours"], model["eager"], strict=True)]
    draws = sorted(statistics.median(rng.choices(extra, k=len(extra))) for _ in range(2000))
    low, high = draws[50], draws[1949]
    return measure_row(
        name, statistics.median(extra), "us", low=low, high=high, n=len(extra), **more
    )  # fmt: skip


def main() -> int:
    """Run the benchmark; 1 where the op, or what graphs call, costs the host more than eager's."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    add_json_option(parser)
    parser.add_argument("--seconds", type=float, default=3.0, help="timing of one implementation")
    parser.add_argument("--only", choices=list(SHAPES), help="one kind of device")
    parser.add_argument("--child", choices=list(SHAPES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        found = _child(options.child, options.seconds)
        sys.stdout.write(f"{_MARK}{json.dumps(found)}\n")
        return 0
    import torch

    sides = [("cpu", "c++")]
    notes = [] if torch.cuda.is_available() else ["no GPU here: the CPU's rows only"]
    if torch.cuda.is_available():
        sides.append(("cuda", "c++"))
        if importlib.util.find_spec("cupy"):
            sides.append(("cuda", "cupy"))
        else:
            notes.append("CuPy is not installed: no row for it")
    sides = [side for side in sides if options.only in (None, side[0])]
    rows: list[dict[str, Any]] = []
    for device, implementation in sides:
        found = _run_child(device, implementation, options.seconds)
        rows += _rows(device, found)
        if found["gpu"] and found["gpu"] not in notes:
            notes.append(found["gpu"])
    write_report(make_report("launch_op", rows, notes=notes), options.json)
    judged = [r for r in rows if r["name"].startswith(("launch (c++)", "in graphs (c++)"))]
    return int(any(r["ratio"] < 1.0 for r in judged))


if __name__ == "__main__":
    sys.exit(main())
