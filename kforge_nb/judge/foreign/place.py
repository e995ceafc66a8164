"""Where foreign files are judged: the device's own place, with a worker that loads such files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from kforge_nb.candidates.plan import ResolvedPlan
from kforge_nb.compilers.cuda_extension import CompileFailed
from kforge_nb.compilers.inline_extension import InlineSources, build_inline
from kforge_nb.judge.bench import Bench
from kforge_nb.judge.cases import Case, secret_generator
from kforge_nb.judge.draws import redraw
from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.judge.extension.opened import files_opened
from kforge_nb.judge.extension.place import HOST_CODE, ExtensionPlace
from kforge_nb.judge.foreign import credit
from kforge_nb.judge.foreign.loading import request_key
from kforge_nb.judge.foreign.policy import scan_python
from kforge_nb.judge.foreign.reading import on_the_default_stream
from kforge_nb.judge.foreign.session import (
    OTHER_WEIGHTS,
    ForeignCandidate,
    Loading,
    wanted_builds,
)
from kforge_nb.judge.foreign.steady import SteadyInputs
from kforge_nb.judge.foreign.triton_build import compile_triton
from kforge_nb.judge.foreign.watching import OperatorLog
from kforge_nb.judge.lexing import lex
from kforge_nb.judge.place import Compiled
from kforge_nb.judge.runner_handle import Limits, RunnerFailed
from kforge_nb.judge.stages import Ended, Stages, compile_failed, end_on
from kforge_nb.settings import cache_dir
from kforge_nb.targets.inputs import CapturedInputs

if TYPE_CHECKING:
    from kforge_nb.judge.foreign.reading import ForeignFile
    from kforge_nb.judge.foreign.reference import Reference
    from kforge_nb.judge.judge import Judge
    from kforge_nb.judge.place import Place
    from kforge_nb.judge.policy import Finding
    from kforge_nb.judge.shelf import Shelf
    from kforge_nb.judge.slots import TimedInputs
    from kforge_nb.judge.timing import Session
    from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["ForeignBench", "ForeignPlace"]

MEMORY = 4 << 30
_MOST_BUILDS = 8
_ON_A_STREAM = "its calls were timed on a stream, with what the host needs between launches"


@dataclass(frozen=True, slots=True)
class ForeignKernel:
    """A foreign file as a bench's candidate."""

    file: ForeignFile
    language: str = "foreign"


