"""Judge a kernel in a file of somebody else's: read, reference, candidate, claims, in that order.

Three processes that know nothing of each other take part: one runs the reference's code once and
hands out its graph, the baseline worker runs eager and torch.compile on that graph, and one, new
for each timing, runs the candidate. This process keeps the expected values and the clock, and never
imports any of the files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import BadInput, ContractBreach
from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.judge.foreign.claims import Claim, compared, read_claims, settings_of
from kforge_nb.judge.foreign.place import ForeignBench
from kforge_nb.judge.foreign.reading import ForeignFile, host_code, read_foreign
from kforge_nb.judge.foreign.reference import Reference, live_reference, reference_from_file
from kforge_nb.judge.foreign.result import FileEvaluation
from kforge_nb.judge.judge import Judge
from kforge_nb.settings import Settings

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Language

__all__ = ["Planned", "judge_file"]

Planned = Callable[[str, Any, Any, Any], Any]
"""Source, plan, target and language to a candidate, as ``proposers.manual`` has it."""

REFUSAL = (
    "it is host code, which can do anything that its process may; allow it with "
    "--allow-host-code (allow_host_code=True) if you trust where it comes from"
)
_KINDS = {
    "model": "ModelNew in Python, host code",
    "inline": "load_inline in Python, host code",
    "function": "a function in Python, host code",
    "launch": "a torch extension with launch(...), host code",
    "forward": "a torch extension with forward(...), host code",
    "plan": "a kernel with a launch plan",
}


def judge_file(
    path: str | PathLike[str],
    reference: str | PathLike[str] | Callable[..., Any] | None = None,
    *,
    inputs: Sequence[Any] | None = None,
    device: str | None = None,
    allow_host_code: bool = False,
    claim: str | float | None = None,
    baseline: str = "compile",
    threads: int = 0,
    planned: Planned,
    stop: Callable[[], bool] | None = None,
) -> FileEvaluation:
    """See :func:`kforge_nb.judge_file`; ``planned`` reads a candidate off a source with a plan."""
    if baseline not in ("eager", "compile"):
        raise BadInput(f"baseline is {baseline!r}; choose eager or compile")
    file = read_foreign(Path(path).expanduser())
    if host_code(file.kind) and not allow_host_code:
        refused = Evaluation(Verdict.REFUSED, REFUSAL, resources={"host_code": True})
        return FileEvaluation.of(refused, file=file.path.name, kind=_KINDS[file.kind])
    where = _device(device, file, reference)
    with tempfile.TemporaryDirectory(prefix="kforge-file-") as name:
        settings = Settings(threads=threads, allow_host_code=allow_host_code)
        with Judge(settings, Path(name)) as judge:
            known = _reference(file, reference, inputs, where, judge)
            against = ("eager",) if baseline == "eager" else ("eager", "compile")
            found = _judged(judge, file, known, against, planned, stop)
    return FileEvaluation.of(
        found,
        file=file.path.name,
        kind=_KINDS[file.kind],
        reference=_origin(known),
        claims=tuple(compared(_claims(file, claim), found.timings)),
        notes=tuple(_notes(file, known, found)),
    )


def _judged(
    judge: Judge,
    file: ForeignFile,
    reference: Reference,
    against: tuple[str, ...],
    planned: Planned,
    stop: Callable[[], bool] | None,
) -> Evaluation:
    if file.kind in ("plan", "forward"):
        bench = judge.open(reference.target)
        try:
            candidate = planned(file.text, None, bench.target, _language(file))
        except ContractBreach as breach:
            return Evaluation(Verdict.REFUSED, str(breach))
        return bench.confirm(candidate, against, stop)
    foreign = ForeignBench(judge, file, reference)
    judge.benches.add(foreign)
    return foreign.judged(against, stop)


def _language(file: ForeignFile) -> Language:
    if file.kind == "forward":
        return "cuda_extension"
    return "cuda" if file.on_gpu else "cpp"


def _device(
    device: str | None,
    file: ForeignFile,
    reference: str | PathLike[str] | Callable[..., Any] | None,
) -> str:
    """Where it is judged: as asked, or on the GPU where the file is for one."""
    import torch

    if device is not None:
        try:
            found = torch.device(device)
        except RuntimeError as error:
            raise BadInput(f"device is {device!r}: {str(error).splitlines()[0]}") from None
        if found.type == "cuda" and not torch.cuda.is_available():
            raise BadInput(f"device is {device!r}, and torch sees no CUDA device")
        return "cpu" if found.type == "cpu" else f"cuda:{found.index or 0}"
    if file.on_gpu and not torch.cuda.is_available():
        raise BadInput(
            f"{file.path.name} is for a GPU, and torch sees none here; device='cpu' tries it anyway"
        )
    live = callable(reference)
    return "cuda:0" if file.on_gpu and torch.cuda.is_available() and not live else "cpu"


def _reference(
    file: ForeignFile,
    reference: str | PathLike[str] | Callable[..., Any] | None,
    inputs: Sequence[Any] | None,
    device: str,
    judge: Judge,
) -> Reference:
    if isinstance(reference, str | PathLike):
        path = Path(reference).expanduser()
        return reference_from_file(path, device, judge.folder, judge.threads)
    if reference is not None:
        if inputs is None:
            raise BadInput("a module or function as reference needs inputs=(...), its arguments")
        return live_reference(reference, inputs)
    if not file.own_reference:
        raise BadInput(
            f"{file.path.name} has no Model and get_inputs of its own: say what it must compute "
            "with reference= (a KernelBench file, or a module or function together with inputs=)"
        )
    return reference_from_file(file.path, device, judge.folder, judge.threads, own=True)


def _origin(reference: Reference) -> str:
    words = f"{reference.words}, {reference.target.name}, on {reference.target.device}"
    return f"{words}; it stands in the judged file itself" if reference.own else words


def _claims(file: ForeignFile, claim: str | float | None) -> list[Claim]:
    if claim is None:
        return read_claims(file.text)
    if isinstance(claim, str):
        found = read_claims(claim if "x" in claim or "×" in claim else f"{claim}x faster")
        if not found:
            raise BadInput(f"claim is {claim!r}; say it as in '3.2x over eager'")
        return [Claim(c.ratio, c.against) for c in found]
    return [Claim(float(claim))]


def _notes(file: ForeignFile, reference: Reference, found: Evaluation) -> list[str]:
    notes = list(reference.layout.notes)
    if file.path.suffix == ".py":
        notes += settings_of(file.text, [spec.dtype for spec in reference.target.inputs])
    notes += found.resources.get("remarks", [])
    left_out = found.resources.get("flags_left_out")
    if left_out:
        notes.append(f"built without its flags {' '.join(left_out)}")
    how = found.resources.get("timed_candidate")
    if how:
        notes.append(str(how))
    return list(dict.fromkeys(notes))
