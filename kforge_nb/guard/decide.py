"""Decide in the model itself which kernels stay, and which rest is best.

The eager rest comes first, because there every kernel can be timed at its place. The other rests
get the kernels that survived it. Each rest is measured against itself without kernels and against
the untouched model; the fastest whose output is right is recommended, or to leave the model alone.
The live modules are only read: an exception or Stop at any moment leaves them as they were.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from kforge_nb.errors import BadInput
from kforge_nb.guard.decider import Decider
from kforge_nb.guard.fidelity import LIMIT
from kforge_nb.guard.measure import OutOfMemory, Stopped, Timer, free_memory
from kforge_nb.guard.policy import ALONE, RECORDS, RESTS, Rest
from kforge_nb.guard.report import Decision, GuardReport, Whole
from kforge_nb.guard.stage import Late, Stage, Unusable
from kforge_nb.guard.stats import told

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from kforge_nb.guard.accepted import Accepted
    from kforge_nb.workload.calls import ModuleCall
    from kforge_nb.workload.capture import Workload

__all__ = ["Decision", "GuardReport", "Whole", "decide"]

ON_CUDA = ("eager", "cudagraphs", "inductor", "inductor-cudagraphs")
"""The rests in the order in which they are tried: what takes no compiler comes first."""
COMPILE_SHARE = 0.5
"""So much of the time stays for Inductor while the rests before it are measured."""
STOPPED = "Stop came before the guard was done, so nothing is installed"


def decide(
    workload: Workload,
    accepted: Sequence[Accepted],
    rest: str = "auto",
    progress: Callable[[str, float], None] | None = None,
    *,
    stop: threading.Event | None = None,
    time_limit: float = 180.0,
    inputs: Sequence[Any] = (),
    against_compile: bool = False,
    seed: int = 0,
) -> GuardReport:
    """Decide which accepted kernels stay. Blocks; meant for the run thread.

    Args:
        workload: the recorded calls; their modules are only read.
        accepted: at most one kernel for each target.
        rest: one rest, or ``auto``: every rest that the workload's device has.
        progress: called with (what is being done, share of the time used).
        stop: an event that ends measuring; nothing is installed then.
        time_limit: seconds, about: a few samples of each kind are always taken. A compile by
            Inductor that does not end in time is killed, and its rest left out.
        inputs: more inputs for the fidelity check, see ``redraw.user_call``.
        against_compile: also compare with ``torch.compile`` of the model (Inductor).
        seed: of sample order and redraws.

    Raises:
        BadInput: no calls, an unknown rest, CUDA graphs for a model that is not on a GPU, or inputs
            that are not understood.
        MissingTool: there is no C++ compiler.
    """
    start = time.monotonic()
    if not workload.calls:
        raise BadInput("the workload has no module calls; watch() it first")
    rests = _rests(rest, workload)
    timer = Timer.of(time_limit, stop)
    decider = Decider(workload.calls, accepted, timer, progress, inputs, seed)
    stages: list[Stage] = []
    stopped = False
    try:
        _run_stages(decider, rests, stages)
        if against_compile:
            _against_compile(decider, stages)
    except Stopped:
        stopped = True
        decider.notes.append(STOPPED)
    finally:
        decider.ahead.stop()
    _give_back(stages)
    report = _report(decider, stages, rest, stopped)
    if not stopped:
        report.notes.extend(_kernels_told(report, _rests("auto", workload)))
        report.notes.extend(_layout_told(stages))
    report.seconds = time.monotonic() - start
    return report


def _give_back(stages: Sequence[Stage]) -> None:
    """The memory of recordings, also of one that Stop broke off: the model needs it from now on."""
    for stage in stages:
        stage.model.backend.release()
    free_memory()


def _rests(rest: str, workload: Workload) -> list[str]:
    on_cuda = any(_on_cuda(call) for call in workload.calls)
    if rest == "auto":
        return [r for r in ON_CUDA if on_cuda or "cudagraphs" not in r]
    if rest not in RESTS:
        raise BadInput(f"there is no rest {rest!r}; choose auto or one of {', '.join(RESTS)}")
    Rest(rest)  # refuses CUDA graphs on a machine without CUDA
    if "cudagraphs" in rest and not on_cuda:
        raise BadInput(f"rest={rest!r} needs the model on a CUDA device, and no tensor of it is")
    return [rest]


def _on_cuda(call: ModuleCall) -> bool:
    tensors = (
        *call.module.parameters(),
        *call.module.buffers(),
        *tree_leaves((call.args, call.kwargs)),
    )
    return any(isinstance(t, torch.Tensor) and t.is_cuda for t in tensors)


def _run_stages(decider: Decider, rests: Sequence[str], stages: list[Stage]) -> None:
    """The eager rest first (it screens the kernels), then the others with its survivors."""
    if any("inductor" in rest for rest in rests):
        decider.reserve = COMPILE_SHARE * decider.timer.left
    eager = _eager_stage(decider, rests)
    kept = eager.kept if eager is not None else frozenset[str]()
    if eager is not None and "eager" in rests:
        stages.append(eager)
    for rest in (r for r in rests if r != "eager"):
        if stages and (RECORDS.get(rest) in decider.late or not decider.time_for(rest)):
            decider.leave_out(rest)
            continue
        stage = _other_stage(decider, rest, kept)
        if stage is not None:
            stages.append(stage)
    if not stages and eager is not None:
        stages.append(eager)
    _tell_peaks(decider, stages)


def _eager_stage(decider: Decider, rests: Sequence[str]) -> Stage | None:
    """The eager rest; None, with notes, where a GPU's memory does not suffice for it.

    Once it is timed its kernels are known, and what Inductor has to compile with them is begun
    beside what comes next: no figure of fidelity or of CUDA graphs hangs on the host's cores.
    """
    kernels = list(decider.accepted.values())
    try:
        decider.learn_pace()
        model = decider.prepare("eager", kernels)
        eager = Stage("eager", model, decider.screen(model))
        decider.weigh(eager)
        if any("inductor" in rest for rest in rests):
            decider.begin_ahead(eager.kept)
        decider.verify(eager)
    except (OutOfMemory, torch.OutOfMemoryError) as problem:
        text = f"rest=eager could not be measured: {str(problem)[:200]}"
    else:
        decider.reasons.update(eager.reasons)  # what eager dropped no other rest tries
        decider.measured.append(eager)
        return eager
    decider.notes.append(text)
    for kernel in kernels:
        decider.reasons.setdefault(kernel.target_fingerprint, text)
    free_memory()
    return None


def _other_stage(decider: Decider, rest: str, kept: frozenset[str]) -> Stage | None:
    """One more rest; None, with a note, where it failed."""
    try:
        stage = decider.other_rest(rest, kept)
    except Stopped:
        raise
    except (Unusable, OutOfMemory) as problem:
        text = f"rest={rest} was not used: {problem}"
        if isinstance(problem, Late):
            decider.late[rest] = str(problem)
    except Exception as problem:  # noqa: BLE001 (a rest that fails is one choice less)
        text = f"rest={rest} failed: {type(problem).__name__}: {problem}"
    else:
        stage.model.backend.release()  # a recording's memory is the next rest's
        decider.measured.append(stage)
        return stage
    decider.notes.append(text[:400])
    free_memory()
    return None


def _tell_peaks(decider: Decider, stages: Sequence[Stage]) -> None:
    """Peak memory of each rest beside the untouched model's, where there is a GPU."""
    told = [
        f"{stage.rest} {max(own) / 1e9:.2f} GB (untouched {stage.peaks['eager'] / 1e9:.2f}"
        f"{f', held by recordings {stage.held / 1e9:.2f}' if stage.held else ''})"
        for stage in stages
        if any(own := [peak for side, peak in stage.peaks.items() if side != "eager"])
    ]
    if told:
        decider.notes.append(f"peak of GPU memory: {', '.join(told)}")


