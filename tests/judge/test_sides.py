"""What the inputs beside the largest may become, and that one's values hide no other's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from judge_kernels import target_of

from kforge_nb.judge.cases import build_cases, secret_generator
from kforge_nb.judge.correctness import check_output
from kforge_nb.judge.roles import Role, roles_of
from kforge_nb.judge.sides import NOT_FINITE, SIGNS, Sides


def _batch_norm(x, m, v, w, b):
    return F.relu(F.batch_norm(x, m, v, w, b))


def _statistics(channels: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    m, b = torch.randn(channels), torch.randn(channels)
    return [torch.randn(2, channels, 6, 6), m, torch.rand(channels) + 0.5, torch.rand(channels), b]


def _roles(function, *inputs):
    return roles_of(target_of(function, *inputs).graph, inputs)


def test_a_variance_is_no_weight():
    """What a root is taken of stays positive; factors and addends may be anything."""
    roles = _roles(_batch_norm, *_statistics(64))
    assert roles == {1: Role.FREE, 2: Role.ROOT, 3: Role.FREE, 4: Role.FREE}


@pytest.mark.parametrize(
    ("function", "role"),
    [
        (lambda x, s: x * (1 + s), Role.FREE),
        (lambda x, s: x * torch.sigmoid(s.unsqueeze(0)), Role.FREE),
        (lambda x, s: x * torch.exp(s), Role.KEPT),
        (lambda x, s: x / s, Role.KEPT),
        (lambda x, s: x * torch.rsqrt(s + 1e-5), Role.ROOT),
        (lambda x, s: x * torch.rsqrt((s * s).sum(-1, keepdim=True) + 1e-5), Role.FREE),
        (lambda x, s: x * s + torch.log(s), Role.KEPT),
    ],
)
def test_the_first_use_says_what_is_legitimate(function, role):
    """Through constants, views and casts, to the first operator that minds; the narrowest use."""
    assert _roles(function, torch.randn(8, 32), torch.rand(32) + 0.5) == {1: role}


def test_masks_and_integers_are_left_alone():
    """Zeros and ones, or zeros and minus infinity, mean what they mean."""
    x = torch.randn(8, 64)
    ones = (torch.arange(64) % 3 > 0).float()
    hidden = torch.zeros(64).masked_fill(ones == 0, float("-inf"))
    assert _roles(lambda x, m, h: x * m + h, x, ones, hidden) == {}
    assert _roles(lambda x, i: x[i], x, torch.tensor([1, 3])) == {}


def test_signs_change_and_what_has_none_keeps_it():
    """Half of the weights are negative in one set, no variance ever is."""
    inputs = _statistics(64)
    sides = Sides(target_of(_batch_norm, *inputs).graph, inputs)
    for name in sides.names:
        drawn = sides.draw(name, inputs, secret_generator())
        assert not bool((drawn[2] < 0).any())
    drawn = sides.draw(SIGNS, inputs, secret_generator())
    assert 8 < int((drawn[3] < 0).sum()) < 56
    assert bool((drawn[3] == 0).any())
    assert torch.unique(drawn[3]).numel() < 64


CHEATS = {
    "drops the mean's NaN": lambda x, m, v, w, b: _batch_norm(x, m.nan_to_num(0.0), v, w, b),
    "drops the shift's NaN": lambda x, m, v, w, b: _batch_norm(x, m, v, w, b.nan_to_num(0.0)),
    "takes the weight's size": lambda x, m, v, w, b: _batch_norm(x, m, v, w.abs(), b),
    "bounds the mean": lambda x, m, v, w, b: _batch_norm(x, m.clamp(-1e4, 1e4), v, w, b),
}


@pytest.mark.parametrize("channels", [6, 64])
def test_honest_orders_are_right_and_cheats_are_not(channels):
    """Shared and single sets; scale and shift may be worked out first, or the mean taken off."""
    inputs = _statistics(channels)
    cases = build_cases(target_of(_batch_norm, *inputs), secret_generator())
    assert any(case.name.startswith(f"{NOT_FINITE} in") for case in cases) is (channels == 6)

    def wrong(function):
        pairs = ((c, function(*c.inputs)) for c in cases)
        return [c.name for c, got in pairs if check_output(c.expected[0], got, "", "").wrong]

    def folded(x, m, v, w, b):
        k = (w * torch.rsqrt(v + 1e-5))[:, None, None]
        return F.relu(x * k + (b[:, None, None] - m[:, None, None] * k))

    def plain(x, m, v, w, b):
        k = torch.rsqrt(v + 1e-5)[:, None, None]
        return F.relu((x - m[:, None, None]) * k * w[:, None, None] + b[:, None, None])

    assert wrong(folded) == []
    assert wrong(plain) == []
    for name, cheat in CHEATS.items():
        assert wrong(cheat), name


def test_an_input_that_is_expanded_gets_its_values_where_it_has_memory():
    """A special value is written to an element that exists, and strides stay."""
    x, w = torch.randn(4, 8, 32), torch.rand(1, 1, 32).expand(2, 8, 32)
    sides = Sides(target_of(lambda x, w: x[:2] * w, x, w).graph, [x, w])
    drawn = sides.draw(NOT_FINITE, [x, w], secret_generator())
    assert drawn[1].stride() == w.stride()
    assert 0 < int((~drawn[1][0, 0].isfinite()).sum()) <= 3
