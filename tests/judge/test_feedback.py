"""Feedback for whoever mends a wrong candidate: like what failed, and nothing of what decides."""

from __future__ import annotations

import pytest
import torch
from judge_kernels import FAST_NORM, candidate

from kforge_nb.judge.cases import make_case
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.feedback import NAME, feedback_case, like

GENERATOR = torch.Generator().manual_seed(5)


def feedback_of(found):
    """Mismatches of feedback sets."""
    return [m for m in found.mismatches if m["input_set"].startswith(NAME)]


def test_a_wrong_kernel_is_shown_elements_of_a_set_that_does_not_decide(norm_bench):
    """What is wrong everywhere is shown on ordinary values, with expected and got."""
    found = norm_bench.evaluate(candidate(FAST_NORM.replace("o[i] =", "o[i] = 1.01f *")))
    assert found.verdict is Verdict.WRONG, found.reason
    rows = feedback_of(found)
    assert rows
    assert rows[0]["input_set"] == "feedback: ordinary values"
    assert float(rows[0]["got"]) == pytest.approx(1.01 * float(rows[0]["eager"]), rel=1e-4)
    assert {m["input_set"] for m in found.mismatches} - {r["input_set"] for r in rows}


def test_what_fails_on_hard_values_only_is_shown_on_such_values(norm_bench):
    """A kernel that turns NaN into zero is right on ordinary values; feedback is of that kind."""
    lossy = FAST_NORM.replace("o[i] =", "o[i] = a[i] != a[i] ? 0.0f :")
    found = norm_bench.evaluate(candidate(lossy))
    assert found.verdict is Verdict.WRONG, found.reason
    assert {r["input_set"] for r in feedback_of(found)} == {"feedback: specials"}


def test_a_right_kernel_has_no_feedback(norm_bench):
    """Nothing is drawn for a candidate that passes."""
    assert feedback_of(norm_bench.evaluate(candidate(FAST_NORM))) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_values_look_like_those_seen_and_are_others(dtype):
    """Mean, spread and range are kept, values are not."""
    seen = (torch.randn(64, 65, generator=GENERATOR) * 3 + 50).to(dtype)
    made = like(seen, GENERATOR)
    assert made.dtype is dtype
    assert made.shape == seen.shape
    assert (made != seen).any() or dtype is torch.bool
    if dtype.is_floating_point:
        assert float(made.float().mean()) == pytest.approx(50, rel=0.05)
        assert float(made.float().std()) == pytest.approx(3, rel=0.1)
        common = set(made.flatten().tolist()) & set(seen.flatten().tolist())
        assert dtype is torch.bfloat16 or len(common) < 20
    elif dtype is torch.int64:
        assert seen.min() <= made.min() <= made.max() <= seen.max()


def test_strides_and_signs_are_kept():
    """A transposed view stays one, and a variance stays positive."""
    seen = (torch.rand(8, 9, generator=GENERATOR) + 0.1).t()
    made = like(seen, GENERATOR)
    assert made.stride() == seen.stride()
    assert bool((made > 0).all())


def test_what_eager_does_not_define_gives_no_feedback():
    """Where eager itself fails on the drawn values there is nothing to be told."""

    def failing(graph, name, inputs):
        raise RuntimeError("not defined")

    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    seen = [torch.randn(4)]
    assert feedback_case(graph, "captured 0", seen, GENERATOR, failing) is None
    made = feedback_case(graph, "offset", seen, GENERATOR, make_case)
    assert made is not None
    assert made.name == "feedback: offset"
