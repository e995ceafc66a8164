"""Expected values where a device has room for eager and for nothing else; without a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kforge_nb.judge import cases as cases_module
from kforge_nb.judge import shelf as shelf_module
from kforge_nb.judge.cases import build_cases, make_case, weakness
from kforge_nb.judge.correctness import check_output
from kforge_nb.judge.draws import SIDED
from kforge_nb.judge.shelf import Shelf
from kforge_nb.judge.sides import NOT_FINITE
from kforge_nb.targets.onhost import OnHost
from tests.judge.kernels import target_of

_FEW = 16  # elements, for which there is always room


class _Full(TorchDispatchMode):
    """A device without memory: operators on its tensors fail, but for those of eager.

    There is none here, so a tensor is on the device unless it was brought to the host, or made of
    tensors that were, or of none.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__()
        self._host: dict[int, torch.Tensor] = {}
        self._eager = 0
        self.refused = 0
        forward = graph.forward

        def eager(*inputs: torch.Tensor) -> object:
            with self._allowed():
                return forward(*inputs)

        graph.forward = eager

    @contextmanager
    def _allowed(self) -> Iterator[None]:
        self._eager += 1
        try:
            yield
        finally:
            self._eager -= 1

    def moved(self, tensor: torch.Tensor, device: object) -> torch.Tensor:
        """``cases.moved``: to the host, whatever is asked."""
        assert str(device) == "cpu"
        with self._allowed():
            copy = tensor.clone()
        self._host[copy.untyped_storage().data_ptr()] = copy
        return copy

    def back(self, tensor: torch.Tensor, _device: object) -> torch.Tensor:
        """``shelf.moved``: to the device."""
        with self._allowed():
            return tensor.clone()

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        aliases = [made.alias_info for made in function._schema.returns]
        if all(alias is not None and not alias.is_write for alias in aliases):
            return function(*args, **(kwargs or {}))  # a view needs no memory
        leaves = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        here = all(t.untyped_storage().data_ptr() in self._host for t in leaves if t.numel() > _FEW)
        if not here and not self._eager:
            self.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        result = function(*args, **(kwargs or {}))
        for made in pytree.tree_leaves(result):
            if isinstance(made, torch.Tensor) and self._eager:
                self._host.pop(made.untyped_storage().data_ptr(), None)
            elif isinstance(made, torch.Tensor):
                self._host[made.untyped_storage().data_ptr()] = made
        return result


def _function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1) * w


@pytest.fixture
def target():
    torch.manual_seed(1)
    return target_of(_function, torch.randn(6, 40), torch.randn(40))


@contextmanager
def _full(target, monkeypatch) -> Iterator[_Full]:
    device = _Full(target.graph)
    monkeypatch.setattr(cases_module, "moved", device.moved)
    monkeypatch.setattr(shelf_module, "moved", device.back)
    with device:
        yield device


def _inputs() -> dict[str, list[torch.Tensor]]:
    alone, holed = torch.zeros(6, 40), torch.randn(40)
    alone[2, 3] = 1.5
    holed[7] = float("inf")
    return {
        "impulses": [alone, torch.randn(40)],
        NOT_FINITE: [torch.randn(6, 40), holed],
        SIDED: [alone * 2.0, torch.randn(40)],
    }


@pytest.mark.parametrize("name", _inputs())
def test_nothing_but_eager_needs_a_device(name, target, monkeypatch):
    """Sparse inputs, infinities in weights, rows by themselves: what they ask goes to the CPU."""
    inputs = _inputs()[name]
    usual = make_case(target.graph, name, inputs)
    shelf = Shelf("cuda:0")
    with _full(target, monkeypatch) as device:
        case = shelf.make(target.graph, name, inputs)
    assert device.refused == 1
    assert any("on the CPU" in note for note in shelf.notes)
    (found,), (known,) = case.expected, usual.expected
    assert torch.equal(found.reference.nan_to_num(), known.reference.nan_to_num())
    assert (found.special is None) is (known.special is None)
    assert (found.open is None) is (known.open is None)
    assert check_output(found, found.eager, "out0", name).wrong is None
    wrong = found.eager + 0.01 * found.eager.abs().nan_to_num(0.0, 0.0, 0.0).max()
    assert check_output(found, wrong, "out0", name).wrong is not None


def test_all_sets_are_drawn_and_made_on_the_host(target, monkeypatch):
    """The same sets as with a device that has room, and none of them made twice."""
    usual = build_cases(target, torch.Generator().manual_seed(3))
    shelf = Shelf("cuda:0")
    with _full(target, monkeypatch) as device:
        made = build_cases(
            target, torch.Generator().manual_seed(3), make=shelf.make, keep=shelf.keep
        )
        assert device.refused >= len(made)
        assert weakness(made) is None
    assert [case.name for case in made] == [case.name for case in usual]


def _named(device: str) -> fx.GraphModule:
    """A graph that makes a tensor on a device, holds another, and moves what it has there."""
    graph = fx.Graph()
    x = graph.placeholder("in0")
    ones = graph.call_function(torch.ones, (3,), {"device": torch.device(device)})
    moved = graph.call_method("to", (graph.call_function(torch.add, (x, ones)), device))
    moved = graph.call_method("cuda", (moved,)) if device != "cpu" else moved
    held = graph.get_attr("held")
    graph.output((graph.call_function(torch.mul, (moved, held)),))
    root = torch.nn.Module()
    root.held = torch.full((3,), 2.0)
    return fx.GraphModule(root, graph)


def test_a_graph_that_names_a_device_runs_on_the_host():
    """Whatever it says: there is no such device here."""
    x: Sequence[torch.Tensor] = [torch.arange(3.0)]
    (found,) = OnHost(_named("cuda:0")).run(*x)
    (usual,) = _named("cpu")(*x)
    assert torch.equal(found, usual)
