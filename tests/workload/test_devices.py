"""Where a workload lives: told by its weights, also when they are split."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from kforge_nb.errors import BadInput
from kforge_nb.workload.calls import GradState, ModuleCall
from kforge_nb.workload.capture import Workload
from kforge_nb.workload.devices import (
    free_bytes,
    gpus_of,
    main_device,
    memory_told,
    split_note,
)


def workload_on(*places: tuple[str, int], argument: str = "cpu") -> Workload:
    """A workload of one module with so many floats on each device (fake tensors: no GPU)."""
    module = nn.Module()
    with FakeTensorMode():
        for number, (device, size) in enumerate(places):
            weight = nn.Parameter(torch.empty(size, device=device))
            module.register_parameter(f"w{number}", weight)
        x = torch.empty(4, device=argument)
    call = ModuleCall(module, "model", (x,), {}, GradState(False, True))
    return Workload(lambda: None, calls=[call])


def test_the_device_is_that_of_the_weights():
    """A model on one GPU lives there, whatever its arguments; there is nothing to say."""
    workload = workload_on(("cuda:0", 1000))
    assert main_device(workload) == "cuda:0"
    assert split_note(workload) is None


def test_a_model_without_weights_lives_where_its_arguments_are():
    """An activation has no weights; its argument tells."""
    assert main_device(workload_on(argument="cuda:1")) == "cuda:1"
    assert main_device(workload_on()) == "cpu"


def test_a_model_half_on_the_cpu_is_told():
    """The GPU is what matters even when the CPU holds more, and the split is said in numbers."""
    workload = workload_on(("cpu", 3_000_000), ("cuda:0", 1_000_000))
    assert main_device(workload) == "cuda:0"
    note = split_note(workload)
    assert note is not None
    assert "12.0 MB on cpu" in note
    assert "4.0 MB on cuda:0" in note


def test_a_small_table_on_the_cpu_is_no_split():
    """A buffer of a few bytes left on the CPU is nothing to bother anybody with."""
    assert split_note(workload_on(("cuda:0", 1_000_000), ("cpu", 100))) is None


def test_two_gpus_are_named_by_size():
    """Both GPUs are known, the one with most weights first."""
    workload = workload_on(("cuda:0", 100), ("cuda:1", 1000))
    assert gpus_of(workload) == ["cuda:1", "cuda:0"]
    assert split_note(workload) is not None


def test_a_full_gpu_is_one_clear_message():
    """Out of memory says what was being done and what to do; other errors pass through."""
    told = pytest.raises(BadInput, match=r"did not suffice for timing.*empty_cache")
    with told, memory_told("timing"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. More")
    with pytest.raises(ZeroDivisionError), memory_told("timing"):
        raise ZeroDivisionError


@pytest.mark.parametrize(("share", "free"), [(1.0, 5500), (0.25, 1500), (0.05, 0)])
def test_a_share_of_the_gpu_bounds_what_is_free(monkeypatch, share, free):
    """Of 10,000 bytes, 5,000 free and 500 of torch's own unused, no more than the user's share."""
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "mem_get_info", lambda _: (5000, 10_000))
    monkeypatch.setattr(cuda, "memory_reserved", lambda _: 1500)
    monkeypatch.setattr(cuda, "memory_allocated", lambda _: 1000)
    monkeypatch.setattr(cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "get_per_process_memory_fraction", lambda _: share)
    assert free_bytes("cuda:0") == free
