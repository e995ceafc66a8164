"""The Python API: everything that the magics do, without IPython."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from kforge_nb.errors import BadInput
from kforge_nb.options import OptimizeOptions, option_specs

if TYPE_CHECKING:
    import pandas as pd

    from kforge_nb.doctor import Doctor
    from kforge_nb.judge.foreign.result import FileEvaluation
    from kforge_nb.profile.table import Profile
    from kforge_nb.run.dry import DryRun
    from kforge_nb.run.handle import Run

__all__ = [
    "RunOptions",
    "doctor",
    "find_run",
    "free_name",
    "judge_file",
    "load_run",
    "optimize",
    "profile",
    "resume",
    "runs",
]


def profile(
    fn: Callable[[], Any], *, granularity: str | None = None, layout: str | None = None
) -> Profile:
    """Runs ``fn`` and says which parts of its modules may be made faster, and by how much.

    Args:
        fn: Calls one or several ``torch.nn.Module`` objects with real inputs, best under
            ``torch.inference_mode()``, since kernels are used only where no gradient is needed.
        granularity: ``op``, ``module`` or ``region`` (default).
        layout: ``keep``, ``channels_last`` or ``auto`` (default): whether graphs with convolutions
            are laid out channels-last, see :func:`optimize`.

    Raises:
        BadInput: ``fn`` calls no module, a module lives on ``meta``, or the memory of the GPU that
            it lives on does not suffice for measuring.
    """
    from kforge_nb.profile.profile import profile as run_profile
    from kforge_nb.run.devices import tool_notes
    from kforge_nb.workload.devices import main_device

    options = OptimizeOptions.of({"granularity": granularity, "layout": layout})
    found = run_profile(_callable(fn), granularity=options.granularity, layout=options.layout)
    for text in tool_notes(main_device(found.workload)):
        found.workload.note(text)
    return found


class RunOptions(TypedDict, total=False):
    """The options of :func:`optimize`; ``kforge_nb.options`` explains each of them."""

    name: str | None
    granularity: str | None
    layout: str | None
    target: int | str | Sequence[int | str] | None
    ops: str | Sequence[str] | None
    top: int | None
    proposer: str | None
    model: str | None
    temperature: float | None
    max_tokens: int | None
    reasoning_effort: str | None
    price_in: float | None
    price_out: float | None
    parallel: int | None
    recording: str | PathLike[str] | None
    backend: str | None
    allow_host_code: bool | None
    budget: int | None
    max_cost: float | None
    time_limit: float | None
    patience: int | None
    baseline: str | None
    rest: str | None
    guard_time: float | None
    seed: int | None
    engine: str | None
    store: str | PathLike[str] | None
    wait: bool | None
    show_prompt: bool | None


@overload
def optimize(
    fn: Callable[[], Any], *, dry_run: Literal[False] | None = None, **options: Unpack[RunOptions]
) -> Run: ...
@overload
def optimize(
    fn: Callable[[], Any], *, dry_run: Literal[True], **options: Unpack[RunOptions]
) -> DryRun: ...
@overload
def optimize(
    fn: Callable[[], Any], *, dry_run: bool | None, **options: Unpack[RunOptions]
) -> Run | DryRun: ...
def optimize(fn: Callable[[], Any], *, dry_run: bool | None = None, **options: Any) -> Run | DryRun:
    """Searches for kernels that make the modules which ``fn`` calls faster.

    ``fn`` calls one or several ``torch.nn.Module`` objects with real inputs, without gradients
    (under ``torch.inference_mode()``): kernels are used only where none is needed. It runs a few
    times now, to see which modules it calls and where their time goes; the search then goes on in
    the background and the run is returned (``run.show()`` displays it). ``fn`` is called again when
    the finished kernels are measured in the model. With ``dry_run`` nothing is searched and the
    plan of what would be done is returned.

    An option left out (None) has its default, which ``%config KForge`` can change.

    Raises:
        BadInput: An option is wrong or unknown, ``fn`` calls no module or keeps gradients
            everywhere, its model is split over several GPUs, or a target asked for is not there.
        StoreError: The store is locked, damaged or cannot be written.
        MissingTool: There is no C++ compiler; for a model on a GPU also: no NVRTC that knows it.

    Options:
    """
    from kforge_nb.run.begin import begin

    return begin(_callable(fn), OptimizeOptions.of({**options, "dry_run": dry_run}))


def resume(
    run: str | Run | None = None,
    fn: Callable[[], Any] | None = None,
    *,
    store: str | PathLike[str] | None = None,
) -> Run:
    """Goes on with a paused, stopped, failed or interrupted run; nothing judged is judged again.

    A run that is done is taken again only after a kernel from a cell has become a winner of it.

    Args:
        run: Name or id of the run, or the run; left out, the one that :func:`find_run` takes.
        fn: The workload, for the guard's measurements in the model. Without it (and when it is not
            in this process any more) the run ends as interrupted once its search is over, saying
            that it waits for the workload.
        store: Folder of the store.

    Raises:
        BadInput: There is no such run, it is done, or ``fn`` does not contain the run's targets
            or keeps gradients everywhere.
        StoreError: Another process works on the run.
    """
    from kforge_nb.run.begin import go_on

    found = find_run(run, store=store)
    return go_on(found, None if fn is None else _callable(fn))


def load_run(name_or_path: str | PathLike[str], *, store: str | PathLike[str] | None = None) -> Run:
    """A run by its name or id in the store, or from a saved ``.kforge.json`` file.

    Raises:
        BadInput: There is no such run or no such file.
        DocumentError: The file is not a valid run document, or of a newer schema.
    """
    from kforge_nb.run.handle import Run
    from kforge_nb.run.source import FileSource

    text = str(name_or_path)
    path = Path(text).expanduser()
    if text.endswith(".json") or path.is_file():
        if not path.exists():
            raise BadInput(f"there is no file {path.absolute()}; run.save(path) writes one")
        return Run(FileSource(path))
    return find_run(text, store=store)


def runs(*, store: str | PathLike[str] | None = None) -> pd.DataFrame:
    """The runs of a store, oldest first: name, state, reason, judged, created, updated, id."""
    import pandas as pd

    from kforge_nb.run.record import open_store

    with open_store(store) as opened:
        rows = [
            {
                "name": run["name"],
                "state": run["state"],
                "judged": run["progress"].get("judged", 0),
                "created": run["created"],
                "updated": run["updated"],
                "reason": run["state_reason"],
                "id": run["id"],
            }
            for run in opened.runs()
        ]
    columns = ["name", "state", "judged", "created", "updated", "reason", "id"]
    return pd.DataFrame(rows, columns=columns)


def doctor(*, store: str | PathLike[str] | None = None) -> Doctor:
    """Checks the whole toolchain; ``.ok`` says whether everything needed is here."""
    from kforge_nb.doctor import examine

    return examine(None if store is None else str(store))


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
) -> FileEvaluation:
    """Judges a kernel in a file of somebody else's, and sets what it claims beside what is found.

    Known forms: KernelBench Python with ``ModelNew`` (also with ``load_inline`` or Triton), a
    ``load_inline`` file or a function ``launch``, a torch extension whose bound ``launch(...)``
    takes the op's tensors and arguments, and kforge's own C++ and CUDA kernels with a plan. The
    file is never imported here: host code runs in confined processes of its own.

    Args:
        path: The file.
        reference: What it must compute: a KernelBench file with ``Model`` and ``get_inputs`` (only
            that part of it is run, in a process of its own), or a module or function of yours.
            Left out, the file's own ``Model`` is taken, which the answer says.
        inputs: The arguments of a module or function as ``reference``.
        device: ``cpu`` or ``cuda:N``; where left out, a GPU for files that are written for one.
        allow_host_code: Without it only kernels with a plan are judged; the rest is host code,
            which can do in its process what it wants.
        claim: What is claimed of it, as in ``"3.2x over eager"``; read from the file if left out.
        baseline: ``compile`` for eager and torch.compile, or ``eager`` alone.
        threads: Of both sides on a CPU; 0 is one a core.

    Returns:
        The evaluation. A bad file never raises.

    Raises:
        BadInput: There is no such file, it has none of the known forms, or the reference cannot be
            run or traced.
        MissingTool: There is no compiler.
    """
    from kforge_nb.judge.foreign.judging import judge_file as judge
    from kforge_nb.proposers.manual import manual_candidate

    return judge(
        path,
        reference,
        inputs=inputs,
        device=device,
        allow_host_code=allow_host_code,
        claim=claim,
        baseline=baseline,
        threads=threads,
        planned=manual_candidate,
    )


def find_run(run: str | Run | None = None, *, store: str | PathLike[str] | None = None) -> Run:
    """A handle for a run by name or id, or the handle that was given.

    Without a name it is the run that this process began (or went on with) last, so that a notebook
    never gets another one's; where it has none in this store, the store's newest.

    Raises BadInput when there is none; the message lists those that exist.
    """
    from kforge_nb.run import live
    from kforge_nb.run.handle import Run
    from kforge_nb.run.record import Record, open_store, store_folder
    from kforge_nb.run.source import StoreSource

    if isinstance(run, Run):
        return run
    if not store_folder(store).is_dir():
        raise BadInput(f"there are no runs in {store_folder(store)}; start one with optimize")
    opened = open_store(store)
    if run is None and (own := live.latest(opened.path)):
        kept = {stored["id"] for stored in opened.runs()}
        run = next((run_id for run_id in own if run_id in kept), None)
    return Run(StoreSource(Record(opened, opened.find_run(run))))


def free_name(wanted: str, *, store: str | PathLike[str] | None = None) -> str:
    """``wanted``, or ``wanted-2``, ``wanted-3`` … where runs of that name exist."""
    from kforge_nb.run.record import open_store

    with open_store(store) as opened:
        taken = {run["name"] for run in opened.runs()}
    numbered = (wanted if n == 1 else f"{wanted}-{n}" for n in range(1, len(taken) + 2))
    return next(name for name in numbered if name not in taken)


def _callable(fn: Any) -> Callable[[], Any]:
    if not callable(fn):
        raise BadInput(
            f"the workload must be a function without arguments that calls the model, "
            f"such as lambda: model(x), not {type(fn).__name__}"
        )
    return fn


def _explained() -> str:
    """The options of the table as they stand in a docstring."""
    lines = []
    for spec in option_specs():
        default = f" (default: {spec.default})" if spec.default not in (None, (), False) else ""
        choices = f" One of {', '.join(spec.choices)}." if spec.choices else ""
        lines.append(f"        {spec.name}: {spec.help}{default}.{choices}\n")
    return "".join(lines)


def _signature() -> inspect.Signature:
    """The signature of ``optimize`` with its options written out, for help and completion."""
    kinds = {**RunOptions.__annotations__, "dry_run": "bool | None"}
    plainly = {name: getattr(kind, "__forward_arg__", kind) for name, kind in kinds.items()}
    word = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(spec.name, word, default=None, annotation=plainly[spec.name])
        for spec in option_specs()
    ]
    plain = inspect.signature(optimize)
    return plain.replace(parameters=[plain.parameters["fn"], *options])


optimize.__doc__ = f"{(optimize.__doc__ or '').rstrip()}\n{_explained()}"
optimize.__signature__ = _signature()  # type: ignore[attr-defined]
