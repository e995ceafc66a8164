"""The generator: what it writes computes what the graph says, and it knows what it cannot write."""

import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.recipes.family import Match, default_params
from kforge_nb.candidates.recipes.generator import GENERATOR, why_not
from kforge_nb.compilers import cpp
from kforge_nb.judge.policy import inspect_library, scan_source
from kforge_nb.targets.float64 import reference
from kforge_nb.targets.target import Target
from tests.candidates.random_graphs import Program, programs
from tests.helpers import make_target, run_cpp


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of builds for this file."""
    return tmp_path_factory.mktemp("builds")


def generated(target: Target, **changes: Any) -> Candidate:
    """The generator's best guess for a target, with some parameters changed."""
    match = GENERATOR.match(target)
    assert match is not None, why_not(target)
    return GENERATOR.emit(match, default_params(GENERATOR, match) | changes)


def check(fn: Callable[..., Any], *inputs: torch.Tensor, cache: Path, **changes: Any) -> None:
    """Run the generated kernel and hold it against float64, with eager as the measure."""
    target = make_target(fn, *inputs)
    found = run_cpp(generated(target, **changes), target, inputs, cache)
    assert_as_good_as_eager(found, target, inputs)


def assert_as_good_as_eager(
    found: list[torch.Tensor], target: Target, inputs: Any, factor: float = 4
) -> None:
    """Errors against float64 within a small multiple of eager's; NaN and infinities in place."""
    for ours, eager, exact in zip(
        found, target.graph(*inputs), reference(target.graph, inputs), strict=True
    ):
        if not ours.dtype.is_floating_point:
            assert torch.equal(eager, ours)
            continue
        ours, eager = ours.double(), eager.double()
        defined = torch.isfinite(exact) & torch.isfinite(eager)
        assert torch.equal(torch.isnan(ours)[defined], torch.isnan(eager)[defined])
        assert bool(torch.isnan(ours)[torch.isnan(exact)].all())
        infinite = torch.isinf(exact) & torch.isinf(eager)
        assert torch.equal(ours[infinite], eager[infinite])
        if bool(defined.any()):
            floor = 2 * torch.finfo(found[0].dtype).eps * exact[defined].abs().max()
            budget = factor * (eager - exact)[defined].abs().max() + floor
            assert (ours - exact)[defined].abs().max() <= budget


def program_holds(program: Program, cache: Path) -> None:
    """Generate for a random program with random parameters, run, and compare."""
    inputs = program.tensors()
    target = make_target(program, *inputs)
    match = GENERATOR.match(target)
    assert match is not None, why_not(target)
    chance = random.Random(target.fingerprint)
    params = {n: chance.choice(v) for n, v in GENERATOR.parameters(match).items()}
    found = run_cpp(GENERATOR.emit(match, params), target, inputs, cache)
    assert_as_good_as_eager(found, target, inputs)


