"""A kernel that is killed while a language model answers: no money is lost from the books."""

from __future__ import annotations

import pytest

from tests.proposers.loopback import Loopback, answer, silent

SETUP = """
import torch
from torch import nn
import kforge_nb
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.Softmax(-1)).eval().requires_grad_(False)
x = torch.randn(64, 64)
"""
OPTIONS = (
    "--proposer openai --model loopback-1 --price-in 1 --price-out 4 --max-cost 0.40 "
    "--max-tokens 2000 --parallel 1 --budget 2 --baseline eager --rest eager --guard-time 5"
)
PATIENCE_S = 240


@pytest.mark.slow
def test_a_call_of_a_killed_kernel_counts_and_the_run_goes_on(start_kernel, monkeypatch):
    """The call stands at its worst price; a resumed run marks it lost, says so, and goes on."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789abcdef")
    with Loopback([silent], otherwise=answer("I would rather not.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        first = start_kernel()
        assert first.run("%load_ext kforge_nb").status == "ok"
        assert first.run(SETUP).status == "ok"
        reply = first.run(f"%%kforge optimize {OPTIONS} --as r\nmodel(x)", PATIENCE_S)
        assert reply.status == "ok", reply
        assert server.arrived.wait(PATIENCE_S)
        first.kill()

        second = start_kernel()
        assert second.run("%load_ext kforge_nb").status == "ok"
        assert second.run(SETUP).status == "ok"
        look = "r = kforge_nb.load_run('r'); print(r.state, *r.costs.state, r.costs.usd.sum())"
        state, call, booked = second.run(look).stdout.split()
        assert (state, call) == ("interrupted", "open")
        assert 0 < float(booked) <= 0.40
        reply = second.run("%%kforge resume r\nmodel(x)", PATIENCE_S)
        assert reply.status == "ok", reply
        second.run("%kforge wait r", PATIENCE_S)
        after = second.run("print(r.state, *r.costs.state)").stdout.split()
        assert after[:2] == ["done", "lost"]
        assert after[2:] == ["done"] * (len(after) - 2)
        assert len(after) > 2
        assert "was killed" in second.run("print(r)").stdout
        total = float(second.run("print(r.costs.usd.sum())").stdout)
        assert float(booked) < total <= 0.40
