"""Honest files in each known form, judged on the CPU; the two that compile share a build."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from foreign_files import INLINE, KERNEL, PLAN, REFERENCE, model

import kforge_nb
from kforge_nb.errors import BadInput
from kforge_nb.judge import bench
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.timing import Plan

NUMPY = """
import numpy as np


def rms_silu(x, w):
    with np.errstate(all="ignore"):
        v = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5)) * w
        return (v / (1 + np.exp(-v))).astype(np.float32)
"""
SILU = """
import torch
import numpy as np


def launch(x):
    with np.errstate(all="ignore"):
        a = x.numpy()
        return torch.from_numpy((a / (1 + np.exp(-a))).astype(np.float32))
"""


def test_a_load_inline_file_is_built_and_timed(judged):
    """ModelNew with a load_inline string: compiled outside of its process, right, timed."""
    found = judged(INLINE)

    assert found.correct, (found.reason, found.log)
    assert found.against("eager").n > 0
    assert found.resources["compiler"]
    assert found.resources["operators"] == {}
    assert found.resources["remarks"] == []
    assert "host code" in found.reason


def test_a_source_with_launch_takes_arguments_and_weights(judged):
    """launch(x, weight) gets the reference's argument and its weight, by their number."""
    found = judged(KERNEL, "candidate.cpp")

    assert found.correct, (found.reason, found.log)
    assert found.against("eager").n > 0


def test_a_source_that_does_not_compile_says_where(judged):
    """What stopped the compiler is the reason, without folders."""
    text = "// torch/extension.h\n#include <nothing/like_this.h>\ntorch::Tensor launch(int x);\n"
    found = judged(text, "candidate.cpp")

    assert found.verdict is Verdict.COMPILE_FAILED
    assert "nothing/like_this.h" in found.reason
    assert "/tmp/" not in found.log


def test_numpy_is_work_of_ones_own(judged):
    """A ModelNew that computes without torch earns its verdict by the clock."""
    text = model(
        "return torch.from_numpy(rms_silu(x.numpy(), self.weight.detach().numpy()))", NUMPY
    )
    found = judged(text)

    assert found.correct, found.reason
    assert found.resources["operators"] == {}


def test_copies_of_weights_are_told_and_not_punished(judged):
    """A constructor may keep what it makes of its weights; the answer says that it does."""
    text = model(
        "return torch.from_numpy(rms_silu(x.numpy(), self.kept))",
        NUMPY,
        init="self.kept = self.weight.detach().numpy().copy()",
    )
    found = judged(text)

    assert found.correct, found.reason
    assert any("keeps copies" in remark for remark in found.resources["remarks"])


def test_a_call_that_does_not_fit_is_refused_in_words(judged):
    """A function with another number of arguments is told what it is called with."""
    found = judged("def launch(a, b, c, d):\n    return a\n")

    assert found.verdict is Verdict.REFUSED
    assert "takes 4 arguments" in found.reason


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(bench, "CONFIRM", Plan(seconds=0.3, narrow=0.5, pairs=10, probes=2))
    monkeypatch.setattr(bench, "MOST_PROCESSES", 1)


def test_a_plan_file_needs_no_opt_in(short, tmp_path):
    """The form of kforge itself is judged without host code, against a reference in a file."""
    (tmp_path / "kernel.cpp").write_text(PLAN)
    (tmp_path / "reference.py").write_text(REFERENCE)
    found = kforge_nb.judge_file(
        tmp_path / "kernel.cpp", tmp_path / "reference.py", baseline="eager", threads=1
    )

    assert found.correct, (found.reason, found.log)
    assert not found.host_code
    assert "reference.py" in found.reference
    assert found.against("eager").n > 0


def test_a_function_is_judged_against_one_of_yours(short, tmp_path):
    """A live reference with its inputs will do, and the file's claim stands beside the figure."""
    (tmp_path / "silu.py").write_text('"""40x over eager."""\n' + SILU)
    found = kforge_nb.judge_file(
        tmp_path / "silu.py",
        torch.nn.functional.silu,
        inputs=(torch.randn(64, 256),),
        allow_host_code=True,
        baseline="eager",
        threads=1,
    )

    assert found.correct, found.reason
    assert found.host_code
    assert "claims 40 times eager's speed" in found.claims[0]
    assert "not confirmed" in found.claims[0]
    assert "silu" in found._repr_html_()


def test_host_code_needs_the_opt_in(tmp_path, monkeypatch):
    """Without it nothing is started, and the reason names the option."""
    monkeypatch.setattr("kforge_nb.judge.judge.Judge.__init__", lambda *_: pytest.fail("started"))
    (tmp_path / "silu.py").write_text(SILU)
    found = kforge_nb.judge_file(tmp_path / "silu.py", torch.nn.functional.silu, inputs=())

    assert found.verdict is Verdict.REFUSED
    assert "--allow-host-code" in found.reason


MISTAKES = {
    "no reference": ({}, "say what it must compute"),
    "no inputs": ({"reference": torch.relu}, "needs inputs="),
    "another baseline": ({"baseline": "fast"}, "choose eager or compile"),
    "no device": ({"device": "tpu"}, "device is 'tpu'"),
    "a random reference": (
        {"reference": lambda x: torch.rand_like(x), "inputs": (torch.zeros(4),)},
        "draws random numbers",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_judged_is_said(name, tmp_path):
    """A call that makes no sense ends with what to do instead."""
    options, words = MISTAKES[name]
    (tmp_path / "silu.py").write_text(SILU)

    with pytest.raises(BadInput, match=words):
        kforge_nb.judge_file(tmp_path / "silu.py", allow_host_code=True, **options)


def test_a_reference_that_misbehaves_is_told(tmp_path, judge):
    """A reference that opens a socket or raises ends its own process, in words."""
    from kforge_nb.judge.foreign.reference import reference_from_file

    path = tmp_path / "bad.py"
    path.write_text(REFERENCE.replace("return [torch.randn", "return [torch.nothing"))
    with pytest.raises(BadInput, match="raised AttributeError"):
        reference_from_file(path, "cpu", judge.folder, 1)


def test_the_magic_hands_everything_on(monkeypatch, tmp_path):
    """%kforge judge FILE takes a reference by file or by name, and binds its result."""
    from IPython.core.interactiveshell import InteractiveShell

    from kforge_nb import api, magics

    seen = {}
    monkeypatch.setattr(api, "judge_file", lambda path, **more: seen.update(more, path=path) or 7)
    shell = InteractiveShell()
    magics.load(shell)
    shell.user_ns |= {"net": torch.relu, "x": torch.zeros(2)}
    shell.run_line_magic(
        "kforge", "judge silu.py --reference net --inputs x --allow-host-code --as found"
    )
    assert seen["path"] == "silu.py"
    assert seen["reference"] is torch.relu
    assert seen["inputs"][0] is shell.user_ns["x"]
    assert seen["allow_host_code"] is True
    assert shell.user_ns["found"] == 7
    shell.user_ns["T"] = torch
    for written, meant in (("T.relu", torch.relu), ("T.py", "T.py"), ("ref.py", "ref.py")):
        shell.run_line_magic("kforge", f"judge silu.py --reference {written}")
        assert seen["reference"] is meant or seen["reference"] == meant
    magics.unload(shell)


def test_nothing_is_left_of_a_judgement(judged):
    """No process of a worker and no memory file of a candidate outlives its judgement."""
    held = Path("/proc/self/fd")
    judged(model("return x * 2"))  # what a first judgement opens for good
    before = sum(1 for _ in held.iterdir())
    judged(model("return x * float('nan')"))

    assert sum(1 for _ in held.iterdir()) == before