def _against_compile(decider: Decider, stages: list[Stage]) -> None:
    """Rows of the best guarded model against Inductor alone."""
    best = _best(stages)
    if best is None or (best.rest == "inductor" and not best.kept):
        return  # Inductor without kernels is what torch.compile gives
    compiled = next((s for s in stages if s.rest == "inductor"), None)
    if compiled is None and not decider.time_for("inductor"):
        decider.notes.append(f"there is no comparison with torch.compile: {decider.over()}")
        return
    try:
        if compiled is None:
            decider.compile_ahead("inductor", frozenset())
        model = compiled.model if compiled else decider.prepare("inductor", [])
    except (Unusable, OutOfMemory) as problem:
        decider.notes.append(f"there is no comparison with torch.compile: {problem}")
        return
    best.whole.append(decider.against_model(best, model, "compile"))


def _best(stages: Sequence[Stage]) -> Stage | None:
    """The fastest stage against the untouched model among those that are right; sure ones first."""
    right = [(_gains(s), c.ratio, s) for s in stages if s.right and (c := s.against("eager"))]
    return max(right, key=lambda found: found[:2], default=(False, 0.0, None))[2]


def _gains(stage: Stage) -> bool:
    """Whether it is surely faster than the untouched model, or not slower and by kernels that are.

    Kernels that surely win over their rest do what they can; that the whole is only about as fast
    as the untouched model is then the cost of the rest.
    """
    whole, kernels = stage.against("eager"), stage.against("empty")
    if whole is None:
        return False
    return whole.low > 1.0 or (whole.ratio >= 1.0 and kernels is not None and kernels.low > 1.0)


