"""Scenes of the launch op over a fake CUDA driver, played in a process of its own.

``python -m tests.guard.fake_cuda LIBRARY`` prints one line of JSON: what each scene saw. Tensors
are on the CPU; only the driver, the stream and the device number are not real. A process of its
own, because a process opens one driver for good.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import fx

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan, Scratch
from kforge_nb.errors import KForgeError
from kforge_nb.guard import launch, native
from kforge_nb.targets.target import TensorSpec

SPEC = TensorSpec((8, 64), (64, 1), "float32", "cpu")
ADD = Candidate(
    "cuda",
    "",
    LaunchPlan(
        (Kernel("add_relu", ("in0", "in1", "out0", "i64:numel(in0)"), ("2", "1", "1"),
                ("256", "1", "1")),),
    ),
)  # fmt: skip


def mean_off(shared: int = 0) -> Candidate:
    """2.5 * (x - mean) + 0.25 in two kernels over zeroed scratch."""
    first = Kernel("gather", ("in0", "sums", "i64:N"))
    args = ("in0", "sums", "out0", "f32:2.5", "f64:0.25", "i32:N")
    second = Kernel("spread", args, ("2", "1", "1"), ("256", "1", "1"), str(shared))
    scratch = {"spare": Scratch("float32", ("70",)), "sums": Scratch("float32", ("1",), "zero")}
    return Candidate("cuda", "", LaunchPlan((first, second), {"N": "numel(in0)"}, scratch))


class Stage:
    """The fake driver, an image that it loads, and the device that kernels are said to be on."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.fake = ctypes.CDLL(str(library))
        self.fake.fake_log.restype = ctypes.c_char_p
        self.fake.fake_current.restype = ctypes.c_int64
        self.folder = folder
        self.device = 0
        launch._cuda_device = lambda _: self.device
        native.cuda_libraries = lambda: (str(library), str(library))

    def image(self, name: str = "one", head: bytes = b"FAKE") -> Path:
        """A file that stands for a cubin; the same name is the same content."""
        path = self.folder / f"{name}.cubin"
        path.write_bytes(head + b"\0" + name.encode())
        return path

    def log(self) -> list[str]:
        """What the driver was asked since the last look."""
        return self.fake.fake_log().decode().splitlines()

    def add(self, name: str = "one", shadow: int = 0) -> int:
        """A handle of add_relu."""
        original = fx.symbolic_trace(lambda a, b: (torch.relu(a + b),))
        return launch.register(ADD, self.image(name), original, [SPEC] * 2, [SPEC], shadow=shadow)

    def mean(self, shared: int = 0) -> int:
        """A handle of mean_off."""
        original = fx.symbolic_trace(lambda x: (2.5 * (x - x.mean()) + 0.25,))
        return launch.register(mean_off(shared), self.image(), original, [SPEC], [SPEC], shadow=0)


def call(handle: int, *inputs: torch.Tensor) -> torch.Tensor:
    """One launch with one output."""
    return torch.ops.kforge.launch.default(list(inputs), handle)[0]


