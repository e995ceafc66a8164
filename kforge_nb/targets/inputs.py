"""Real inputs of a target, taken while the model ran: strides kept, memory bounded."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from kforge_nb.errors import DocumentError, StoreError

__all__ = ["CapturedInputs", "Holding"]

SCHEMA = "kforge.inputs/1"
FILE = "inputs.safetensors"
Holding = Literal["copy", "own", "reference"]


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor as a strided window (sizes in elements) on a flat base."""

    base: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def on(self, base: torch.Tensor) -> torch.Tensor:
        return base.as_strided(self.shape, self.stride, self.offset)


class CapturedInputs:
    """Input sets of one target. Tensors of one storage are held once.

    Parameters and buffers may be held by reference (``add(..., how=...)``), everything
    else is copied when it is added. ``spill()`` moves the copies to a safetensors file.
    """

    def __init__(self) -> None:
        self._bases: dict[str, torch.Tensor] = {}
        self._sets: list[list[_View]] = []
        self._devices: dict[str, str] = {}
        self._known: dict[tuple[Any, ...], str] = {}
        self._sources: dict[str, torch.Tensor] = {}
        self._referenced: set[str] = set()
        self._files: list[Path] = []
        self._made = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __len__(self) -> int:
        return len(self._sets)

    @property
    def nbytes(self) -> int:
        """Bytes of copies held in memory (references and spilled sets not counted)."""
        return sum(
            t.numel() * t.element_size()
            for key, t in self._bases.items()
            if key not in self._referenced
        )

    def add(self, tensors: Sequence[torch.Tensor], how: Sequence[Holding] = ()) -> None:
        """Add one input set, copying what ``how`` does not say otherwise.

        ``how[i]`` is ``copy``, ``own`` (tensor i is the caller's copy already) or ``reference``
        (kept without a copy: weights).
        """
        modes = list(how) or ["copy"] * len(tensors)
        self._sets.append([self._store(t, m) for t, m in zip(tensors, modes, strict=True)])

    def finish(self) -> None:
        """Forget where copies came from; call it when capturing is over."""
        self._known.clear()
        self._sources.clear()

    def _store(self, tensor: torch.Tensor, how: Holding) -> _View:
        tensor = tensor.detach()
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        reach = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        extent = 1 + reach if tensor.numel() else 0
        version = -1 if tensor.is_inference() else tensor._version
        key = (
            tensor.untyped_storage().data_ptr(), tensor.storage_offset(), extent, tensor.dtype,
            version, str(tensor.device),
        )  # fmt: skip
        if key not in self._known:
            name = f"t{self._made}"
            self._made += 1
            flat = tensor.as_strided((extent,), (1,), tensor.storage_offset())
            self._bases[name] = flat.clone() if how == "copy" else flat
            if how == "reference":
                self._referenced.add(name)
            self._devices[name] = str(tensor.device)
            self._known[key] = name
            self._sources[name] = tensor  # keeps the address from being used again
        return _View(self._known[key], shape, stride, 0)

    def sets(self, most: int | None = None) -> list[list[torch.Tensor]]:
        """All input sets, or the first ones; of those that were spilled no more is read.

        The tensors have their captured strides. Do not write to them.
        """
        wanted = self._sets[:most]
        bases = dict(self._bases)
        left_out = set(self._devices) - {view.base for views in wanted for view in views}
        for file in self._files:
            bases = {**_read(file, self._devices, without={*bases, *left_out}), **bases}
        return [[view.on(bases[view.base]) for view in views] for views in wanted]

    def spill(self, folder: Path | None = None) -> None:
        """Move the copies out of memory, to files that live as long as this object."""
        copies = {k: t for k, t in self._bases.items() if k not in self._referenced}
        if not copies:
            return
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="kforge-inputs-", dir=folder)
        path = Path(self._folder.name) / f"inputs{len(self._files)}.safetensors"
        _write(path, copies)
        self._files.append(path)
        for key in copies:
            del self._bases[key]
            self._sources.pop(key, None)  # it would hold the memory that this is to free
        self._known = {k: name for k, name in self._known.items() if name not in copies}

    def leave_in(self, folder: Path) -> None:
        """Let go of the copies in memory, of which ``save(folder)`` has written all.

        From now on ``sets()`` reads them from ``folder``, which must stay as it is. References to
        weights stay references.
        """
        self._bases = {k: t for k, t in self._bases.items() if k in self._referenced}
        self._files = [Path(folder) / FILE]
        self._folder = None

    def save(self, folder: Path) -> None:
        """Write all sets (references too, as they are now) to ``folder``.

        Raises StoreError where they cannot be written.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        bases = dict(self._bases)
        for file in self._files:
            bases.update(_read(file, dict.fromkeys(self._devices, "cpu"), without=bases))
        _write(folder / FILE, bases)
        rows = [
            [[v.base, list(v.shape), list(v.stride), v.offset] for v in views]
            for views in self._sets
        ]
        body = {"schema": SCHEMA, "sets": rows, "devices": self._devices}
        (folder / "inputs.json").write_text(json.dumps(body))

    @classmethod
    def load(cls, folder: Path) -> CapturedInputs:
        """Read what :meth:`save` wrote. Raises DocumentError if it is missing or damaged.

        Inputs that live on a GPU go there when ``sets()`` is called, not before.
        """
        folder = Path(folder)
        found = cls()
        try:
            body = json.loads((folder / "inputs.json").read_text())
            if body["schema"] == SCHEMA:
                found._devices = {str(k): str(v) for k, v in body["devices"].items()}
                found._bases = _read(folder / FILE, {})
                found._made = len(found._bases)
                for views in body["sets"]:
                    found._sets.append([_checked_view(row, found._bases) for row in views])
                if any(device != "cpu" for device in found._devices.values()):
                    found.leave_in(folder)
        except DocumentError:
            raise
        except Exception as error:
            raise DocumentError(f"captured inputs in {folder} cannot be read: {error}") from error
        if body["schema"] != SCHEMA:
            raise DocumentError(f"captured inputs of schema {body['schema']}, need {SCHEMA}")
        return found


def _checked_view(row: list[Any], bases: dict[str, torch.Tensor]) -> _View:
    view = _View(
        str(row[0]), tuple(int(n) for n in row[1]), tuple(int(n) for n in row[2]), int(row[3])
    )
    last = view.offset + sum((n - 1) * s for n, s in zip(view.shape, view.stride, strict=True))
    numbers = (*view.shape, *view.stride, view.offset)
    if min(numbers, default=0) < 0 or (0 not in view.shape and last >= bases[view.base].numel()):
        raise DocumentError(f"a captured input reaches outside its storage: {row}")
    return view


def _write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({k: t.detach().cpu().contiguous() for k, t in tensors.items()}, str(path))
    except (OSError, SafetensorError) as problem:
        raise StoreError(
            f"captured inputs cannot be written to {path.parent} ({problem}); free some space "
            "there, or choose another folder with store="
        ) from None


def _read(
    path: Path, devices: Mapping[str, str], without: Container[str] = ()
) -> dict[str, torch.Tensor]:
    """The tensors of a file on their devices, one at a time; those of ``without`` are left out."""
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        wanted = [key for key in file.keys() if key not in without]  # noqa: SIM118 - no mapping
        return {key: file.get_tensor(key).to(devices.get(key, "cpu")) for key in wanted}