RANDOM = settings(
    max_examples=16,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@RANDOM
@given(program=programs())
def test_random_graphs(program: Program, cache: Path) -> None:
    """Random graphs, shapes, strides, dtypes and parameters give what float64 gives."""
    program_holds(program, cache)


@RANDOM
@given(program=programs(special=True))
def test_random_graphs_with_special_values(program: Program, cache: Path) -> None:
    """NaN and infinities come out where eager has them."""
    program_holds(program, cache)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """As Llama-like models compose it."""
    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * h.to(x.dtype)


def rotary(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """rotate_half as transformers compose it."""
    turned = torch.cat((-q[..., q.shape[-1] // 2 :], q[..., : q.shape[-1] // 2]), dim=-1)
    return q * cos + turned * sin


def group_silu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The head of a diffusion model's residual block."""
    return F.silu(F.group_norm(x, 4, w, b))


def residual_norm(
    x: torch.Tensor, r: torch.Tensor, w: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two outputs: the residual sum and its norm."""
    h = x + r
    return h, F.layer_norm(h, (h.shape[-1],), w)


def heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A norm over each head of a projection, then the layout that attention wants."""
    q = x.view(2, 10, 3, 16).transpose(1, 2)
    return (q * torch.rsqrt(q.pow(2).mean(-1, keepdim=True) + 1e-6) * w).contiguous()


def masked_softmax(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention scores with a boolean mask."""
    return F.softmax((x * 0.125).masked_fill(mask, float("-inf")), dim=-1)


def channel_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A layer norm over the channels of an image, by permuting there and back."""
    return F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],), w).permute(0, 3, 1, 2)


def batch_relu(x: torch.Tensor, *p: torch.Tensor) -> torch.Tensor:
    """Batch norm in inference and what follows it in a residual network."""
    return F.relu(F.batch_norm(x, p[0], p[1], p[2], p[3], False) + x)


def in_place(x: torch.Tensor) -> torch.Tensor:
    """In-place forms on values of the region's own."""
    y = x * 2
    y += 1
    return F.relu(y, inplace=True).mul_(3)


def integers(ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Integer and boolean inputs."""
    keep = (ids % 3 != 0) & (ids // 2 > 1)
    return torch.where(keep, x, ids.to(torch.float32) * 0.5)


def truth(x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Boolean and integer outputs."""
    return (x > 0) | (ids == 2), ids * 3 - 1


def positions(x: torch.Tensor) -> torch.Tensor:
    """A triangle made of indices."""
    return torch.tril(x) + torch.arange(x.shape[-1]) * 0.01


R = torch.Generator().manual_seed(3)


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Reproducible values."""
    return torch.randn(shape, generator=R).to(dtype)


CASES = {
    "rms": (rms_norm, [rand(3, 5, 100), rand(100)]),
    "rms bf16": (rms_norm, [rand(3, 5, 96, dtype=torch.bfloat16), rand(96, dtype=torch.bfloat16)]),
    "rms fp16": (rms_norm, [rand(3, 5, 96, dtype=torch.half), rand(96, dtype=torch.half)]),
    "rotary": (rotary, [rand(2, 4, 9, 32), rand(9, 32), rand(9, 32)]),
    "group norm": (group_silu, [rand(2, 8, 9, 7), rand(8), rand(8)]),
    "two outputs": (residual_norm, [rand(4, 6, 50), rand(4, 6, 50), rand(50)]),
    "heads": (heads, [rand(2, 10, 48), rand(16)]),
    "mask": (masked_softmax, [rand(2, 3, 7, 40), rand(7, 40) > 0.7]),
    "channels": (channel_norm, [rand(2, 12, 5, 6), rand(12)]),
    "batch norm": (batch_relu, [rand(2, 6, 5, 7), rand(6), rand(6).abs(), rand(6), rand(6)]),
    "in place": (in_place, [rand(7, 9)]),
    "integers": (integers, [torch.arange(40).view(5, 8), rand(5, 8)]),
    "positions": (positions, [rand(6, 6)]),
    "float64": (rms_norm, [rand(4, 33, dtype=torch.double), rand(33, dtype=torch.double)]),
    "scalar": (lambda x: x.exp().sum(), [rand(33)]),
    "many rows": (lambda x: F.log_softmax(x, -1), [rand(3000, 20)]),
    "long row": (lambda x: F.softmax(x, -1), [rand(2, 70_000)]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_models_compose(name: str, cache: Path) -> None:
    """Regions as real models write them."""
    fn, inputs = CASES[name]
    check(fn, *inputs, cache=cache)


def test_boolean_and_integer_outputs(cache: Path) -> None:
    """Outputs need not be floating."""
    check(truth, rand(5, 8), torch.arange(40).view(5, 8), cache=cache)


@pytest.mark.parametrize("name", ["rms bf16", "group norm", "mask", "two outputs", "long row"])
def test_every_single_parameter_move_is_right(name: str, cache: Path) -> None:
    """Each move that the search may make from the best guess computes the same."""
    fn, inputs = CASES[name]
    target = make_target(fn, *inputs)
    match = GENERATOR.match(target)
    assert match is not None
    for parameter, values in GENERATOR.parameters(match).items():
        for value in values[1:]:
            found = run_cpp(generated(target, **{parameter: value}), target, inputs, cache)
            assert_as_good_as_eager(found, target, inputs)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads(threads: int, cache: Path) -> None:
    """Every thread count computes every element, also one that does not divide the rows."""
    inputs = [rand(7, 13, 300), rand(300)]
    target = make_target(rms_norm, *inputs)
    found = run_cpp(generated(target), target, inputs, cache, threads=threads)

    assert_as_good_as_eager(found, target, inputs)


@pytest.mark.parametrize("moments", ["two_pass", "chunked"])
@pytest.mark.parametrize("row", ["constant", "far mean", "huge", "tiny"])
def test_hard_rows(moments: str, row: str, cache: Path) -> None:
    """Variance does not drown where the mean is far above the spread or there is none."""
    base = rand(6, 5000)
    x = {
        "constant": torch.full((6, 5000), 12345.678),
        "far mean": base + 10_000,
        "huge": base * 1e15,
        "tiny": base * 1e-15,
    }[row]
    check(lambda x: F.layer_norm(x, (5000,)), x, cache=cache, moments=moments)


@pytest.mark.parametrize("softmax", ["two_pass", "online"])
def test_masked_softmax_rows(softmax: str, cache: Path) -> None:
    """Rows with no finite score are NaN, masked stretches are 0, as in eager."""
    x = rand(4, 5000)
    x[0] = -torch.inf
    x[1, :4000] = -torch.inf
    x[2, 17] = torch.nan
    x[3, 18] = torch.inf
    check(lambda x: F.softmax(x, -1), x, cache=cache, softmax=softmax)


@pytest.mark.parametrize("stream", [True, False])
def test_streaming_stores_touch_only_their_output(stream: bool, cache: Path) -> None:
    """Stores past the caches write every element and nothing outside, at odd sizes too."""
    check(F.gelu, rand(3, 33, 1037), cache=cache, stream=stream)
    check(F.gelu, rand(5, 1031, dtype=torch.bfloat16), cache=cache, stream=stream)


MATH = {
    "exp": torch.exp, "log": torch.log, "log1p": torch.log1p, "expm1": torch.expm1,
    "tanh": torch.tanh, "erf": torch.erf, "sigmoid": torch.sigmoid, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "sin": torch.sin,
    "cos": torch.cos,
}  # fmt: skip


@pytest.mark.parametrize("name", MATH)
def test_inline_math_is_accurate(name: str, cache: Path) -> None:
    """Each function stays within three units in the last place over its whole useful range.

    Where that costs time, results below the smallest normal number may come out as 0.
    """
    fn = MATH[name]
    x = torch.cat([torch.linspace(-20, 20, 40_001), torch.logspace(-30, 1.9, 5_000)])
    x = torch.cat([x, -x[40_001:], torch.tensor([0.0, -0.0, 1e-40, 88.7, -87.0, -103.0])])
    if name in ("log", "log1p"):
        x = x.abs() if name == "log" else x.clamp(min=-0.999)
    target = make_target(fn, x)
    (ours,) = run_cpp(generated(target), target, [x], cache)
    exact = fn(x.double())
    spacing = torch.finfo(torch.float32).eps * exact.abs().clamp(min=2.0**-126)
    error = (ours.double() - exact).abs()
    if name in ("sin", "cos"):  # near their zeros the angle itself is only a float
        spacing = spacing.clamp(min=torch.finfo(torch.float32).eps * 0.5)
    if name not in ("exp", "log", "log1p", "expm1"):
        error[error < 2.0**-119] = 0
    if name.startswith("gelu"):  # 1 + erf cancels in the left tail, in eager as well
        spacing = torch.maximum(spacing, torch.finfo(torch.float32).eps * x.double().abs() * 0.2)

    worst = (error / spacing)[torch.isfinite(exact)].max()
    assert worst <= 3, f"{name}: {worst:.2f} at {x[(error / spacing).argmax()]}"


@pytest.mark.parametrize("name", MATH)
def test_inline_math_at_the_edges(name: str, cache: Path) -> None:
    """NaN, infinities and zeros give what float64 gives; gelu does what eager does."""
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 3e38, -3e38] * 9)
    target = make_target(MATH[name], x)
    (ours,) = run_cpp(generated(target), target, [x], cache)

    expected = MATH[name](x.double()).float()
    if name == "gelu":
        expected = torch.where(x.isinf(), F.gelu(x), expected)
    torch.testing.assert_close(ours, expected, equal_nan=True)


def test_gelu_of_infinity_depends_on_the_layout_as_in_eager(cache: Path) -> None:
    """Strided reads keep infinity where eager does, contiguous ones lose it where eager does."""
    x = torch.full((64, 128), torch.inf)
    for view in (x, x[:, :64], x.t()):
        target = make_target(F.gelu, view)
        (ours,) = run_cpp(generated(target), target, [view], cache)
        torch.testing.assert_close(ours, F.gelu(view), equal_nan=True)


@pytest.mark.parametrize("size", [1.0, 1e3, 9e5, 1e9, 1e30])
def test_sine_of_any_angle(size: float, cache: Path) -> None:
    """Moderate angles take the vector form and far ones the library's, both right."""

    def turned(x: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.sin(x) * torch.cos(row), torch.cos(x) + torch.sin(torch.cos(x)).sum(-1, True)

    check(turned, rand(7, 100) * size, rand(7, 1) * size, cache=cache)


def test_half_conversions_are_exact(cache: Path) -> None:
    """All 65536 half and bfloat16 patterns survive, and rounding is to nearest even."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        x = bits.view(dtype)
        wide = (x.float()[:-1] + x.float()[1:]) / 2
        for fn, given_ in ((lambda x: x.float(), x), (lambda x, d=dtype: x.to(d), wide)):
            target = make_target(fn, given_)
            (ours,) = run_cpp(generated(target), target, [given_], cache)
            torch.testing.assert_close(ours, fn(given_), equal_nan=True, rtol=0, atol=0)


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
def test_math_is_vectorised(cache: Path) -> None:
    """The compiler makes vector code of the inline math: no scalar calls, wide registers."""
    target = make_target(lambda x: F.gelu(x) * torch.tanh(x) + torch.exp(x), rand(64, 512))
    built = cpp.build(generated(target).source, "kforge_region", cache=cache)
    assert isinstance(built, cpp.Built)
    listing = subprocess.run(
        ["objdump", "-d", str(built.library)], capture_output=True, text=True, check=True
    ).stdout

    assert re.search(r"vfmadd\w*ps.*%[yz]mm", listing) or "x86" not in built.compiler.target
    assert not re.search(r"call.*(expf|tanhf|erff)", listing)


@pytest.mark.parametrize(
    ("fn", "inputs", "words"),
    [
        (lambda x: x.cumsum(-1), [rand(4, 8)], "cumsum"),
        (lambda x: torch.sort(x, -1).values, [rand(4, 8)], "sort"),
        (lambda x, i: x[i], [rand(4, 8), torch.arange(4)], "index"),
        (lambda x, y: x @ y, [rand(4, 8), rand(8, 4)], "mm"),
        (lambda x: x.mean(-1, keepdim=True) + x.mean((0, 1), keepdim=True), [rand(4, 8)], "reduc"),
        (lambda x: torch.complex(x, x), [rand(4)], "complex"),
        (lambda x: x * x[:0].sum(), [rand(0, 4)], "empty"),
    ],
)
def test_says_why_not(fn: Callable[..., Any], inputs: list[torch.Tensor], words: str) -> None:
    """What cannot be generated is refused with the reason in words, never with an exception."""
    target = make_target(fn, *inputs)

    assert GENERATOR.match(target) is None
    assert words in (why_not(target) or "")


def test_same_choice_gives_same_source() -> None:
    """Sources are deterministic, so the build cache and digests work across processes."""
    fn, inputs = CASES["two outputs"]
    first, second = make_target(fn, *inputs), make_target(fn, *inputs)
    other = type(GENERATOR)()
    match = other.match(second)
    assert match is not None

    found = other.emit(match, default_params(other, match))
    assert generated(first).source == found.source
    assert generated(first).digest == found.digest


def test_match_is_the_families_protocol() -> None:
    """The generator is a family like the tuned ones: plain JSON parameters, origin, cpp plan."""
    fn, inputs = CASES["rms"]
    target = make_target(fn, *inputs)
    match = Match(GENERATOR.name, target)
    params = default_params(GENERATOR, match)
    candidate = GENERATOR.emit(match, params)

    assert candidate.origin == {"proposer": "recipes", "recipe": "generated", "params": params}
    assert candidate.plan.kernels[0].args == ("in0", "in1", "out0", "i32:nthreads")


@pytest.mark.parametrize("name", ["rms bf16", "group norm", "rotary", "long row"])
def test_sources_pass_the_policy(name: str, cache: Path) -> None:
    """Nothing that the generator writes or links is even suspicious to the judge."""
    fn, inputs = CASES[name]
    candidate = generated(make_target(fn, *inputs), stream=True)
    built = cpp.build(candidate.source, "kforge_region", cache=cache)
    assert isinstance(built, cpp.Built)

    assert scan_source(candidate.source) == []
    assert inspect_library(built.library, "kforge_region") == []
