"""The device of a run, and what is said where it cannot be worked on; no GPU is needed here."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.compilers import nvrtc
from kforge_nb.errors import BadInput, MissingTool
from kforge_nb.profile import device as facts_room
from kforge_nb.run import devices
from kforge_nb.run.begin import go_on
from kforge_nb.run.building import build_for_model
from kforge_nb.run.devices import (
    check_same_gpu,
    check_tools,
    device_of_targets,
    device_of_workload,
    elsewhere,
    tool_notes,
)
from kforge_nb.run.handle import Run
from kforge_nb.run.source import StoreSource
from kforge_nb.targets.document import target_to_document
from kforge_nb.targets.inputs import CapturedInputs
from kforge_nb.workload.calls import GradState, ModuleCall
from kforge_nb.workload.capture import Workload
from tests.cuda.targets import on_cuda
from tests.helpers import make_target


def workload_on(*devices: str) -> Workload:
    """A workload of one module with a weight on each device (fake tensors)."""
    module = nn.Module()
    with FakeTensorMode():
        for number, device in enumerate(devices):
            weight = nn.Parameter(torch.empty(100 * (number + 1), device=device))
            module.register_parameter(f"w{number}", weight)
    call = ModuleCall(module, "model", (), {}, GradState(False, True))
    return Workload(lambda: None, calls=[call])


@pytest.fixture
def with_gpu(monkeypatch):
    """As if torch saw a GPU of this architecture."""

    def pretend(arch: str = "sm_90"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(nvrtc, "device_arch", lambda device="cuda": arch)

    return pretend


def softmax():
    """A target on the CPU."""
    return make_target(lambda x: torch.softmax(x, -1), torch.randn(2, 4), family="softmax")


def test_a_model_on_two_gpus_is_refused_with_the_way_out():
    """A run works on one GPU; the message names both, and the one with most weights to move to."""
    with pytest.raises(BadInput, match=r"split over cuda:0, cuda:1.*to\('cuda:1'\)"):
        device_of_workload(workload_on("cuda:0", "cuda:1"))
    assert device_of_workload(workload_on("cuda:1")) == "cuda:1"
    assert device_of_workload(workload_on("cpu", "cuda:0")) == "cuda:0"


def test_targets_elsewhere_or_without_inputs_say_why():
    """What is not on the run's device, or has no inputs, is left alone with the reason."""
    target = softmax()
    assert elsewhere(target, "cpu") is None
    assert "lives on cpu, and this run works on cuda:0" in str(elsewhere(target, "cuda:0"))
    target.captured = CapturedInputs()
    assert "no inputs" in str(elsewhere(target, "cpu"))


def test_a_stored_run_works_where_its_targets_live():
    """A GPU among the targets is the device of a resumed run; without targets it is the CPU."""
    here, there = softmax(), on_cuda(softmax())
    assert device_of_targets([here, there]) == "cuda:0"
    assert device_of_targets([here]) == "cpu"
    assert device_of_targets([]) == "cpu"


@pytest.mark.parametrize(
    ("built", "driver", "words"),
    [
        (None, None, "built without CUDA"),
        ("13.0", None, "no NVIDIA driver answers"),
        ("13.0", "12.4", "the driver .which knows CUDA 12.4. is too old"),
    ],
)
def test_no_gpu_no_driver_and_no_cuda_build_are_told_apart(monkeypatch, built, driver, words):
    """Each way of having no GPU has a message of its own, with what to do."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(facts_room, "cuda_driver", lambda: driver)
    with pytest.raises(MissingTool, match=words):
        check_tools("cuda:0")


def test_a_gpu_newer_than_nvrtc_is_told_with_the_cure(home, with_gpu):
    """A GPU of tomorrow: NVRTC, what it knows, and the command that installs a newer one."""
    with_gpu("sm_991")
    with pytest.raises(MissingTool, match=r"sm_991.*pip install -U nvidia-cuda-nvrtc"):
        check_tools("cuda:0")
    (note,) = [n for n in tool_notes("cuda:0") if "sm_991" in n]
    assert note.startswith("kernels for cuda:0 cannot be searched here")


def test_a_gpu_that_nvrtc_knows_needs_nothing(home, with_gpu):
    """With compiler and NVRTC at hand there is nothing to say."""
    with_gpu()
    check_tools("cuda:0")
    assert not [n for n in tool_notes("cuda:0") if "cannot" in n]


def test_missing_nvrtc_and_cupy_are_notes_of_a_profile(monkeypatch, home, with_gpu):
    """A profile needs neither, so it says what a run would lack."""
    with_gpu()

    def missing():
        raise MissingTool("no NVRTC library was found")

    real = importlib.util.find_spec
    monkeypatch.setattr(nvrtc, "find_nvrtc", missing)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "cupy" else real(name, *a)
    )
    notes = " ".join(tool_notes("cuda:0"))
    assert "no NVRTC library" in notes
    assert "cupy is not installed" in notes
    assert tool_notes("cpu") == []


def test_cuda_winners_become_cubins_without_a_gpu(home, with_gpu):
    """What is installed from a CUDA candidate is a cubin for the target's own architecture."""
    with_gpu("sm_80")
    plan = LaunchPlan((Kernel("k", ("in0", "out0"), ("1", "1", "1"), ("32", "1", "1")),))
    source = 'extern "C" __global__ void k(const float* x, float* y) { y[0] = x[0]; }'
    candidate = Candidate("cuda", source, plan, "k")
    cubin = build_for_model(candidate, on_cuda(softmax()))
    assert cubin.read_bytes()[:4] == b"\x7fELF"
    broken = Candidate("cuda", source.replace("x[0]", "z[0]"), plan, "k")
    with pytest.raises(MissingTool, match="does not compile any more"):
        build_for_model(broken, on_cuda(softmax()))


def test_a_run_of_a_gpu_is_not_gone_on_with_where_there_is_none(stage, home, monkeypatch):
    """The message says that the GPU is missing; the run stays as it was, free for another."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    conductor = stage.conductor()
    record = conductor.record
    target = on_cuda(softmax())
    document = target_to_document(target, record.folder / "inputs")
    entry = {"fingerprint": target.fingerprint, "name": "softmax", "state": "waiting"}
    record.store.add_target(record.id, 1, entry, {"document": document})
    record.set_state("interrupted", "the machine went away")
    before = record.run
    with pytest.raises(MissingTool, match="cuda:0 was asked for"):
        go_on(Run(StoreSource(record)), None)
    assert record.run == before


def test_kernels_of_another_gpu_are_not_installed(monkeypatch):
    """A kernel's figures are those of its GPU: elsewhere the message names both; a CPU is a CPU."""
    here = {"name": "GPU B", "arch": "sm_80"}
    monkeypatch.setattr(devices, "facts", lambda device: here)
    recorded = {"kind": "cuda", "device": "cuda:0", "name": "GPU A", "arch": "sm_90"}
    with pytest.raises(BadInput, match=r"GPU A \(sm_90\).*GPU B \(sm_80\)"):
        check_same_gpu(recorded)
    check_same_gpu({**recorded, **here})
    check_same_gpu({"kind": "cpu", "name": "another"})