def _report(decider: Decider, stages: list[Stage], rest: str, stopped: bool) -> GuardReport:
    best = None if stopped else _best(stages)
    chosen, why = _recommend(stages, best, rest, stopped)
    return GuardReport(
        decisions=decider.decisions(best, STOPPED if stopped else ""),
        whole=[row for stage in stages for row in stage.whole],
        fidelity=best.fidelity.to_document() if best and best.fidelity else None,
        best_rest=chosen,
        why_rest=why,
        notes=decider.notes,
    )


def _kernels_told(report: GuardReport, possible: Sequence[str]) -> list[str]:
    """How many kernels each rest keeps, and which rests nobody measured; empty without kernels."""
    by_rest = report.by_rest
    if not by_rest:
        return []
    counts = ", ".join(f"{rest} {len(kernels)}" for rest, kernels in by_rest.items())
    others = [rest for rest in possible if rest not in by_rest]
    unmeasured = f"; not measured: {', '.join(others)}" if others else ""
    return [f"kernels of {len(report.decisions)} that each rest keeps: {counts}{unmeasured}"]


def _layout_told(stages: Sequence[Stage]) -> list[str]:
    """What of the gain of each rest the layout alone brings, where that was measured."""
    return [
        f"rest={stage.rest}: laid out channels-last, without any kernel, the model runs at "
        f"{told(alone.ratio, alone.low, alone.high)} of this rest as it is; the kernels give "
        f"{told(kernels.ratio, kernels.low, kernels.high)} on top of that"
        for stage in stages
        if (alone := stage.laid_out) and (kernels := stage.against("layout"))
    ]


def _recommend(
    stages: Sequence[Stage], best: Stage | None, rest: str, stopped: bool
) -> tuple[str, str]:
    """The rest to use, or ``none``, and why."""
    if stopped:
        return "none", STOPPED
    wrong = _wrong(stages)
    if best is None:
        why = "no rest gives outputs as close to float64 as the untouched model"
        return "none", "; ".join([why, *wrong])
    found = best.against("eager")
    if found is None:
        return "none", "nothing could be compared with the untouched model"
    figure = told(found.ratio, found.low, found.high)
    if rest == "auto" and found.ratio < 1.0:
        why = f"the untouched model is fastest; the best rest, {best.rest}, gives {figure}"
        return "none", "; ".join([why, *wrong])
    if rest == "auto" and not _gains(best):
        why = (
            f"no rest is surely faster than the untouched model; the best one, {best.rest}, gives "
            f"{figure}, which may be chance"
        )
        return "none", "; ".join([why, *wrong])
    others = ", ".join(
        f"{s.rest} {told(c.ratio, c.low, c.high)}"
        for s in stages
        if s is not best and s.right and (c := s.against("eager"))
    )
    alone = "" if best.kept else " without any kernel"
    why = f"{best.rest}{alone} runs at {figure} of the untouched model"
    if not _gains(best):
        why += ", which is no sure gain; this rest was asked for"
    what = [] if best.kept else [f"that is {ALONE[best.rest]}, with nothing to apply"]
    return best.rest, "; ".join(
        [why, *what, *([f"the others: {others}"] if others else []), *wrong]
    )


def _figure(stage: Stage) -> str:
    """How fast a rest is against the untouched model, as an aside."""
    found = stage.against("eager")
    return f", {told(found.ratio, found.low, found.high)}," if found else ""


def _wrong(stages: Sequence[Stage]) -> list[str]:
    """Why rests whose output is not as good as eager's are not taken, however fast."""
    return [
        f"{s.rest}{_figure(s)} is not taken: "
        f"its output has {s.fidelity.figure}, and at most {LIMIT}× is allowed"
        for s in stages
        if s.fidelity is not None and not s.right
    ]
