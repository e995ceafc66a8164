"""The launch op in Python: the same rules as the compiled one, over a driver made of Python."""

from __future__ import annotations

import ctypes
import gc
import math
import struct
import weakref
from types import SimpleNamespace

import pytest
import torch

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan, Scratch
from kforge_nb.candidates.plan import resolve
from kforge_nb.compilers.cupy_raw import Launcher, LoadedPlan, word
from kforge_nb.errors import BadInput, MissingTool
from kforge_nb.guard import cupy_op, launch
from kforge_nb.guard.cupy_op import CupyTable
from kforge_nb.guard.table import REASONS
from kforge_nb.targets.target import TensorSpec

SPEC = TensorSpec((8, 64), (64, 1), "float32", "cpu")
ADD = LaunchPlan((Kernel("add", ("in0", "in1", "out0", "i64:numel(in0)"), ("2", "1", "1")),))
MEAN = LaunchPlan(
    (
        Kernel("gather", ("in0", "sums", "i32:N"), shared="60000"),
        Kernel("spread", ("in0", "sums", "out0", "f32:2.5", "f64:0.25", "i64:N")),
    ),
    {"N": "numel(in0)"},
    {"spare": Scratch("float32", ("70",)), "sums": Scratch("float32", ("1",), "zero")},
)


def floats(address, count):
    """Memory as a float32 tensor."""
    array = (ctypes.c_float * count).from_address(address)
    return torch.frombuffer(array, dtype=torch.float32)


def test_a_float_beyond_float32_is_infinite():
    """As in C, and as the judge lays it out: what was judged can be installed."""
    assert word(("f32", 1e39)).to_bytes(8, "little") == struct.pack("<fi", math.inf, 0)
    assert word(("f32", -1.5)).to_bytes(8, "little") == struct.pack("<fi", -1.5, 0)


def test_a_bound_call_keeps_its_tensors():
    """It launches by their addresses, so their memory must not be given to others meanwhile."""
    plan = resolve(MEAN, (SPEC, SPEC), (SPEC,))
    loaded = LoadedPlan(plan, SimpleNamespace(device=0), (SPEC,))
    tensors = [torch.zeros(8, 64) for _ in range(3)]
    held = [weakref.ref(t) for t in (*tensors, *loaded.scratch("cpu").values())]
    launch = loaded.bind(tensors[:2], tensors[2:])
    del loaded, tensors
    gc.collect()
    assert all(tensor() is not None for tensor in held)
    del launch
    gc.collect()
    assert not any(tensor() is not None for tensor in held)


class DriverError(RuntimeError):
    """As CuPy's, with the driver's number."""

    def __init__(self, status):
        super().__init__(f"CUDA_ERROR {status}")
        self.status = status


class Driver:
    """What the launcher asks of ``cupy.cuda.driver``; kernels are Python functions."""

    kernels = ("add", "gather", "spread")

    def __init__(self):
        self.context, self.failure, self.log = 7, 0, []

    def moduleGetFunction(self, module, name):
        return self.kernels.index(name)

    def funcGetAttribute(self, attribute, function):
        return 0

    def funcSetAttribute(self, function, attribute, value):
        self.log.append(("allow", self.kernels[function], value))

    def ctxGetCurrent(self):
        return self.context

    def ctxSetCurrent(self, context):
        self.context = context

    def launchKernel(self, function, *shape_and_rest):
        *_, stream, params, _ = shape_and_rest
        if self.failure:
            raise DriverError(self.failure)
        self.log.append((self.kernels[function], shape_and_rest[:7], stream, self.context))
        getattr(self, self.kernels[function])(params)

    def value(self, params, place, kind):
        address = ctypes.c_void_p.from_address(params + 8 * place).value
        return kind.from_address(address).value

    def add(self, params):
        a, b, out = (self.value(params, i, ctypes.c_uint64) for i in range(3))
        n = self.value(params, 3, ctypes.c_int64)
        floats(out, n)[:] = torch.relu(floats(a, n) + floats(b, n))

    def gather(self, params):
        x, sums = (self.value(params, i, ctypes.c_uint64) for i in range(2))
        floats(sums, 1)[:] += floats(x, self.value(params, 2, ctypes.c_int32)).sum()

    def spread(self, params):
        x, sums, out = (self.value(params, i, ctypes.c_uint64) for i in range(3))
        scale, shift = self.value(params, 3, ctypes.c_float), self.value(params, 4, ctypes.c_double)
        n = self.value(params, 5, ctypes.c_int64)
        floats(out, n)[:] = scale * (floats(x, n) - floats(sums, 1) / n) + shift


