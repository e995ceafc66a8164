"""Captured inputs: strides, sharing, memory, and files that cannot be trusted."""

from __future__ import annotations

import json
import resource

import pytest
import torch

from kforge_nb.errors import DocumentError, StoreError
from kforge_nb.targets import inputs as inputs_module
from kforge_nb.targets.build import find_targets
from kforge_nb.targets.inputs import CapturedInputs
from kforge_nb.workload.capture import capture_graphs, watch


def test_strides_and_offsets_survive_memory_and_disk(tmp_path):
    """Transposed, sliced and expanded tensors come back with the same layout and values."""
    base = torch.randn(6, 8)
    tensors = [
        base.t(),
        base[1:4, 2:6],
        base[:1].expand(5, 8),
        torch.tensor(3.0),
        torch.empty(0, 4),
    ]
    kept = CapturedInputs()
    kept.add(tensors)
    kept.save(tmp_path)
    for again in (kept.sets()[0], CapturedInputs.load(tmp_path).sets()[0]):
        assert [t.stride() for t in again] == [t.stride() for t in tensors]
        assert all(torch.equal(a, b) for a, b in zip(again, tensors, strict=True))


def test_a_copy_is_not_reached_by_later_writes_and_a_reference_is():
    """Activations are snapshots; weights stay the model's own."""
    activation, weight = torch.zeros(4), torch.zeros(4)
    kept = CapturedInputs()
    kept.add([activation, weight], ["copy", "reference"])
    activation.add_(1)
    weight.add_(1)
    first, second = kept.sets()[0]
    assert torch.equal(first, torch.zeros(4))
    assert torch.equal(second, torch.ones(4))
    assert second.data_ptr() == weight.data_ptr()


def test_one_tensor_in_two_sets_is_held_once():
    """Memory is counted by what is really held; a written tensor is another one."""
    x = torch.zeros(1000)
    kept = CapturedInputs()
    kept.add([x, x])
    kept.add([x])
    assert kept.nbytes == 4000
    x.add_(1)
    kept.add([x])
    assert kept.nbytes == 8000


def test_spilling_frees_memory_and_keeps_values():
    """After a spill nothing is held, and the sets read the same."""
    x = torch.randn(100)
    kept = CapturedInputs()
    kept.add([x[::2]])
    kept.spill()
    assert kept.nbytes == 0
    assert torch.equal(kept.sets()[0][0], x[::2])
    assert kept.sets()[0][0].stride() == (2,)


def test_only_what_is_wanted_is_read_back(monkeypatch):
    """Inputs may be large and on a slow disk, and a judge wants the first sets alone."""
    kept, seen = CapturedInputs(), []
    shared, own = torch.randn(8), [torch.randn(8), torch.randn(8)]
    for tensor in own:
        kept.add([shared, tensor])
    kept.spill()
    read = inputs_module._read

    def counted(*arguments, **options):
        found = read(*arguments, **options)
        seen.append(len(found))
        return found

    monkeypatch.setattr(inputs_module, "_read", counted)
    (first,) = kept.sets(1)
    assert torch.equal(first[1], own[0])
    assert len(kept.sets()) == 2
    assert seen == [2, 3]


def test_a_window_outside_its_storage_is_refused(tmp_path):
    """A document cannot make as_strided read beyond the tensor that it holds."""
    kept = CapturedInputs()
    kept.add([torch.zeros(4)])
    kept.save(tmp_path)
    path = tmp_path / "inputs.json"
    body = json.loads(path.read_text())
    for row in (
        ["t0", [5], [1], 0],
        ["t0", [4], [1], 1],
        ["t0", [2], [-1], 3],
        ["t9", [1], [1], 0],
    ):
        body["sets"] = [[row]]
        path.write_text(json.dumps(body))
        with pytest.raises(DocumentError):
            CapturedInputs.load(tmp_path)


def test_missing_files_are_one_clear_error(tmp_path):
    """The message names the folder."""
    with pytest.raises(DocumentError, match=str(tmp_path)):
        CapturedInputs.load(tmp_path)


class Block(torch.nn.Module):
    """Norm and activation around a projection; updates a counter in place."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.linear = torch.nn.Linear(8, 8)
        self.out = torch.nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen += 1
        return self.out(torch.nn.functional.gelu(self.linear(self.norm(x))) * self.seen)


@pytest.fixture
def found():
    model, x = torch.nn.Sequential(Block(), Block()), torch.randn(2, 4, 8)
    with torch.no_grad():
        workload = watch(lambda: [model(x), model(x)])
        seen = float(model[0].seen)
        capture_graphs(workload)
        targets = find_targets(workload)
    assert seen == float(model[0].seen) == 2.0
    return model, workload, targets


def test_a_full_disk_is_one_clear_error(tmp_path):
    """Where nothing more can be written, the message names the folder and what to do."""
    kept = CapturedInputs()
    kept.add([torch.randn(4096)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(StoreError, match="free some space"):
            kept.save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_targets_are_deduplicated_with_their_occurrences(found):
    """Two blocks, two calls each: one target a kind, two occurrences, four calls."""
    _, _, targets = found
    assert [t.family for t in targets] == ["layer_norm", "activation"]
    assert [len(t.occurrences) for t in targets] == [2, 2]
    assert [t.calls for t in targets] == [4, 4]
    assert [o.module_path for o in targets[0].occurrences] == ["0.norm", "1.norm"]
    assert [len(t.captured) for t in targets] == [2, 2]


def test_captured_inputs_are_those_of_the_model_as_it_ran(found):
    """The first norm's input is the cell's own x; its weight is the parameter itself."""
    model, workload, targets = found
    x = workload.calls[0].args[0]
    first, second = targets[0].captured.sets()
    assert torch.equal(first[0], x)
    assert first[1].data_ptr() == model[0].norm.weight.data_ptr()
    assert second[1].data_ptr() == model[1].norm.weight.data_ptr()


def test_finding_targets_does_not_change_the_model(found):
    """The buffer that the model writes to counts the two calls of the cell and nothing else."""
    model, workload, _ = found
    before = model[0].seen.clone()
    find_targets(workload)
    find_targets(workload, "op")
    assert torch.equal(model[0].seen, before)


def test_a_memory_limit_of_nothing_spills_everything(found):
    """All inputs are on disk then, and still the same."""
    _, workload, targets = found
    spilled = find_targets(workload, memory_limit=0)
    assert all(t.captured.nbytes == 0 for t in spilled)
    for one, two in zip(spilled, targets, strict=True):
        for a, b in zip(one.captured.sets()[0], two.captured.sets()[0], strict=True):
            assert torch.equal(a, b)
