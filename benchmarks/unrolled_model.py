"""A graph of the make-up of Qwen 3.5's, as large as wanted, without weights or tracing time.

Linear attentions whose gated delta rule is written in chunks, with the triangular system of each
chunk solved row by row, come out of Dynamo as about a thousand nodes a layer. One period (three of
them and one full attention, each with norms and a gated feed-forward) is traced at a width of a few
numbers; the graph is then written several times over, each period with weights of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from kforge_nb.workload.calls import ModuleCall
from kforge_nb.workload.capture import Workload, capture_graphs, watch
from kforge_nb.workload.graphs import CapturedGraph

__all__ = ["Period", "delta_rule", "repeated", "unrolled"]

WIDTH, HEADS, SIZE = 32, 2, 8
LENGTH, CHUNK = 1024, 64


def delta_rule(q: Any, k: Any, v: Any, g: Any, beta: Any, chunk: int) -> Any:
    """The gated delta rule of [batch, length, heads, size] in chunks, rows solved one by one."""
    kept = q.dtype
    q, k, v, g, beta = (
        x.transpose(1, 2).contiguous().to(torch.float32) for x in (q, k, v, g, beta)
    )
    q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + 1e-6) * q.shape[-1] ** -0.5
    k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + 1e-6)
    strong, weighed = v * beta.unsqueeze(-1), k * beta.unsqueeze(-1)
    batch, heads, length, size = v.shape
    q, k, strong, weighed = (
        x.reshape(batch, heads, length // chunk, chunk, x.shape[-1])
        for x in (q, k, strong, weighed)
    )
    g = g.reshape(batch, heads, length // chunk, chunk).cumsum(-1)
    upper = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(0)
    decay = (g.unsqueeze(-1) - g.unsqueeze(-2)).tril().exp().tril()
    solved = -((weighed @ k.transpose(-1, -2)) * decay).masked_fill(upper, 0)
    for i in range(1, chunk):
        row = solved[..., i, :i].clone()
        above = solved[..., :i, :i].clone()
        solved[..., i, :i] = row + (row.unsqueeze(-1) * above).sum(-2)
    solved = solved + torch.eye(chunk, dtype=solved.dtype, device=solved.device)
    news, olds = solved @ strong, solved @ (weighed * g.exp().unsqueeze(-1))
    state = torch.zeros(batch, heads, k.shape[-1], size, dtype=v.dtype, device=v.device)
    out = torch.zeros_like(news)
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
    for i in range(length // chunk):
        ask, key, new = q[:, :, i], k[:, :, i], news[:, :, i]
        inner = (ask @ key.transpose(-1, -2) * decay[:, :, i]).masked_fill(later, 0)
        fresh = new - olds[:, :, i] @ state
        out[:, :, i] = (ask * g[:, :, i, :, None].exp()) @ state + inner @ fresh
        left = (g[:, :, i, -1, None] - g[:, :, i]).exp()[..., None]
        state = state * g[:, :, i, -1, None, None].exp()
        state = state + (key * left).transpose(-1, -2) @ fresh
    out = out.reshape(batch, heads, length, size)
    return out.transpose(1, 2).contiguous().to(kept)


class _Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Any) -> Any:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (wide * (1.0 + self.weight.float())).type_as(x)


class _Linear(nn.Module):
    """A linear attention: a causal convolution, the delta rule, and a gated norm."""

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.chunk = chunk
        inner = HEADS * SIZE
        self.mix = nn.Linear(WIDTH, 3 * inner, bias=False)
        self.conv = nn.Conv1d(3 * inner, 3 * inner, 4, groups=3 * inner, padding=3, bias=False)
        self.gates = nn.Linear(WIDTH, 2 * HEADS, bias=False)
        self.bias = nn.Parameter(torch.ones(HEADS))
        self.decay = nn.Parameter(torch.zeros(HEADS))
        self.gate = nn.Linear(WIDTH, inner, bias=False)
        self.norm, self.out = _Norm(SIZE), nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: Any, *_: Any) -> Any:
        batch, length = x.shape[:2]
        mixed = F.silu(self.conv(self.mix(x).transpose(1, 2))[:, :, :length]).transpose(1, 2)
        q, k, v = (y.reshape(batch, length, HEADS, SIZE) for y in mixed.chunk(3, dim=-1))
        strength, step = self.gates(x).chunk(2, dim=-1)
        g = -self.decay.float().exp() * F.softplus(step.float() + self.bias)
        answer = self.norm(delta_rule(q, k, v, g, strength.sigmoid(), self.chunk))
        answer = answer * F.silu(self.gate(x).reshape(answer.shape).float())
        return self.out(answer.reshape(batch, length, -1))


class _Full(nn.Module):
    """A full attention with normed queries and keys, and rotary embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.q_norm, self.k_norm = _Norm(WIDTH // HEADS), _Norm(WIDTH // HEADS)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        shape = (*x.shape[:2], HEADS, -1)
        q, k = self.q_norm(self.q(x).view(shape)), self.k_norm(self.k(x).view(shape))
        q, k, v = (y.transpose(1, 2) for y in (q, k, self.v(x).view(shape)))
        q, k = (y * cos + _half_turned(y) * sin for y in (q, k))
        answer = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(answer.transpose(1, 2).reshape(x.shape))


def _half_turned(x: Any) -> Any:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class _Layer(nn.Module):
    def __init__(self, full: bool, chunk: int) -> None:
        super().__init__()
        self.mix = _Full() if full else _Linear(chunk)
        self.before, self.behind = _Norm(WIDTH), _Norm(WIDTH)
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        x = x + self.mix(self.before(x), cos, sin)
        normed = self.behind(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Period(nn.Module):
    """Three layers of linear attention and one of full attention."""

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(i == 3, chunk) for i in range(4))

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        """[batch, length, width] to the same; ``cos`` and ``sin`` turn the full attention."""
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x


def unrolled(length: int = LENGTH, chunk: int = CHUNK) -> CapturedGraph:
    """One period as Dynamo gives it, about 4,000 nodes at the length of the paper's prefill."""
    torch.manual_seed(0)
    model = Period(chunk).eval().requires_grad_(False)
    x = torch.randn(1, length, WIDTH)
    angles = torch.randn(1, 1, length, WIDTH // HEADS)
    with torch.no_grad():
        workload = capture_graphs(watch(lambda: model(x, angles.cos(), angles.sin())))
    (graph,) = workload.graphs
    return graph


def repeated(period: CapturedGraph, times: int) -> Workload:
    """A workload whose graph is the period's written ``times`` over, one behind the other.

    Each copy has weights of its own; its first input is what the copy before it returned.
    """
    graph, inputs = fx.Graph(), list[Any]()
    nodes = list(period.gm.graph.nodes)
    weights = [n for n in nodes if n.op == "placeholder" and period.sources[n.name] != "input"]
    given = dict(
        zip((n for n in nodes if n.op == "placeholder"), period.example_inputs, strict=True)
    )
    moving = next(n for n in given if period.sources[n.name] == "input" and given[n].dim() == 3)
    sources, new = dict(period.sources), dict[fx.Node, fx.Node]()
    copies: list[dict[fx.Node, fx.Node]] = []
    for place in range(times):
        own = {}
        for node in given:
            if place and node not in weights:
                continue
            own[node] = copy = graph.placeholder(f"{node.target}{place or ''}")
            copy.meta = dict(node.meta)
            sources[copy.name] = period.sources[node.name]
            inputs.append(given[node].clone() if place else given[node])
        copies.append(own)
    for own in copies:
        new = {**copies[0], **own, **({moving: new[_result(nodes[-1])]} if new else {})}
        for node in nodes:
            if node.op not in ("placeholder", "output"):
                new[node] = graph.node_copy(node, new.__getitem__)
    graph.output((new[_result(nodes[-1])],))
    gm = fx.GraphModule(period.gm, graph)
    gm.meta = dict(period.gm.meta)
    call = ModuleCall(
        period.call.module, "model", period.call.args, period.call.kwargs, period.call.grad_state
    )
    whole = CapturedGraph(gm, inputs, call, sources, period.state, executions=1)
    return Workload(lambda: None, calls=[call], graphs=[whole])


def _result(output: fx.Node) -> fx.Node:
    (result,) = output.all_input_nodes
    return result