@pytest.fixture
def stage(monkeypatch):
    """A table over the Python driver, and a way to add a plan to it."""
    driver = Driver()
    told = []

    def load(plan, cubin, device):
        return Launcher(plan, device, driver, SimpleNamespace(ptr=1))

    def original(inputs, handle, reason):
        told.append(REASONS[reason])
        if len(inputs) == 1:
            return [2.5 * (inputs[0] - inputs[0].mean()) + 0.25]
        return [torch.relu(inputs[0] + inputs[1])]

    def shadow(inputs, ours, handle):
        told.append("shadow")
        return ours

    monkeypatch.setattr(cupy_op, "load_kernels", load)
    monkeypatch.setattr(cupy_op, "_current_stream", lambda device: 4096 + device)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: stage.capturing)
    table = CupyTable(original, shadow)

    def add(plan, inputs, shadow=0):
        resolved = resolve(plan, [SPEC] * inputs, [SPEC])
        return table.add_cuda(None, resolved, [SPEC] * inputs, [SPEC], shadow, 3)

    stage = SimpleNamespace(table=table, driver=driver, told=told, add=add, capturing=False)
    return stage


def counts(table, handle):
    """Launches, copies, shadowed, and fallbacks by reason."""
    launches, copies, shadowed, *reasons = table.counts(handle)
    return launches, copies, shadowed, {REASONS[i]: n for i, n in enumerate(reasons) if n}


def test_a_launch_gives_the_kernels_result(stage):
    """Pointers, grid and stream arrive, in the context that the code was loaded in."""
    handle = stage.add(ADD, 2)
    a, b = torch.randn(8, 64), torch.randn(8, 64)
    stage.driver.context = 5
    assert torch.equal(stage.table.launch([a, b], handle)[0], torch.relu(a + b))
    assert stage.driver.log == [("add", (2, 1, 1, 1, 1, 1, 0), 4099, 7)]
    assert stage.driver.context == 5
    assert counts(stage.table, handle) == (1, 0, 0, {})


def test_scratch_scalars_and_shared_memory(stage):
    """Zeroed scratch, scalars of every kind, two kernels in order, shared memory allowed once."""
    handle = stage.add(MEAN, 1)
    assert stage.driver.log == [("allow", "gather", 60000)]
    for _ in range(3):
        x = torch.randn(8, 64)
        out = stage.table.launch([x], handle)[0]
        torch.testing.assert_close(out, 2.5 * (x - x.mean()) + 0.25)
    assert [entry[0] for entry in stage.driver.log[1:3]] == ["gather", "spread"]


@pytest.mark.parametrize(
    ("make", "reason", "copies"),
    [
        (lambda: torch.randn(64, 8).t(), None, 1),
        (lambda: torch.randn(520)[1:513].view(8, 64), None, 1),
        (lambda: torch.randn(520)[4:516].view(8, 64), None, 0),
        (lambda: torch.randn(4, 64), "another shape", 0),
        (lambda: torch.randn(8, 64).double(), "another dtype", 0),
        (lambda: torch.randn(8, 64, device="meta"), "another device", 0),
        (lambda: torch.randn(8, 64, requires_grad=True), "a gradient is needed", 0),
    ],
    ids=["transposed", "4 bytes off", "16 bytes off", "shape", "dtype", "device", "gradient"],
)
def test_what_does_not_fit_is_copied_or_runs_the_original(stage, make, reason, copies):
    """The checks of the compiled op, with the same names and counts."""
    handle, a = stage.add(ADD, 2), make()
    out = stage.table.launch([a, a], handle)[0]
    assert out.device.type == "meta" or torch.equal(out, torch.relu(a + a))
    expected = (0, 0, 0, {reason: 1}) if reason else (1, 2 * copies, 0, {})
    assert counts(stage.table, handle) == expected
    assert stage.told == ([reason] if reason else [])


