"""A graph laid out channels-last: where tensors are turned, and that nothing else changes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from kforge_nb.targets.channels_last import is_convolution, is_turn, lay_out
from kforge_nb.targets.fakes import Fakes

LAST = torch.channels_last


class Residual(nn.Module):
    """Convolution, batch norm, ReLU in place and a residual, as in a ResNet."""

    def __init__(self, channels=8):
        super().__init__()
        self.one = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.two = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(2)])

    def forward(self, x):
        y = F.relu(self.norms[0](self.one(x)), inplace=True)
        y = self.norms[1](self.two(y))
        y += x
        return F.relu(y, inplace=True)


class Classifier(nn.Module):
    """A stem, two residual blocks and a head, with an image as its second output."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, stride=2, padding=3)
        self.blocks = nn.Sequential(Residual(), Residual())
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        y = self.blocks(F.max_pool2d(self.stem(x), 3, 2, 1))
        return self.head(F.adaptive_avg_pool2d(y, 1).view(len(x), -1)), y


class Attention(nn.Module):
    """Group norm, SiLU, convolution and attention over the pixels, as in an image decoder."""

    def __init__(self, channels=8):
        super().__init__()
        self.norm = nn.GroupNorm(2, channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.qkv = nn.Linear(channels, 3 * channels)

    def forward(self, x):
        x = x + self.conv(F.silu(self.norm(x)))
        b, c, h, w = x.shape
        flat = self.norm(x).view(b, c, h * w).transpose(1, 2)
        q, k, v = self.qkv(flat).chunk(3, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + y.transpose(1, 2).reshape(b, c, h, w)
        return F.interpolate(self.conv(F.silu(self.norm(x))), scale_factor=2.0)


@pytest.fixture
def laid(captured):
    """Captures, lays out, and checks that values, strides and inputs are those of the original."""

    def check(module, *args):
        graph = captured(module.eval() if isinstance(module, nn.Module) else module, *args)
        spelled = graph.gm.code
        found = lay_out(graph.gm, graph.example_inputs)
        assert graph.gm.code == spelled
        ours = [v.clone() if isinstance(v, torch.Tensor) else v for v in graph.example_inputs]
        theirs = [v.clone() if isinstance(v, torch.Tensor) else v for v in graph.example_inputs]
        with torch.no_grad():
            got, expected = found.gm(*ours), graph.gm(*theirs)
        for one, two in zip([*got, *ours], [*expected, *theirs], strict=True):
            if isinstance(two, torch.Tensor):
                assert one.stride() == two.stride()
                assert torch.allclose(one, two, rtol=1e-4, atol=1e-5)
        return found

    return check


def images_of(gm, inputs):
    """Whether each convolution of a graph is given a channels-last image, by running it."""
    seen = []

    class Looking(fx.Interpreter):
        def run_node(self, n):
            if is_convolution(n):
                seen.append(self.env[n.args[0]].is_contiguous(memory_format=LAST))
            return super().run_node(n)

    with torch.no_grad():
        Looking(gm).run(*inputs)
    return seen


@pytest.mark.parametrize("module", [Classifier, Attention])
def test_every_convolution_gets_a_channels_last_image(module, laid, captured):
    """Real networks come out with the same values, strides and inputs, all convolutions turned."""
    x = torch.randn(2, 3 if module is Classifier else 8, 32, 32)
    found = laid(module(), x)
    assert found.changed
    assert found.reason == ""
    graph = captured(module().eval(), x)
    assert not any(images_of(graph.gm, graph.example_inputs))
    assert all(images_of(lay_out(graph.gm, graph.example_inputs).gm, graph.example_inputs))


def test_an_input_of_many_users_is_turned_once(laid):
    """The residual gets the turned input as well, so that the sum stays channels-last."""
    found = laid(Residual(), torch.randn(2, 8, 16, 16))
    assert (found.turns, found.back) == (1, 1)
    (turn,) = (n for n in found.gm.graph.nodes if is_turn(n))
    assert len(turn.users) == 2


def test_a_model_that_is_channels_last_stays(captured):
    """Where a user has laid the model out already there is nothing to do, and that is said."""
    x = torch.randn(2, 8, 16, 16).contiguous(memory_format=LAST)
    graph = captured(Residual().eval().to(memory_format=LAST), x)
    found = lay_out(graph.gm, graph.example_inputs)
    assert found.gm is graph.gm
    assert not found.changed
    assert "as it is" in found.reason


def test_a_graph_without_convolutions_stays(captured):
    """Nothing is followed where nothing could be gained."""
    graph = captured(lambda x: torch.softmax(x, -1), torch.randn(3, 4))
    assert lay_out(graph.gm, graph.example_inputs).reason == "it has no convolution of images"


WEIGHT = torch.randn(8, 8, 3, 3)


def conv(x):
    return F.conv2d(x, WEIGHT, padding=1)


def test_a_write_between_two_convolutions_is_seen_by_the_second(laid):
    """What has been turned before a write is turned again behind it."""

    def written(x):
        y = (x.flatten(2) * 2).view(x.shape)  # turned for the convolution, not at the entry
        first = conv(y)
        y.mul_(3)
        return first, conv(y)

    assert laid(written, torch.randn(1, 8, 6, 6)).changed


def test_an_input_that_is_written_to_is_not_replaced_by_a_copy(laid):
    """The caller sees the write, as before."""

    def written(x):
        y = conv(x)
        x.add_(1)
        return y + x

    assert laid(written, torch.randn(1, 8, 6, 6)).changed


def test_a_write_to_memory_of_another_input_refuses(captured):
    """A copy of the one, made before the write to the other, would miss it."""

    def written(x, y):
        first = conv(x)
        y.add_(1)
        return first, conv(x)

    x = torch.randn(1, 8, 6, 6)
    for y, same in ((x[:, :4], True), (x[:, :4].clone(), False)):
        graph = captured(written, x, y)
        found = lay_out(graph.gm, graph.example_inputs)
        assert found.changed is not same
        assert ("shares memory" in found.reason) is same


def test_a_view_that_would_become_a_copy_and_is_written_to_refuses(captured):
    """A write through a view reaches the tensor that it is a view of; a copy would lose it."""

    def written(x):
        y = conv(x)
        y.view(1, 48, 6).add_(1)
        return y * 2

    graph = captured(written, torch.randn(1, 8, 6, 6))
    found = lay_out(graph.gm, graph.example_inputs)
    assert found.gm is graph.gm
    assert "copy" in found.reason


def test_an_output_that_is_a_view_of_another_refuses(captured):
    """Outputs that share memory keep doing so, or the graph stays."""

    def both(x):
        y = conv(x)
        return y, y.view(1, 48, 6)

    graph = captured(both, torch.randn(1, 8, 6, 6))
    found = lay_out(graph.gm, graph.example_inputs)
    assert found.gm is graph.gm
    assert "shares memory" in found.reason


def test_strides_that_are_asked_for_refuse(captured):
    """``as_strided`` and bytes say where numbers lie: no other layout gives the same values."""
    for asks in (
        lambda x: conv(x).as_strided((4, 4), (4, 1)),
        lambda x: conv(x).view(torch.int16),
    ):
        graph = captured(asks, torch.randn(1, 8, 6, 6))
        assert "lies in memory" in lay_out(graph.gm, graph.example_inputs).reason


def test_autocast_inside_a_graph_is_followed(laid):
    """Convolutions under autocast answer in its dtype, also when strides are followed."""

    def cast(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = conv(x)
        return y.float().relu()

    assert laid(cast, torch.randn(1, 8, 6, 6)).changed


def test_outputs_lie_as_they_were_seen_to(captured, monkeypatch):
    """Where fakes guess the original's output wrong, what a run of it showed is what counts."""
    graph = captured(conv, torch.randn(1, 8, 6, 6))
    guessed = Fakes.run

    def wrong(self):
        guessed(self)
        last = next(n for n in self.nodes if is_convolution(n))
        self.values[last] = self.values[last].clone(memory_format=LAST)

    monkeypatch.setattr(Fakes, "run", wrong)
    found = lay_out(graph.gm, graph.example_inputs)
    with torch.no_grad():
        (got,), (expected,) = (gm(*graph.example_inputs) for gm in (found.gm, graph.gm))
    assert found.changed
    assert got.stride() == expected.stride() == (288, 36, 6, 1)


def test_a_view_behind_a_linear_layer_stays_a_view(laid):
    """Where strides are those of before, nothing is spelled anew: its targets stay the same."""
    found = laid(Attention(), torch.randn(2, 8, 16, 16))
    taken = [n for n in found.gm.graph.nodes if n.op == "call_method"]
    assert [n.target for n in taken if n.target in ("view", "reshape")] == ["reshape", "reshape"]

    def split(x):
        y = conv(x).flatten(2).transpose(1, 2)
        return F.linear(y, torch.eye(8)).view(1, 36, 2, 4)

    found = laid(split, torch.randn(1, 8, 6, 6))
    assert [n.target for n in found.gm.graph.nodes if n.target in ("view", "reshape")] == ["view"]


def test_on_a_gpu_the_turn_stands_behind_norm_and_activation(captured):
    """CUDA's group norm answers contiguous: its answer is turned right before the convolution."""
    torch._C._ensureCUDADeviceGuardSet()
    graph = captured(Attention().eval(), torch.randn(2, 8, 16, 16))
    for node in graph.gm.graph.nodes:
        node.meta.pop("example_value", None)
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [torch.empty(v.shape, device="cuda") for v in graph.example_inputs]
    found = lay_out(graph.gm, inputs)
    assert found.changed, found.reason
    turns = [n for n in found.gm.graph.nodes if is_turn(n)]
    before = [n.args[0].op if n.args[0].op == "placeholder" else n.args[0].target for n in turns]
    assert before == ["placeholder", F.silu, F.silu]
    assert all(is_convolution(u) for n in turns[1:] for u in n.users)
