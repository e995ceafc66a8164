"""The steps of a decision: at its place, in the whole model, against float64.

A kernel is timed where it stands, in turn with its original; the model with the winners is measured
against the same rest without kernels and with single ones left out; its output is compared with
float64. Whatever fails a step is dropped with the reason, and the next step goes on without it.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from kforge_nb.guard import launch, measure
from kforge_nb.guard.blame import give_up
from kforge_nb.guard.fidelity import check_fidelity
from kforge_nb.guard.laid_out import LAYOUT, wants_layout
from kforge_nb.guard.measure import Model, OutOfMemory, Timer, interleave, one_sample
from kforge_nb.guard.preparing import Preparing
from kforge_nb.guard.report import Decision, InRest, Whole, isolated_comparison
from kforge_nb.guard.sides import (
    absence,
    at_place,
    idle,
    name_of,
    peak_of,
    reserved,
    sample_of,
    settled,
)
from kforge_nb.guard.stage import Late, Stage, Unusable
from kforge_nb.guard.stats import compare, looked, told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kforge_nb.guard.accepted import Accepted
    from kforge_nb.guard.fidelity import Fidelity
    from kforge_nb.judge.evaluation import Comparison
    from kforge_nb.workload.calls import ModuleCall

__all__ = ["Decider", "Stage", "Unusable"]

PLACE_ROUNDS = 60
WHOLE_ROUNDS = 200
FEWEST_ROUNDS = 8
LEFT_OUT = 6
"""At most so many kernels are tried left out, those with the least gain at their place."""
ALL_INPUTS = 8
"""So many inputs a check of fidelity takes at least, unless it asks about single kernels."""
_NO_REST = "no rest with it is right"
NOISY = 1.1
"""An interval wider than this (high over low) says nothing about the whole model."""


class Decider(Preparing):
    """State of one decision over a workload."""

    def __init__(
        self,
        calls: Sequence[ModuleCall],
        accepted: Sequence[Accepted],
        timer: Timer,
        progress: Callable[[str, float], None] | None,
        inputs: Sequence[Any],
        seed: int,
    ) -> None:
        super().__init__(calls, accepted, timer, progress)
        self._turned = wants_layout(accepted)
        self.inputs = inputs
        self.seed = seed
        self.rng = random.Random(seed)  # noqa: S311 (order of samples, no secret)
        self.in_model: dict[str, Comparison] = {}
        self.reasons: dict[str, str] = {}
        self.measured: list[Stage] = []
        """What each rest found, in the order in which they were tried."""

    # -- at their places --------------------------------------------------------------------

    def screen(self, model: Model) -> frozenset[str]:
        """Time each target at its places; the fingerprints whose kernel is faster there."""
        backend = model.backend
        for fingerprint in self.accepted:
            handle = backend.handles.get(fingerprint)
            if handle is None:
                self.reasons[fingerprint] = f"cannot be launched: {backend.refused[fingerprint]}"
            elif fingerprint not in backend.replaced:
                self.reasons[fingerprint] = absence(model)
            elif launch.kernel(handle).note:
                self.reasons[fingerprint] = f"switched off: {launch.kernel(handle).note}"
        present = frozenset(f for f in backend.replaced if f not in self.reasons)
        if not present:
            return present
        self.say(f"timing {len(present)} targets at their places in the model")
        counts = {f: launch.counters(backend.handles[f]) for f in present}
        for kernels in (True, False):
            model.run_timed(kernels)
        samples = interleave(
            {"kernel": lambda: model.run_timed(True), "original": lambda: model.run_timed(False)},
            self.part(0.2),
            rounds=PLACE_ROUNDS,
            rng=self.rng,
            enough=lambda s: all(settled(at_place(s, f)) for f in present),
        )
        for fingerprint in present:
            self._place(fingerprint, at_place(samples, fingerprint))
            if why := idle(backend.handles[fingerprint], counts[fingerprint]):
                self.reasons[fingerprint] = why
        return frozenset(f for f in present if f not in self.reasons)

    def _place(self, fingerprint: str, found: Comparison) -> None:
        self.in_model[fingerprint] = found
        interval = told(found.ratio, found.low, found.high)
        if found.high < 1:
            self.reasons[fingerprint] = f"slower than the original at its place: {interval}"
        elif found.low <= 1:
            self.reasons[fingerprint] = f"no sure gain at its place in the model: {interval}"

    # -- the whole model --------------------------------------------------------------------

    def weigh(self, stage: Stage) -> None:
        """The whole model with the winners against none, leaving single ones out in turn."""
        while True:
            if late := self.room_for(stage):
                raise Late(late)
            samples = self._whole_samples(stage)
            stage.whole = self._rows(stage, samples)
            laid = samples.get("layout")
            stage.laid_out = looked("empty", laid, samples["empty"]) if laid else None
            empty = stage.against("empty")
            if empty is None:
                return
            worse = self._left_out(stage.kept, samples)
            if worse is None and self._loses(stage, empty):
                worse = stage.kept if "inductor" in stage.rest else self._least(stage.kept)
            if worse is None:
                return
            for fingerprint in worse:
                stage.reasons.setdefault(fingerprint, self._no_help(fingerprint, samples, empty))
            stage.kept -= worse
            self.say("measuring again without what did not help")

    def _loses(self, stage: Stage, empty: Comparison) -> bool:
        """Whether the whole model contradicts kernels that won at their places.

        Its noise is often larger than what the kernels save. Under an eager rest a ratio below 1
        therefore counts only where the interval leaves out 1, or what the places promise; under a
        rest that fuses, the places promise nothing.
        """
        if empty.high < 1.0:
            return True
        if empty.ratio >= 1.0:
            return False
        if stage.rest == "eager":
            return empty.high < self._promised(stage.kept, empty)
        if empty.high <= NOISY * empty.low:
            return True
        note = (
            "the machine was too busy to see the kernels in the whole model: "
            f"{told(empty.ratio, empty.low, empty.high)}; what they win at their places decided"
        )
        self.notes.extend([] if note in self.notes else [note])
        return False

    def _promised(self, kept: frozenset[str], empty: Comparison) -> float:
        """The whole-model ratio if every kernel saves in the model what it saves at its places."""
        saved = sum(self._gain(fingerprint) for fingerprint in kept)
        return empty.against_us / max(empty.against_us - saved, 1e-9)

    def _whole_samples(self, stage: Stage) -> dict[str, list[float]]:
        model, kept = stage.model, stage.kept
        self.say(f"measuring the whole model, rest={model.backend.rest}, {len(kept)} kernels")
        sides: dict[str, Callable[[], float]] = {
            "empty": sample_of(model, frozenset()),
            "eager": lambda: 1e6 * measure.raw(model.calls, self.pace),
        }
        name = name_of(kept)
        if kept:
            sides[name] = sample_of(model, kept)
            if self._turned and "inductor" not in stage.rest:  # which lays out by itself
                sides["layout"] = sample_of(model, frozenset({LAYOUT}))
        others = [side for side in ("empty", "eager") if side != name]
        if model.backend.rest == "eager" and len(kept) > 1:
            for fingerprint in sorted(kept, key=self._gain)[: self._affordable()]:
                less = kept - {fingerprint}
                sides[f"without {fingerprint}"] = sample_of(model, less)
        while True:
            try:
                stage.peaks = {side: peak_of(side, sample) for side, sample in sides.items()}
                return interleave(
                    sides,
                    self.part(0.25),
                    rounds=WHOLE_ROUNDS,
                    least=FEWEST_ROUNDS,
                    rng=self.rng,
                    enough=lambda s: all(settled(looked(o, s[name], s[o]), 0.03) for o in others),
                )
            except OutOfMemory as problem:
                if problem.side in (name, *others):
                    raise
                self.notes.append(f"rest={stage.rest}: {problem}; that side was left out")
                del sides[problem.side]
            measure.free_memory()

    def _affordable(self) -> int:
        """How many kernels can be tried left out in the time of this step."""
        runs = 0.25 * (self.timer.left - self.reserve) / max(self.run_seconds, 1e-6) / FEWEST_ROUNDS
        return max(0, min(LEFT_OUT, int(runs) - 3))

    def _gain(self, fingerprint: str) -> float:
        found = self.in_model.get(fingerprint)
        return found.against_us - found.ours_us if found else 0.0

    def _rows(self, stage: Stage, samples: Mapping[str, list[float]]) -> list[Whole]:
        name = name_of(stage.kept)
        return [
            Whole(name, stage.rest, side, looked(side, samples[name], samples[side]))
            for side in ("empty", "eager", "layout")
            if side != name and side in samples
        ]

    def _left_out(
        self, kept: frozenset[str], samples: Mapping[str, list[float]]
    ) -> frozenset[str] | None:
        """Kernels without which the model is surely faster."""
        found = {
            f
            for f in kept
            if f"without {f}" in samples
            and looked("without it", samples["guarded"], samples[f"without {f}"]).high < 1
        }
        return frozenset(found) or None

    def _least(self, kept: frozenset[str]) -> frozenset[str]:
        """What to drop when the whole is not faster: the half that gains least at its places.

        Under Inductor all go: what they gain at their places in eager says nothing there, and each
        set of kernels is one more compile, here, where nothing can break it off.
        """
        order = sorted(kept, key=self._gain)
        return frozenset(order[: (len(order) + 1) // 2])

    def _no_help(
        self, fingerprint: str, samples: Mapping[str, list[float]], empty: Comparison
    ) -> str:
        side = f"without {fingerprint}"
        if side in samples:
            found = looked("without it", samples["guarded"], samples[side])
            if found.high < 1:
                gain = told(1 / found.ratio, 1 / found.high, 1 / found.low)
                return f"the whole model is faster without it: {gain}"
        return (
            "no gain in the whole model: with all kernels "
            f"{told(empty.ratio, empty.low, empty.high)} of the same rest without"
        )

    # -- other rests ------------------------------------------------------------------------

    def other_rest(self, rest: str, kept: frozenset[str]) -> Stage:
        """A rest that fuses: all survivors, or those that beat the compiler alone, or none."""
        strong = self._strong(kept)
        self.compile_ahead(rest, kept, strong)
        before = reserved()
        model = self.prepare(rest, [self.accepted[f] for f in sorted(kept)], strong)
        held = reserved() - before
        sets = {"all": kept.intersection(model.backend.replaced)}
        if strong & sets["all"] != sets["all"]:
            sets["strong"] = strong & sets["all"]
        sides = {name: sample_of(model, chosen) for name, chosen in sets.items()}
        sides["empty"] = sample_of(model, frozenset())
        self.say(f"choosing kernels for rest={rest}")
        for name, side in sides.items():
            one_sample(name, side)
        samples = interleave(sides, self.part(0.2), rounds=20, least=FEWEST_ROUNDS, rng=self.rng)
        found = {n: compare("empty", samples[n], samples["empty"]) for n in sets}
        best = max(found, key=lambda n: found[n].ratio)
        most = found[best]
        chosen = sets[best] if most.ratio >= 1.0 else frozenset[str]()
        stage = Stage(rest, model, chosen, held=held if model.backend.compile_rest.replays else 0)
        for fingerprint in kept - chosen:
            stage.reasons[fingerprint] = (
                f"with rest={rest} the model is not faster with it "
                f"({told(most.ratio, most.low, most.high)} of the same rest without kernels)"
            )
        self.weigh(stage)
        self.verify(stage)
        return stage

    def against_model(self, stage: Stage, other: Model, name: str) -> Whole:
        """The model of a stage against another model without kernels."""
        self.say(f"measuring rest={stage.rest} against {name}")
        ours = name_of(stage.kept)
        sides: dict[str, Callable[[], float]] = {
            ours: sample_of(stage.model, stage.kept),
            name: sample_of(other, frozenset()),
        }
        for side, sample in sides.items():
            one_sample(side, sample)
        samples = interleave(
            sides,
            self.timer.part(0.5),
            rounds=WHOLE_ROUNDS,
            least=FEWEST_ROUNDS,
            rng=self.rng,
        )
        return Whole(ours, stage.rest, name, compare(name, samples[ours], samples[name]))

    # -- fidelity ---------------------------------------------------------------------------

    def verify(self, stage: Stage) -> None:
        """Check fidelity; kernels that spoil it are dropped, and what is left is weighed again."""
        stage.fidelity = None
        if not stage.kept and stage.rest == "eager":
            return
        if late := self.room_for(stage):
            raise Late(late)
        stage.fidelity = self._fidelity(stage, stage.kept)
        if stage.fidelity.good or not stage.kept:
            return
        alone = None if stage.rest == "eager" else self._fidelity(stage, frozenset())
        if alone is not None and not alone.good:
            stage.fidelity = alone  # the rest itself is at fault, whatever its kernels do
            return
        if "inductor" in stage.rest:  # each set of kernels is one more compile, here
            why = f"the output of this rest has {stage.fidelity.figure} with its kernels"
            stage.reasons.update(dict.fromkeys(stage.kept, why))
            stage.kept, stage.fidelity = frozenset(), alone
            self.weigh(stage)
            return
        left = give_up(
            stage.kept,
            stage.fidelity,
            lambda kept, least: self._fidelity(stage, kept, least),
            gain=self._gain,
            hurry=lambda: self.timer.left <= 0,
        )
        stage.kept, stage.fidelity = left.kept, left.fidelity or alone
        stage.reasons.update(left.reasons)
        self.ahead.stop()  # its kernels are others now, and what follows is timed
        self.weigh(stage)
        if stage.kept != left.kept:
            self.verify(stage)

    def _fidelity(self, stage: Stage, kept: frozenset[str], least: int = ALL_INPUTS) -> Fidelity:
        start = time.monotonic()
        found = check_fidelity(
            stage.model,
            kept,
            self.for_fidelity(stage.rest),
            inputs=self.inputs,
            seed=self.seed,
            least=least,
            progress=self.say,
        )
        if least >= ALL_INPUTS:
            self.fidelity_seconds = time.monotonic() - start
        return found

    # -- the end ----------------------------------------------------------------------------

    def decisions(self, stage: Stage | None, unmeasured: str = "") -> list[Decision]:
        """One decision for each kernel; ``unmeasured`` is the reason where nothing was found."""
        kept = stage.kept if stage else frozenset()
        fidelity = stage.fidelity.to_document() if stage and stage.fidelity else None
        found = []
        for fingerprint, kernel in self.accepted.items():
            installed = fingerprint in kept
            here = self.in_model.get(fingerprint)
            rests = () if unmeasured else tuple(self._in(s, fingerprint) for s in self.measured)
            if installed:
                reason = f"{here.ratio:.2f}× at its place in the model" if here else "it helps"
            else:
                reason = self._why_not(stage, fingerprint) or unmeasured or _NO_REST
            found.append(
                Decision(
                    fingerprint,
                    installed,
                    reason,
                    isolated_comparison(kernel),
                    here,
                    fidelity if installed else None,
                    rests,
                )
            )
        return found

    def _why_not(self, stage: Stage | None, fingerprint: str) -> str:
        own = stage.reasons.get(fingerprint, "") if stage else ""
        return own or self.reasons.get(fingerprint, "")

    def _in(self, stage: Stage, fingerprint: str) -> InRest:
        """What one rest decided about one kernel; a rest that is not right installs none."""
        if fingerprint not in stage.kept:
            return InRest(stage.rest, False, self._why_not(stage, fingerprint) or _NO_REST)
        if not stage.right:
            figure = stage.fidelity.figure if stage.fidelity else "no figure"
            return InRest(stage.rest, False, f"the output of this rest has {figure}")
        found = stage.against("empty")
        if found is None:
            return InRest(stage.rest, True, "it helps")
        gain = told(found.ratio, found.low, found.high)
        return InRest(stage.rest, True, f"with its kernels the model runs at {gain} of without")
