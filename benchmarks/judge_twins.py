"""Twins for the judge: one kernel against itself with a calibrated extra amount of work.

Both sides are the same compiled library; how many rows are computed twice is a number in the
launch plan. So an A/A pair differs in nothing but the process that it runs in, and a twin that is
3% slower does 3% more of the very same work. The pairs go through the judge as any winner does
(``Bench.confirm``: policy, correctness, fresh processes, adaptive sampling, ruling); only the
baseline's side is a second runner with the twin instead of the worker that runs eager.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.candidates.plan import resolve
from kforge_nb.judge.host import HostPlace
from kforge_nb.judge.judge import Judge
from kforge_nb.judge.timing import Plan, RunnerSide, Session, run_session
from kforge_nb.targets.inputs import CapturedInputs
from kforge_nb.targets.target import Occurrence, Target, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kforge_nb.judge.place import Compiled
    from kforge_nb.judge.session import LoadedCandidate
    from kforge_nb.judge.slots import TimedInputs

__all__ = ["KERNELS", "TWINS", "Calibrated", "TwinJudge", "candidate", "target"]

TWINS = {"same": 1.0, "slower": 1 / 1.03, "faster": 1.05}
"""How many times faster than its twin the candidate is, by kind of pair."""

_CALIBRATION_ROWS = 5  # every so many rows are computed twice to see what that costs
_CALIBRATION_TURNS = 31
_CALIBRATION_SECONDS = 10e-3
_HEAD = """
#include <cmath>
#include <cstdint>
__attribute__((noinline)) void row(const float* a, float* o, int64_t c) {
"""
_LOOP = """
}
extern "C" void kernel(const float* x, float* y, int64_t rows, int64_t c, int64_t extra,
                       int32_t nthreads) {
#pragma omp parallel for num_threads(nthreads) schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    row(x + r * c, y + r * c, c);
    const int64_t again = (r + 1) * extra / rows - r * extra / rows;
    for (int64_t k = 0; k < again; ++k) row(x + r * c, y + r * c, c);
  }
}
"""
_GELU = """
  for (int64_t i = 0; i < c; ++i) {
    const float t = 0.7978845608f * (a[i] + 0.044715f * a[i] * a[i] * a[i]);
    o[i] = 0.5f * a[i] * (1.0f + std::tanh(t));
  }"""
_RMS_NORM = """
  float q = 0.0f;
