"""A reference that the caller holds is judged without changing anything of the caller's."""

from __future__ import annotations

import threading

import pytest
import torch
from foreign_files import REFERENCE
from torch import nn

from kforge_nb.errors import BadInput
from kforge_nb.judge.foreign import reference
from kforge_nb.judge.foreign.reference import live_reference, reference_from_file


class Trained(nn.Module):
    """In training mode its call moves statistics and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(torch.relu(self.norm(x)))


def test_the_caller_s_module_stays_as_it_was():
    """Training mode, statistics and random numbers are the caller's; what is judged is a copy."""
    module, x = Trained().train(), torch.randn(16, 8)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(5)
    random = torch.get_rng_state()
    found = live_reference(module, (x,))

    assert all(part.training for part in module.modules())
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())
    assert torch.equal(torch.get_rng_state(), random)
    assert found.layout.training is False
    assert "eval mode" in found.layout.notes[0]
    (values,) = found.target.captured.sets()
    expected = module.eval()(x)
    torch.testing.assert_close(found.target.graph(*values)[0], expected)


def test_what_the_caller_compiled_stays_compiled():
    """Tracing a reference empties none of Dynamo's caches, and leaves nothing in them."""
    compiles = []

    def backend(gm, _):
        compiles.append(gm)
        return gm.forward

    def function(x):
        return torch.relu(x) * 2

    x = torch.randn(4, 8)
    compiled = torch.compile(function, backend=backend)
    compiled(x)
    for _ in range(10):  # more than Dynamo compiles of one code object
        live_reference(function, (x,))
    compiled(x)

    assert len(compiles) == 1


def test_a_module_that_cannot_be_copied_is_told():
    """A part that refuses to be copied is said, not called in place."""
    module = Trained()
    module.lock = threading.Lock()

    with pytest.raises(BadInput, match="Trained cannot be copied"):
        live_reference(module, (torch.randn(2, 8),))


LIE = """
        import json, os, sys
        told = json.loads(sys.argv[1])
        os.write(told["answers"][0], ANSWER.encode())
        os.write(int(told["reply"]), b"done")
        while True:
            pass
"""


def test_a_reference_that_answers_itself_is_told_in_words(judge, tmp_path):
    """Its code knows where the answer goes; what it writes there is read as hostile data."""
    path = tmp_path / "liar.py"
    text = REFERENCE.replace(
        "        self.eps = eps\n", LIE.replace("ANSWER", "('[' * 100_000)"), 1
    )
    path.write_text(text)
    with pytest.raises(BadInput, match="nested too deeply"):
        reference_from_file(path, "cpu", judge.folder, 1)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"target": [], "layout": {}, "sets": 1},
        {"target": {}, "layout": {"given": float("inf"), "state": []}, "sets": 1},
        {"target": {}, "layout": {}, "sets": float("inf")},
        {"target": {"graph": None}, "layout": None, "sets": None},
    ],
)
def test_a_damaged_answer_of_a_reference_is_told_in_words(answer):
    """Numbers that are none, lists for objects: never another exception."""
    with pytest.raises(BadInput, match="damaged"):
        reference._read(answer, {}, "cpu")