class ForeignPlace(ExtensionPlace):
    """A device as the judge needs it for one foreign file (:class:`kforge_nb.judge.place.Place`).

    The file's text is copied to ``folder``, which its workers may read.
    """

    language = "foreign"
    call_seconds = 20.0  # a first call may import and tune

    def __init__(
        self, place: Place, device: str, threads: int, file: ForeignFile, reference: Reference,
        folder: Path,
    ) -> None:  # fmt: skip
        super().__init__(place, device, threads)
        self._file = file
        self._layout = reference.layout
        self._target = reference.target
        self._folder = folder
        self._weights: list[torch.Tensor] = []
        self._other: Case | None = None
        self._operators: dict[str, int] = {}
        self._loading: Loading | None = None
        self._first: ForeignCandidate | None = None
        self._streamed = ""
        if device.startswith("cuda") and on_the_default_stream(file.text):
            self._streamed = f"{_ON_A_STREAM}: it launches on the default stream"

    # ---- what is expected ------------------------------------------------------------------

    def cases(self, target: Target, known: Shelf | None = None) -> Shelf:
        """Cases whose arguments change and whose weights do not, and one where they do."""
        given = self._layout.given
        sets = target.captured.sets() if target.captured is not None else []
        self._weights = sets[0][given:] if sets else []
        first = CapturedInputs()
        for values in sets:
            first.add(values[:given])
        first.finish()
        graph = _with_weights(target.graph, self._weights, given)
        kept = replace(target, graph=graph, inputs=target.inputs[:given], captured=first)
        shelf = self._place.cases(kept, known)
        if sets and not self._operators:
            log = OperatorLog()
            with torch.no_grad(), log:
                target.graph(*sets[0])
            self._operators = dict(log.counts)
        if self._weights:
            others = redraw(self._weights, secret_generator(str(self._weights[0].device)))
            self._other = self._place.make_case(
                target.graph, OTHER_WEIGHTS, [*sets[0][:given], *others]
            )
        return shelf

    def timed(self, specs: tuple[TensorSpec, ...], seen: list[torch.Tensor]) -> TimedInputs:
        """Slots whose weights stay."""
        made = self._place.timed(specs, [*seen, *self._weights])
        if not self._weights:
            return made
        steady: Any = SteadyInputs(made, self._weights, self._layout.given)
        return steady

    def floor_seconds(self, target: Target, timed: TimedInputs) -> float:
        """By the arguments and outputs: weights may stay in a cache."""
        kept = replace(target, inputs=target.inputs[: self._layout.given])
        return self._place.floor_seconds(kept, timed)

    # ---- the candidate ---------------------------------------------------------------------

    def scan(self, candidate: Any) -> list[Finding]:
        """The text of a Python file; what C++ does is seen by its process."""
        file = candidate.file
        return scan_python(file.text, file.entry) if file.path.suffix == ".py" else []

    def build(self, candidate: Any) -> Compiled:
        """Everything that the file wants compiled; raises Ended where that fails."""
        file: ForeignFile = candidate.file
        source = self._folder / f"candidate{file.path.suffix}"
        source.write_text(file.text, encoding="utf-8")
        loading = Loading(
            source, file.kind, file.entry, asdict(self._layout), {}, triton=file.triton
        )
        log: list[str] = []
        resources: dict[str, Any] = {}
        if file.kind == "launch":
            built = self._built(_launch_sources(file), resources, log)
            loading = replace(loading, libraries={"launch": built}, launch="launch")
        elif file.builds:
            loading = self._inline(loading, resources, log)
        if file.triton and self._device.startswith("cuda"):
            loading = replace(loading, cache=str(self._folder / "triton"))
            log.append(
                compile_triton(loading, self._target, self._folder, self._threads, self.stop)
            )
        self._loading = loading
        return Compiled(source, "\n".join(log), resources)

    def _inline(self, loading: Loading, resources: dict[str, Any], log: list[str]) -> Loading:
        """Load the file again and again until nothing is missing."""
        for _ in range(_MOST_BUILDS):
            wanted = wanted_builds(loading, self._device, self._threads)
            missing = {request_key(row): row for row in wanted}
            missing = {k: row for k, row in missing.items() if k not in loading.libraries}
            if not missing:
                return loading
            libraries = dict(loading.libraries)
            for key, row in missing.items():
                libraries[key] = self._built(_inline_sources(row), resources, log)
            loading = replace(loading, libraries=libraries)
        raise Ended(Verdict.REFUSED, f"it wants more than {_MOST_BUILDS} rounds of extensions")

    def _built(self, sources: InlineSources, resources: dict[str, Any], log: list[str]) -> str:
        for text in (*sources.cpp, *sources.cuda):
            end_on(sorted(files_opened(lex(text), quoted=True), key=lambda f: f.line or 0))
        found = build_inline(
            sources, self._device, cache=cache_dir() / "extensions", stop=self.stop
        )
        if isinstance(found, CompileFailed):
            if found.stopped:
                raise Ended(Verdict.UNDECIDED, "stopped while it was built")
            raise compile_failed(found.distilled, found.timed_out)
        resources["compiler"] = found.compiler
        if found.left_out:
            resources["flags_left_out"] = list(found.left_out)[:20]
        log.append(found.log)
        return str(found.library)

    def inspect(self, _built: Compiled, _candidate: Any) -> list[Finding]:
        """Nothing: its process is confined, and its operators are counted there."""
        return []

    def start(  # type: ignore[override]
        self, target: Target, _plan: ResolvedPlan, _built: Compiled, timed: TimedInputs,
        limit: float,
    ) -> ForeignCandidate:  # fmt: skip
        """A worker that loads the file, confined."""
        if self._loading is None:
            raise RunnerFailed(Verdict.REFUSED, "it was not built")
        first = self._first is None
        made = ForeignCandidate(
            target, timed, replace(self._loading, report=first, streamed=bool(self._streamed)),
            self._threads,
            Limits(call_seconds=limit, memory=MEMORY), self._weights, self._other,
            self._no_credit,
        )  # fmt: skip
        if self._first is None:
            self._first = made
        else:
            made.said, made.remarks = self._first.said, self._first.remarks
        return made

    def _no_credit(self, used: dict[str, int]) -> str | None:
        own = bool(self._loading and self._loading.libraries) or self._file.triton
        return credit.without_credit(used, self._operators, own)

    def time(self, loaded: Any, *rest: Any) -> tuple[Session, dict[str, Any]]:
        """As ever, with what there is to say of the candidate."""
        try:
            session, figures = self._place.time(loaded, *rest)
        except RunnerFailed as failed:
            if failed.verdict is not Verdict.REFUSED or not self._device.startswith("cuda"):
                raise
            self._streamed = f"{_ON_A_STREAM}: {failed.reason}"
            loaded.restart_streamed()
            session, figures = self._place.time(loaded, *rest)
        if self._streamed:
            figures = {**figures, "timed_candidate": self._streamed}
        remarks = [*loaded.remarks]
        partly = credit.partly_torch(loaded.operators())
        more = {"remarks": remarks + ([partly] if partly else []), **figures}
        return session, {**more, "operators": loaded.operators()}


