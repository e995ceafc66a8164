"""Where a reference comes from, and how it becomes a target without its code running here.

A file's reference is cut out of its text (:mod:`slicing`) and run once in a confined process
(:mod:`reference_child`), which answers with data. A module or function that the caller holds is the
caller's own code, and is traced here.
"""

from __future__ import annotations

import copy
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kforge_nb.errors import BadInput, DocumentError
from kforge_nb.judge.evaluation import shown
from kforge_nb.judge.extension.session import confine_library, readable, worker_environment
from kforge_nb.judge.foreign.reading import read_text
from kforge_nb.judge.foreign.slicing import reference_source
from kforge_nb.judge.foreign.tracing import Layout, Traced, trace
from kforge_nb.judge.foreign.values import decode
from kforge_nb.judge.process import Child, Gone, TooSlow
from kforge_nb.judge.regions import extent
from kforge_nb.targets.document import target_from_document
from kforge_nb.targets.inputs import CapturedInputs
from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["Reference", "live_reference", "reference_from_file"]

_SECONDS = 300.0
_MOST_JSON = 64 << 20
_MEMORY = 8 << 30
_MOST_VALUES = 4 << 30  # bytes of a file of its answers: no worker has room for more
_MAIN = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1])['path']; "
    "from kforge_nb.judge.foreign.reference_child import main; main()"
)


@dataclass(slots=True)
class Reference:
    """What a candidate must compute.

    ``words`` says where it comes from; ``own`` that it stands in the candidate's own file.
    """

    traced: Traced
    words: str
    own: bool = False

    @property
    def target(self) -> Target:
        """The graph, its variant and its captured inputs."""
        return self.traced.target

    @property
    def layout(self) -> Layout:
        """How the target's inputs are arguments and weights."""
        return self.traced.layout


def live_reference(reference: Callable[..., Any], inputs: Sequence[Any]) -> Reference:
    """A module or function of the caller's, on the arguments that it is called with.

    A module is copied, and what is called is the copy: the caller's buffers, training mode and
    random numbers stay as they are.

    Raises:
        BadInput: it cannot be copied, or traced as one graph of tensors.
    """
    if not callable(reference):
        raise BadInput(
            "reference= takes a KernelBench file with Model and get_inputs, or a module or "
            f"function together with inputs=(...), not {type(reference).__name__}"
        )
    name = getattr(reference, "__name__", type(reference).__name__)
    own = _copied(reference, name) if isinstance(reference, torch.nn.Module) else reference
    used = {t.device.index or 0 for t in _tensors(own, inputs) if t.is_cuda}
    with torch.random.fork_rng(devices=sorted(used)):
        return Reference(trace(own, [tuple(inputs)], name), name)


def _copied(module: torch.nn.Module, name: str) -> torch.nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:  # noqa: BLE001 - whatever a part of it raises that has no copy
        raise BadInput(
            f"the reference {name} cannot be copied, so calling it might change it "
            f"({type(error).__name__}: {error}); give a file or a function of tensors"
        ) from None


