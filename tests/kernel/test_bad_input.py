"""Bad input in a real kernel: one clear line each, never a traceback, nothing lost."""

from __future__ import annotations

import pytest

SETUP = """
import torch
from torch import nn
learning = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).eval()
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).eval().requires_grad_(False)
x = torch.randn(8, 64)
"""

TABLE = [
    ("%kforge", "needs a command"),
    ("%kforge optimise model(x)", "did you mean 'optimize'"),
    ("%kforge profile --granularty op model(x)", "did you mean '--granularity'"),
    ("%%kforge optimize --budget many\nmodel(x)", "--budget takes a whole number"),
    ("%%kforge optimize --rest inducter\nmodel(x)", "did you mean 'inductor'"),
    ("%%kforge optimize --as 3x\nmodel(x)", "--as needs a Python name"),
    ("%%kforge profile\nmodel(x", "does not compile"),
    ("%%kforge profile\nmodel(torch.randn(3, 5))", "the cell raised RuntimeError on line 2"),
    ("%%kforge profile\nundefined_thing(x)", "NameError on line 2"),
    ("%%kforge profile\n1 + 1", "no torch.nn.Module"),
    ("%%kforge profile\nnn.Linear(4, 4, device='meta')(torch.empty(2, 4, device='meta'))", "meta"),
    ("%%kforge optimize --backend cupy_raw\nmodel(x)", "CUDA"),
    ("%%kforge optimize --backend cuda_extension\nmodel(x)", "--allow-host-code"),
    ("%%kforge optimize --ops sofmax\nmodel(x)", "no target is a 'sofmax'"),
    ("%%kforge optimize --target 99\nmodel(x)", "there is no target 99"),
    ("%%kforge optimize\nlearning(x)", "with torch.inference_mode():"),
    ("%kforge status nosuchrun", "no runs"),
    ("%kforge status", "no runs"),
    ("%%kforge kernel\nvoid f() {}", "--target"),
    ("%kforge doctor --verbose", "unknown option --verbose"),
]


@pytest.fixture(scope="module")
def prepared(module_kernel):
    """One kernel for the whole table: bad input must not disturb what comes after it."""
    assert module_kernel.run(SETUP).status == "ok"
    return module_kernel


@pytest.mark.parametrize(("cell", "words"), TABLE, ids=[cell[:40] for cell, _ in TABLE])
def test_bad_input_is_one_message(prepared, cell, words):
    """Every kind of bad input gives one message that says what is wrong, without a traceback."""
    reply = prepared.run(cell)

    assert words in reply.stderr
    assert "Traceback" not in reply.stderr + reply.stdout
    assert "Traceback" not in reply.error
    assert reply.stderr.startswith("UsageError: ")