def _with_weights(gm: fx.GraphModule, weights: list[torch.Tensor], given: int) -> fx.GraphModule:
    """The graph with its inputs from ``given`` on bound to these tensors."""
    root = torch.nn.Module()
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    number = 0
    for node in gm.graph.nodes:
        if node.op == "placeholder" and number >= given:
            name = f"weight{number - given}"
            root.register_buffer(name, weights[number - given])
            new[node] = graph.get_attr(name)
        else:
            new[node] = graph.node_copy(node, new.__getitem__)
        number += node.op == "placeholder"
    return fx.GraphModule(root, graph)


def _launch_sources(file: ForeignFile) -> InlineSources:
    """A source whose ``launch`` is bound by itself, or else is bound here."""
    import re

    bound = "PYBIND11_MODULE" in file.text
    signature = re.search(
        r"((?:at|torch)\s*::\s*Tensor|(?:std\s*::\s*)?vector\s*<[^>]{0,100}>)\s{1,20}launch\s{0,20}\([^)]*\)",
        file.text,
    )
    functions = {} if bound else {"launch": "launch"}
    if not file.on_gpu:
        return InlineSources(cpp=(file.text,), functions=functions)
    declared = () if bound or signature is None else (signature[0] + ";",)
    return InlineSources(cpp=declared, cuda=(file.text,), functions=functions)


def _inline_sources(row: dict[str, Any]) -> InlineSources:
    """A request of a file, checked: it is what the file's process said."""
    texts = {
        name: tuple(str(text) for text in _listed(row.get(name)))
        for name in ("cpp_sources", "cuda_sources", "extra_cflags", "extra_cuda_cflags")
    }
    functions = row.get("functions")
    return InlineSources(
        texts["cpp_sources"],
        texts["cuda_sources"],
        {str(k): str(v) for k, v in functions.items()} if isinstance(functions, dict) else {},
        texts["extra_cflags"],
        texts["extra_cuda_cflags"],
    )


def _listed(value: Any) -> Iterable[Any]:
    return value[:64] if isinstance(value, list) else []


class ForeignBench(Bench):
    """A bench for one foreign file: the reference's target, and workers that load the file."""

    def __init__(self, judge: Judge, file: ForeignFile, reference: Reference) -> None:
        folder = judge.folder / f"foreign-{id(self):x}"
        folder.mkdir()
        self._foreign_folder = folder
        device = reference.target.device
        place: Any = ForeignPlace(
            judge.place(device), device, judge.threads, file, reference, folder
        )
        self._kernel = ForeignKernel(file)
        try:
            super().__init__(judge, place, reference.target)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def judged(
        self, against: tuple[str, ...], stop: Callable[[], bool] | None = None
    ) -> Evaluation:
        """The file through all stages, timed in fresh processes as a winner is."""
        kernel: Any = self._kernel
        found = self.confirm(kernel, against, stop)
        return replace(
            found,
            reason=f"{found.reason} ({HOST_CODE})",
            resources={**found.resources, "host_code": True},
        )

    def _serving(self, candidate: Any) -> Bench:  # noqa: ARG002 - it is made for one file
        return self

    def _admit(
        self, candidate: Any, stopped: Callable[[], bool], record: Stages
    ) -> tuple[ResolvedPlan, Compiled]:
        """What can be said of the text, and everything built that it needs."""
        place: Any = self._place
        place.stop = stopped
        with record.stage("policy"):
            end_on(place.scan(candidate))
        with place.compiling(), record.stage("compile"):
            built = place.build(candidate)
        record.details["log"] = built.log
        record.resources |= built.resources
        return ResolvedPlan([], {}), built

    def close(self) -> None:
        """Give back memory and files. Safe to call twice."""
        super().close()
        shutil.rmtree(self._foreign_folder, ignore_errors=True)