#pragma omp simd reduction(+ : q)
  for (int64_t i = 0; i < c; ++i) q += a[i] * a[i];
  const float k = 1.0f / std::sqrt(q / c + 1e-6f);
  for (int64_t i = 0; i < c; ++i) o[i] = a[i] * k;"""


def _gelu(x: Any) -> Any:
    return torch.nn.functional.gelu(x, approximate="tanh")


def _rms_norm(x: Any) -> Any:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


@dataclass(frozen=True, slots=True)
class TwinKernel:
    """A kernel that twins are made of: its row, the target it computes, its sizes."""

    body: str
    function: Callable[..., Any]
    shape: tuple[int, int]
    family: str

    @property
    def source(self) -> str:
        """The whole C++ source."""
        return _HEAD + self.body + _LOOP


KERNELS = {
    "gelu 64x768": TwinKernel(_GELU, _gelu, (64, 768), "activation"),
    "rms_norm 2048x768": TwinKernel(_RMS_NORM, _rms_norm, (2048, 768), "rms_norm"),
}
"""One bound by arithmetic, one by memory."""


def candidate(kernel: TwinKernel, extra: int) -> Candidate:
    """The kernel with so many rows computed twice."""
    plan = LaunchPlan(
        (Kernel("kernel", ("in0", "out0", "i64:ROWS", "i64:C", "i64:EXTRA", "i32:nthreads")),),
        {"C": "in0.shape[1]", "ROWS": "in0.shape[0]", "EXTRA": str(extra)},
    )
    return Candidate("cpp", kernel.source, plan, f"{kernel.family}+{extra}")


def target(kernel: TwinKernel, device: str = "cpu") -> Target:
    """What the kernel computes, with one captured input on a device."""
    graph = fx.Graph()
    proxy = fx.Proxy(graph.placeholder("in0"), fx.proxy.GraphAppendingTracer(graph))
    graph.output((kernel.function(proxy).node,))
    values = torch.randn(kernel.shape, device=device)
    captured = CapturedInputs()
    captured.add([values])
    captured.finish()
    spec = TensorSpec.of(values)
    return Target(
        fingerprint=f"twin-{kernel.family}",
        name=kernel.family,
        family=kernel.family,
        granularity="region",
        graph=fx.GraphModule(torch.nn.Module(), graph),
        inputs=(spec,),
        outputs=(spec,),
        occurrences=[Occurrence(0, "twin", ("row",))],
        captured=captured,
    )


@dataclass(slots=True)
class Calibrated:
    """Seconds of a call without extra rows, and what one extra row adds, as a share of it."""

    seconds: float
    share: float

    def more(self, ratio: float) -> int:
        """Rows to compute twice so that a call takes ``ratio`` times as long."""
        return round((ratio - 1.0) / self.share)


class TwinPlace(HostPlace):
    """The CPU, where the baseline of a timing is a twin in a runner of its own."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.twin: tuple[Target, Candidate] | None = None
        self.sessions: list[Session] = []

    @contextmanager
    def _running(
        self, of: Target, kernel: Candidate, built: Compiled, timed: TimedInputs, limit: float
    ) -> Iterator[LoadedCandidate]:
        plan = resolve(kernel.plan, of.inputs, of.outputs)
        with self.start(of, plan, built, timed, limit) as loaded:
            loaded.load()
            yield loaded

    def calibrate(self, of: Target, kernel: TwinKernel, timed: TimedInputs) -> Calibrated:
        """What extra rows cost, found in one process by turns, so that nothing else differs."""
        rows = kernel.shape[0]
        plain, longer = candidate(kernel, 0), candidate(kernel, rows // _CALIBRATION_ROWS)
        shares, seconds = [], []
        with self._running(of, plain, self.build(plain), timed, 20.0) as loaded:
            loaded.runner.batch(0, 1)
            one = loaded.runner.batch(0, 3)[0] / 3
            calls = max(1, min(timed.slots, round(_CALIBRATION_SECONDS / one)))
            for turn in range(_CALIBRATION_TURNS):
                took = {}
                for title in (0, 1) if turn % 2 else (1, 0):
                    loaded.bind(resolve((plain, longer)[title].plan, of.inputs, of.outputs))
                    loaded.runner.batch(turn, 1)
                    took[title] = loaded.runner.batch(turn, calls)[0]
                shares.append((took[1] / took[0] - 1.0) / (rows // _CALIBRATION_ROWS))
                seconds.append(took[0] / calls)
        return Calibrated(statistics.median(seconds), statistics.median(shares))

    def time(
        self, loaded: LoadedCandidate, key: str, baseline: str, timed: TimedInputs, plan: Plan,
        stop: Callable[[], bool], limit: float,
    ) -> tuple[Session, dict[str, Any]]:  # fmt: skip
        """As ever, but against the twin."""
        if self.twin is None:
            return super().time(loaded, key, baseline, timed, plan, stop, limit)
        of, kernel = self.twin
        with self._running(of, kernel, self.build(kernel), timed, limit) as other:
            sides = [RunnerSide(side.runner, 20.0) for side in (loaded, other)]
            session = run_session(sides[0], sides[1], timed, plan, loaded.fetch, stop)
        self.sessions.append(session)
        return session, {"calls_in_a_batch": session.calls}


class TwinJudge(Judge):
    """A judge whose CPU is a :class:`TwinPlace`."""

    def _make_place(self, device: str) -> TwinPlace:  # noqa: ARG002 - there is one
        return TwinPlace(self.folder, self.threads)

    @property
    def cpu(self) -> TwinPlace:
        """The one place."""
        place = self.place("cpu")
        assert isinstance(place, TwinPlace)
        return place
