"""In a graph laid out channels-last each turn belongs to the region whose answer it turns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from kforge_nb.candidates.recipes.cuda import cuda_families
from kforge_nb.targets.channels_last import is_turn, lay_out
from kforge_nb.targets.partition import Cut, cut
from kforge_nb.targets.target import Occurrence, Target


class Decoder(nn.Module):
    """Two norms with activations, biased convolutions and a residual, as in an image decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(4, 16), nn.GroupNorm(4, 16)])
        self.convs = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1) for _ in range(3)])

    def forward(self, x: Any) -> Any:
        x = self.convs[2](x)
        h = self.convs[0](nn.functional.silu(self.norms[0](x)))
        h = self.convs[1](nn.functional.silu(self.norms[1](h)))
        return self.convs[2]((x + h) / 2.0)


class Residual(nn.Module):
    """A stem with pooling and a block, as in a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, bias=False)
        self.convs = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(16) for _ in range(3)])

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norms[0](self.stem(x)))
        x = nn.functional.max_pool2d(x, 3, 2, 1)
        h = torch.relu(self.norms[1](self.convs[0](x)))
        return self.convs[0](torch.relu(self.norms[2](self.convs[1](h)) + x))


class _Values(fx.Interpreter):
    """Writes each node's fake value where Dynamo writes it."""

    def run_node(self, n: fx.Node) -> Any:
        n.meta["example_value"] = found = super().run_node(n)
        return found


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions answer as they are asked; a torch for CPUs does not know that of a GPU."""

    def layout(image: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
        del weight, backend
        turned = image.is_contiguous(memory_format=torch.channels_last)
        return torch.channels_last if turned else torch.contiguous_format

    monkeypatch.setattr(torch._C, "_conv_determine_backend_memory_format", layout)


def cuts(captured: Any, model: nn.Module, x: torch.Tensor) -> tuple[list[Cut], fx.GraphModule]:
    """Cuts of the model's laid-out graph, as on a GPU, and the graph."""
    torch._C._ensureCUDADeviceGuardSet()
    graph = captured(model.eval(), x)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        inputs = [torch.empty(v.shape, device="cuda") for v in graph.example_inputs]
        _Values(graph.gm).run(*inputs)
    found = lay_out(graph.gm, inputs)
    assert found.changed, found.reason
    return cut(found.gm, inputs), found.gm


def family(made: Cut) -> str:
    """The first CUDA family that takes a cut."""
    places = [Occurrence(0, "", tuple(n.name for n in made.nodes), 1)]
    target = Target(
        made.fingerprint, made.name, made.family, "region", made.to_graph(),
        made.input_specs, made.output_specs, places,
    )  # fmt: skip
    return next((f.name for f in cuda_families() if f.match(target)), "none")


@pytest.mark.parametrize(
    ("model", "shape", "wanted"),
    [
        (
            Decoder(),
            (1, 16, 8, 6),
            [
                ("group_norm·silu", "group_norm"),
                ("add·group_norm·silu", "group_norm"),
                ("add·div", "pointwise"),
                ("add", "generated"),  # the answer's bias, with the turn back
            ],
        ),
        (
            Residual(),
            (2, 3, 16, 18),
            [
                ("batch_norm·relu", "batch_norm"),
                ("max_pool2d", "pooling"),
                ("batch_norm·relu", "batch_norm"),
                ("batch_norm·add·relu", "batch_norm"),
            ],
        ),
    ],
    ids=["decoder", "residual"],
)
def test_regions_are_cut_whole_and_have_recipes(
    model: nn.Module, shape: tuple[int, ...], wanted: list[tuple[str, str]], captured: Any
) -> None:
    """A norm's region ends with its turn, and tuned CUDA recipes take what is laid out."""
    made, gm = cuts(captured, model, torch.randn(shape))
    assert [(c.name, family(c)) for c in made] == wanted
    inside = {n.name for c in made for n in c.nodes}
    late = [n for n in gm.graph.nodes if is_turn(n) and n.args[0].op != "placeholder"]
    assert all(n.name in inside for n in late)
    for one in made:
        outputs = () if one.name == "add" else one.output_specs
        for spec in (*one.input_specs, *outputs):
            if len(spec.shape) == 4 and spec.shape[2] > 1:
                assert spec.stride[1] == 1, (one.name, spec)