def right(handle: int, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a call gives relu(a + b)."""
    return torch.equal(call(handle, a, b), torch.relu(a + b))


def no_driver(stage: Stage) -> Any:
    known = native.cuda_libraries
    native.cuda_libraries = lambda: ("libnothing-of-cuda.so", "libtorch.so")
    try:
        stage.add()
    except KForgeError as problem:
        return [type(problem).__name__, str(problem)]
    finally:
        native.cuda_libraries = known


def values(stage: Stage) -> Any:
    handle = stage.add()
    loaded = stage.log()
    a, b = torch.randn(8, 64), torch.randn(8, 64)
    return [loaded, right(handle, a, b), stage.log(), launch.counters(handle)]


def layouts(stage: Stage) -> Any:
    handle, b = stage.add(), torch.randn(8, 64)
    flat = torch.randn(8 * 64 + 8)
    made = {
        "4 bytes off": flat[1:513].view(8, 64),
        "16 bytes off": flat[4:516].view(8, 64),
        "transposed": torch.randn(64, 8).t(),
    }
    found = {}
    for name, a in made.items():
        before = launch.counters(handle)["copies"]
        found[name] = [right(handle, a, b), launch.counters(handle)["copies"] - before]
    return found


def order_and_scratch(stage: Stage) -> Any:
    handle, x = stage.mean(), torch.randn(8, 64)
    stage.log()
    good = [
        torch.allclose(call(handle, x), 2.5 * (x - x.mean()) + 0.25, atol=1e-5) for _ in range(3)
    ]
    return [good, stage.log()[:3]]


def shared(stage: Stage) -> Any:
    stage.log()
    handles = [stage.mean(100 << 10), stage.mean(100 << 10), stage.mean(60 << 10)]
    x = torch.randn(8, 64)
    for handle in handles:
        call(handle, x)
    allowed = [line for line in stage.log() if line.startswith("allow")]
    try:
        stage.mean(220 << 10)
    except KForgeError as problem:
        refused = [type(problem).__name__, str(problem)]
    return [allowed, [launch.counters(handle)["fallbacks"] for handle in handles], refused]


def other_device(stage: Stage) -> Any:
    stage.fake.fake_enter(0)
    stage.device = 1
    handle = stage.add()
    loaded, a = stage.log(), torch.randn(8, 64)
    good = right(handle, a, a)
    stage.device = 0
    return [loaded, good, stage.log(), stage.fake.fake_current()]


def one_module(stage: Stage) -> Any:
    stage.log()
    for name in ("fresh", "fresh", "other"):
        stage.add(name)
    return [line.split()[0] for line in stage.log()]


def refused(stage: Stage) -> Any:
    found = []
    original = fx.symbolic_trace(lambda a, b: (torch.relu(a + b),))
    missing = Candidate("cuda", "", LaunchPlan((Kernel("absent", ADD.plan.kernels[0].args),)))
    tries = [
        (ADD, stage.image("bad", b"none"), 0),
        (missing, stage.image(), 0),
        (ADD, stage.image("far"), 7),
        (ADD, stage.folder / "nowhere.cubin", 0),
    ]
    for candidate, image, device in tries:
        stage.device = device
        try:
            launch.register(candidate, image, original, [SPEC] * 2, [SPEC])
        except KForgeError as problem:
            found.append([type(problem).__name__, str(problem)])
    stage.device = 0
    return found


def failing(stage: Stage) -> Any:
    handle, a = stage.add(), torch.randn(8, 64)
    stage.fake.fake_fail(701)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        good = [right(handle, a, a)]
        stage.fake.fake_fail(0)
        good.append(right(handle, a, a))
    words = [str(w.message) for w in told]
    return [good, words, launch.counters(handle)["fallbacks"], launch.kernel(handle).note]


def sticky(stage: Stage) -> Any:
    handle, a = stage.add(), torch.randn(8, 64)
    stage.fake.fake_fail(700)
    try:
        call(handle, a, a)
    except RuntimeError as problem:
        return [str(problem), launch.counters(handle)["fallbacks"]]
    finally:
        stage.fake.fake_fail(0)


def broken_capture(stage: Stage) -> Any:
    handle, a = stage.add(), torch.randn(8, 64)
    stage.fake.fake_fail(901)
    first = right(handle, a, a)
    stage.fake.fake_fail(0)
    return [first, right(handle, a, a), launch.counters(handle)]


def shadow_waits(stage: Stage) -> Any:
    handle, a = stage.add(shadow=1), torch.randn(8, 64)
    seen = []
    for capturing in (1, 0):
        stage.fake.fake_capture(capturing)
        call(handle, a, a)
        seen.append(launch.counters(handle)["shadowed"])
    return seen


def switched(stage: Stage) -> Any:
    handle, a = stage.add(), torch.randn(8, 64, requires_grad=True)
    b = torch.randn(8, 64)
    call(handle, a, b).sum().backward()
    with launch.originals(), torch.no_grad():
        call(handle, a, b)
    assert a.grad is not None
    return [torch.equal(a.grad, ((a + b) > 0).float()), launch.counters(handle)]


SCENES = (
    no_driver, values, layouts, order_and_scratch, shared, other_device, one_module, refused,
    failing, sticky, broken_capture, shadow_waits, switched,
)  # fmt: skip


def main() -> None:
    """Play every scene."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(sys.argv[1]), Path(folder))
        found = {scene.__name__: scene(stage) for scene in SCENES}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