def _tensors(reference: Any, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors that a call uses, as far as can be seen."""
    given = pytree.tree_leaves(list(inputs))
    if isinstance(reference, torch.nn.Module):
        given += [*reference.parameters(), *reference.buffers()]
    return [value for value in given if isinstance(value, torch.Tensor)]


def reference_from_file(
    path: Path, device: str, folder: Path, threads: int, *, own: bool = False
) -> Reference:
    """The reference of a KernelBench file: ``Model(*get_init_inputs())`` on ``get_inputs()``.

    Args:
        path: of the file; nothing but the reference's definitions is taken from it.
        device: where it is to run.
        folder: for temporary files, emptied again.
        threads: of torch.
        own: whether it is the candidate's own file.

    Raises:
        BadInput: the file has no reference, or it cannot be run or traced.
    """
    called = shown(path.name)
    source = reference_source(read_text(path), called)
    with tempfile.TemporaryDirectory(prefix="reference-", dir=folder) as name:
        place = Path(name)
        (place / "reference.py").write_text(source, encoding="utf-8")
        answer, tensors = _run(place, device, threads, called)
        if answer.get("failed"):
            words = shown(str(answer["failed"])[:600])
            raise BadInput(f"the reference of {called} cannot be judged: {words}")
        return Reference(_read(answer, tensors, device), called, own)


def _run(
    place: Path, device: str, threads: int, name: str
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    answers = [place / "answer.json", place / "tensors.safetensors"]
    opened = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600) for path in answers]
    start = {
        "reply": "{reply}",
        "answers": opened,
        "source": str(place / "reference.py"),
        "name": name,
        "device": device,
        "seed": secrets.randbits(31),
        "input_seeds": [secrets.randbits(62) for _ in range(2)],
        "confine": str(confine_library()),
        "files": readable(place / "reference.py", device),
        "path": [str(Path(__file__).parents[3]), *(entry for entry in sys.path if entry)],
        "cpu_seconds": 600,
        "memory": _MEMORY,
        "file_bytes": _MOST_VALUES,
        "sandboxed": True,
    }
    command = [sys.executable, "-I", "-c", _MAIN, json.dumps(start)]
    with tempfile.TemporaryFile(dir=place) as log:
        try:
            child = Child(
                command,
                environment=worker_environment(threads),
                folder=Path("/"),
                pass_fds=tuple(opened),
                log=log.fileno(),
            )
        finally:
            for descriptor in opened:
                os.close(descriptor)
        try:
            child.receive(4, _SECONDS)
        except TooSlow:
            raise BadInput(f"the reference of {name} took more than {_SECONDS:g} s") from None
        except Gone:
            raise BadInput(f"the reference of {name} ended its process: {_tail(log)}") from None
        finally:
            child.close()
    if answers[0].stat().st_size > _MOST_JSON:
        raise BadInput(f"the graph of the reference of {name} is too large")
    try:
        answer = json.loads(answers[0].read_text(encoding="utf-8"))
        tensors = {} if answer.get("failed") else load_file(answers[1])
    except RecursionError:
        raise BadInput(f"the reference of {name} answered with data nested too deeply") from None
    except (ValueError, AttributeError, OSError, SafetensorError) as error:
        raise BadInput(f"the reference of {name} answered with damaged data: {error}") from None
    return answer, tensors


def _tail(log: Any) -> str:
    size = os.fstat(log.fileno()).st_size
    text = os.pread(log.fileno(), 600, max(0, size - 600)).decode("utf-8", "replace").strip()
    return (
        shown(text).splitlines() or ["it left no word; it may have made a forbidden system call"]
    )[-1]


def _read(answer: dict[str, Any], tensors: dict[str, torch.Tensor], device: str) -> Traced:
    """The target and its layout, with every part checked: it is what the file's code said."""
    try:
        target = target_from_document({**answer["target"], "captured": None})
        layout = _layout(answer["layout"], len(target.inputs))
        sets = [
            [
                _strided(tensors[f"{number if i < layout.given else 0}.{i}"], spec, device)
                for i, spec in enumerate(target.inputs)
            ]
            for number in range(min(2, int(answer["sets"])))
        ]
    except DocumentError as error:
        raise BadInput(f"the reference answered with damaged data: {error}") from None
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError,
            RuntimeError) as error:  # fmt: skip
        raise BadInput(f"the reference answered with damaged data: {error!r}") from None
    target.captured = CapturedInputs()
    for values in sets:
        target.captured.add(values)
    target.captured.finish()
    return Traced(target, layout)


def _layout(row: dict[str, Any], inputs: int) -> Layout:
    given, state = int(row["given"]), [str(name) for name in row["state"]]
    if given < 0 or given + len(state) != inputs:
        raise DocumentError(f"{given} arguments and {len(state)} weights are not {inputs} inputs")
    args = decode(row["args"], tensor=lambda i: {"tensor": i} if 0 <= i < given else _no_input(i))
    init = decode(row["init"])
    if not isinstance(args, tuple) or not isinstance(init, tuple):
        raise DocumentError("arguments that are no tuple")
    notes = [str(note)[:300] for note in row["notes"]]
    return Layout(row["args"], given, state, row["init"], int(row["seed"]),
                  bool(row["training"]), notes)  # fmt: skip


def _no_input(number: int) -> Any:
    raise DocumentError(f"there is no input {number}")


def _strided(row: torch.Tensor, spec: TensorSpec, device: str) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype)
    if row.dtype is not dtype or row.dim() != 1 or row.numel() != extent(spec):
        raise DocumentError(f"values of {row.dtype} {tuple(row.shape)} do not fit {spec}")
    return row.to(device).as_strided(spec.shape, spec.stride)