def test_another_number_of_inputs_and_the_switches(stage):
    """Each switch sends calls to the original under its own name."""
    handle, a = stage.add(ADD, 2), torch.randn(8, 64)
    stage.table.launch([a], handle)
    stage.table.run(False)
    stage.table.launch([a, a], handle)
    stage.table.run(True)
    stage.table.enable(handle, False)
    stage.table.launch([a, a], handle)
    assert stage.told == [REASONS[1], REASONS[7], REASONS[8]]


def test_a_failing_launch_is_not_tried_again(stage):
    """The original's result, the driver's words kept, and the kernel off."""
    handle, a = stage.add(ADD, 2), torch.randn(8, 64)
    stage.driver.failure = 701
    assert torch.equal(stage.table.launch([a, a], handle)[0], torch.relu(a + a))
    stage.driver.failure = 0
    stage.table.launch([a, a], handle)
    assert stage.told == [REASONS[9], REASONS[8]]
    assert "701" in stage.table.fault(handle)


def test_a_broken_capture_and_a_broken_context(stage):
    """The first is not the kernel's fault; after the second nothing can run, which is said."""
    handle, a = stage.add(ADD, 2), torch.randn(8, 64)
    stage.driver.failure = 901
    stage.table.launch([a, a], handle)
    stage.driver.failure = 700
    with pytest.raises(RuntimeError, match="context of cuda:3 is broken"):
        stage.table.launch([a, a], handle)
    stage.driver.failure = 0
    stage.table.launch([a, a], handle)
    assert counts(stage.table, handle) == (1, 0, 0, {REASONS[11]: 1})


def test_a_shadow_check_waits_for_the_end_of_a_capture(stage):
    """Comparing reads values, which a capture forbids."""
    handle, a = stage.add(ADD, 2, shadow=1), torch.randn(8, 64)
    stage.capturing = True
    stage.table.launch([a, a], handle)
    stage.capturing = False
    stage.table.launch([a, a], handle)
    stage.table.launch([a, a], handle)
    assert stage.told == ["shadow"]
    assert counts(stage.table, handle)[:3] == (3, 0, 1)


def test_cpp_kernels_are_refused_in_words(stage, tmp_path):
    """What needs a compiler says so."""
    with pytest.raises(MissingTool, match="compiler"):
        stage.table.add_cpu(tmp_path / "x.so", None, [SPEC], [SPEC], 0)


@pytest.fixture
def unloaded(monkeypatch):
    """The launch module as before its first use."""
    library = launch.load() and launch._library
    monkeypatch.setattr(launch, "_table", None)
    return library


def test_the_python_op_is_chosen_only_where_it_can_work(unloaded, monkeypatch):
    """Without a compiler: CuPy where there is a GPU and CuPy, else both reasons in one message."""

    def no_compiler():
        raise MissingTool("no working C++ compiler.")

    given = []
    library = SimpleNamespace(impl=lambda name, function, key: given.append(key))
    monkeypatch.setattr(launch, "NativeTable", no_compiler)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingTool, match=r"no working C\+\+ compiler.*no CUDA device"):
        launch._choose(library)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingTool, match="CuPy is not installed"):
        launch._choose(library)
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: object())
    assert launch._choose(library).name == "cupy"
    assert set(given) == {"CPU", "CUDA"}
    monkeypatch.setenv("KFORGE_LAUNCH", "c++")
    with pytest.raises(MissingTool, match="no working"):
        launch._choose(library)
    monkeypatch.setenv("KFORGE_LAUNCH", "opencl")
    with pytest.raises(BadInput, match="opencl"):
        launch._choose(library)


def test_originals_need_no_loaded_kernel(unloaded):
    """The switch works before anything is registered, and the compiled op serves where it can."""
    assert launch.implementation() == "c++"
    with launch.originals():
        assert not launch.running()
    assert launch.running()


def test_candidates_of_other_languages_are_refused():
    """Only plans can be launched."""
    with pytest.raises(BadInput, match="cuda_extension"):
        launch.register(Candidate("cuda_extension", "", ADD), None, None, [SPEC], [SPEC])
