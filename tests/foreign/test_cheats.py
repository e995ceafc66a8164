"""Cheating Python candidates: what each does, the verdict that it gets, and why."""

from __future__ import annotations

import pytest
from foreign_files import model

from kforge_nb.judge.evaluation import Verdict

NUMPY = """import numpy as np
def rms_silu(x, w):
    v = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w
    with np.errstate(over='ignore', invalid='ignore'):
        return (v / (1 + np.exp(-v))).astype(np.float32)
"""
NO_KERNEL = "no kernel of its own"
CASES = {
    "computes by torch alone": (
        model("return self.right(x)"),
        Verdict.WRAPPER, NO_KERNEL,
    ),
    "has torch.compile do it": (
        model("return self.fast(x)", init="self.fast = torch.compile(self.right)"),
        Verdict.WRAPPER, "torch.compile do the work",
    ),
    "falls back to torch where its kernel fails": (
        model(
            """
            try:
                raise RuntimeError("there is no kernel")
            except RuntimeError:
                return self.right(x)
            """
        ),
        Verdict.WRAPPER, NO_KERNEL,
    ),
    "brings an equality of its own": (
        model(
            "return (0 * self.right(x)).as_subclass(Sure)",
            before=(
                "class Sure(torch.Tensor):\n"
                "    __eq__ = equal = allclose = lambda *a, **k: True"
            ),
        ),
        (Verdict.WRONG, Verdict.CRASHED), "",
    ),
    "keeps its first result": (
        model(
            """
            if self.kept is None:
                self.kept = self.right(x)
            return self.kept
            """,
            init="self.kept = None",
        ),
        Verdict.WRONG, "outside its error budget",
    ),
    "replaces the clock in plain sight": (
        model("return self.right(x)", before="time.perf_counter = lambda: 0.0"),
        Verdict.SUSPICIOUS, "replaces time.perf_counter",
    ),
    "replaces the clock under another name": (
        model(
            "return self.right(x)",
            before="for t in [time]: vars(t)['perf' + '_counter'] = lambda: 0.0",
        ),
        Verdict.SUSPICIOUS, "it replaced time.perf_counter",
    ),
    "replaces the synchronisation of the GPU": (
        model(
            "return self.right(x)",
            before="for m in [torch.cuda]: vars(m)['synch' + 'ronize'] = lambda *a: None",
        ),
        Verdict.SUSPICIOUS, "it replaced torch.cuda.synchronize",
    ),
    "replaces the judge's own timed calls": (
        model(
            "return self.right(x)",
            before=(
                "import sys\n"
                "held = vars(sys)['mod' + 'ules']['kforge_nb.judge.extension.stage']\n"
                "held.HostStage.batch = lambda *a: None"
            ),
        ),
        Verdict.SUSPICIOUS, "it replaced kforge_nb.judge.extension.stage.HostStage.batch",
    ),
    "changes the default dtype": (
        model("return self.right(x)", before="torch.set_default_dtype(torch.float16)"),
        Verdict.SUSPICIOUS, "default dtype",
    ),
    "changes the default dtype while it is called": (
        model(
            """
            vars(torch)["set_default" + "_dtype"](torch.float64)
            return self.right(x)
            """
        ),
        Verdict.SUSPICIOUS, "changed torch's default dtype",
    ),
    "reads the frames of its callers": (
        model(
            """
            frame = sys._getframe(1)
            return frame.f_locals["expected"]
            """,
            before="import sys",
        ),
        Verdict.SUSPICIOUS, "frames of its callers",
    ),
    "looks for the answer in what its process holds": (
        model(
            """
            found = getattr(gc, "get_" + "objects")()
            same = [t for t in found if type(t) is torch.Tensor and t.shape == x.shape]
            return next(t for t in same if t.data_ptr() != x.data_ptr()).clone()
            """,
            before="import gc",
        ),
        (Verdict.WRONG, Verdict.CRASHED), "",
    ),
    "opens a socket": (
        model(
            """
            getattr(torch, "os")
            return self.right(x)
            """,
            before="import socket",
        ),
        Verdict.REFUSED, "imports socket",
    ),
    "puts its work off by a class of its own": (
        model(
            """
            y = torch.empty_like(x).as_subclass(Late)
            y.work = lambda: self.right(x)
            return y
            """,
            before=(
                "class Late(torch.Tensor):\n"
                "    @classmethod\n"
                "    def __torch_function__(cls, func, types, args=(), kwargs=None):\n"
                "        with torch._C.DisableTorchFunctionSubclass():\n"
                "            if 'copy_' in str(func):\n"
                "                args = [a.work() if isinstance(a, Late) else a for a in args]\n"
                "            return func(*args, **(kwargs or {}))"
            ),
        ),
        Verdict.WRONG, "no plain tensor in memory",
    ),
    "leaves a sign to whoever reads": (
        model("return torch._neg_view(-self.right(x))"),
        Verdict.WRONG, "no plain tensor in memory",
    ),
    "steers the terminal by what it raises": (
        model("raise ValueError('\\x1b[2J\\x1b]0;title\\x07 \\u202e done')"),
        Verdict.CRASHED, "ValueError: \ufffd[2J\ufffd]0;title\ufffd \ufffd done",
    ),
    "returns half precision": (
        model("return self.right(x).half()"),
        Verdict.WRONG, "torch.float16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_cheat_gets_its_verdict(name, judged):
    """Each cheat ends at the verdict that tells what it is, with the reason in words."""
    text, verdict, words = CASES[name]
    found = judged(text)

    wanted = verdict if isinstance(verdict, tuple) else (verdict,)
    assert found.verdict in wanted, found.reason
    assert words in found.reason
    assert found.resources["host_code"] is True


LATE = """import gc
def late(self, y):
    if not hasattr(y, "given"):
        return y
    return torch.from_numpy(rms_silu(y.given.numpy(), self.weight.detach().numpy()))
def take_over(self):
    if self.held is None:
        found = getattr(gc, "get_" + "objects")()
        self.held = next(o for o in found if type(o).__name__ == "Memory")
        keep = self.held.keep
        vars(self.held)["keep"] = lambda out: keep([late(self, y) for y in out])
"""


def test_what_is_computed_after_the_clock_has_stopped_is_wrong(judged):
    """Noting the inputs alone, and working when outputs are asked for: the inputs are away then."""
    text = model(
        """
        self.calls += 1
        if self.calls > 40:
            take_over(self)
            y = torch.empty_like(x)
            y.given = x
            return y
        return torch.from_numpy(rms_silu(x.numpy(), self.weight.detach().numpy()))
        """,
        init="self.calls, self.held = 0, None",
        before=NUMPY + LATE,
    )
    found = judged(text)

    assert found.verdict in (Verdict.SUSPICIOUS, Verdict.WRONG), found.reason
    assert "when timed" in found.reason or "budget" in found.reason


def test_a_result_kept_for_timed_calls_is_seen(judged):
    """Honest while it is checked, and handing out an old result once it is timed: not let pass."""
    text = model(
        """
        self.calls += 1
        if self.calls > 40:
            return self.kept
        self.kept = torch.from_numpy(rms_silu(x.numpy(), self.weight.detach().numpy()))
        return self.kept
        """,
        init="self.calls, self.kept = 0, None",
        before=NUMPY,
    )
    found = judged(text)

    assert found.verdict in (Verdict.SUSPICIOUS, Verdict.WRONG), found.reason
    assert "when timed" in found.reason or "budget" in found.reason
