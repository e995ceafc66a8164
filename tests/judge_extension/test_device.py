"""Torch extensions on a GPU: built by nvcc, called in a worker with its own context, judged."""

from __future__ import annotations

import pytest
import torch
from extension_sources import SILU_CUDA, target_of

from kforge_nb.judge.evaluation import Verdict
from kforge_nb.proposers.manual import manual_candidate

pytestmark = pytest.mark.gpu

WRITE = "    o[i] = a[i] / (1.0f + expf(-a[i]));"
GUARDED = "    if (i < n / 2) o[i] = a[i] / (1.0f + expf(-a[i]));"
RETURN = "  return {y};"


@pytest.fixture(scope="module")
def bench(judge):
    """SiLU over 8 MB, on the GPU."""
    torch.manual_seed(0)
    opened = judge.open(target_of(torch.nn.functional.silu, torch.randn(512, 4096, device="cuda")))
    yield opened
    opened.close()


def _evaluate(bench, source):
    return bench.evaluate(manual_candidate(source, None, bench.target, "cuda_extension"))


def test_an_honest_extension_is_timed(bench):
    """A right extension goes all the way, against eager, and says what kind it is."""
    found = _evaluate(bench, SILU_CUDA)

    assert found.correct, (found.reason, found.log)
    assert found.against("eager").n > 0
    assert "host code" in found.reason
    assert found.resources["host_code"] is True
    assert found.resources["sandbox"]["no_new_privs"]
    assert next(iter(found.resources["kernels"].values()))["registers"] > 0


def test_a_crash_costs_only_itself(bench):
    """An illegal access ends its worker; the next candidate is judged as if nothing had been."""
    broken = _evaluate(bench, SILU_CUDA.replace("    o[i] = ", "    o[i + (1ll << 40)] = "))
    good = _evaluate(bench, SILU_CUDA)

    assert broken.verdict is Verdict.CRASHED, broken.reason
    assert "illegal memory access" in broken.reason
    # Timed, so it was right; whether the time means anything depends on who else uses the device.
    assert good.against("eager").n > 0, good.reason


def test_unwritten_outputs_are_seen(bench):
    """What torch allocates is poisoned, so an element that was not computed is not right."""
    found = _evaluate(bench, SILU_CUDA.replace(WRITE, GUARDED))

    assert found.verdict is Verdict.WRONG, found.reason


def test_waiting_for_the_device_is_told(bench):
    """A call that cannot be captured in a graph is refused with what to do instead."""
    source = SILU_CUDA.replace(RETURN, "  cudaDeviceSynchronize();\n" + RETURN)
    found = _evaluate(bench, source)

    assert found.verdict is Verdict.REFUSED, found.reason
    assert "current stream" in found.reason
