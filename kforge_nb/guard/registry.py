"""Accepted kernels kept for later processes: content-addressed, and trusted only after a new check.

An entry is a folder with ``entry.json`` (graph, variant, plan, evidence) and the source; on a GPU
also the cubin, with its architecture, device and toolchain. The address holds what the kernel's
truth depends on: fingerprint, device, torch version and compiler, then the candidate's digest. (For
CUDA the compiler is left out, as a cubin is built anew where that has changed.)

The folder may have been written by anybody, so an entry is read as data, its digests and its
fingerprint are computed anew, and its source goes through the judge's policy, a fresh compile and a
fresh correctness check in the judge's sandboxed runner before it is loaded. What fails is left out
with a reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.plan import plan_from_document, plan_to_document
from kforge_nb.compilers.nvrtc import device_arch, find_nvrtc
from kforge_nb.compilers.toolchain import cpu_identity, find_compiler
from kforge_nb.errors import DocumentError, KForgeError, MissingTool
from kforge_nb.guard.accepted import Accepted
from kforge_nb.guard.report import isolated_comparison
from kforge_nb.guard.verify import fingerprint_of, verify
from kforge_nb.settings import cache_dir
from kforge_nb.targets.document import graph_from_document
from kforge_nb.targets.target import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kforge_nb.targets.inputs import CapturedInputs

__all__ = ["Registry", "environment_key"]

SCHEMA = "kforge.kernel/1"
MAX_BYTES = 4 << 20
MAX_CUBIN = 64 << 20
SOURCES = {"cpp": "candidate.cpp", "cuda": "candidate.cu"}
CUBIN = "kernel.cubin"
_BINARY = {"arch", "device", "toolchain", "sha256"}
_FIELDS = {
    "schema", "fingerprint", "name", "granularity", "graph", "inputs", "outputs", "language",
    "plan", "title", "origin", "digest", "evidence", "looks", "environment", "created",
}  # fmt: skip


def environment_key(device: str = "cpu") -> str:
    """Hash of what a kernel's speed and truth depend on besides itself (32 hex characters)."""
    kind = device.partition(":")[0]
    version = ".".join(torch.__version__.split("+")[0].split(".")[:2])
    if kind == "cpu":
        parts = [kind, cpu_identity(), version, find_compiler().identity]
    else:
        parts = [kind, torch.cuda.get_device_name(device), version]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


class Registry:
    """Kernels on disk. ``problems`` maps the path of each entry that was left out to the reason.

    Args:
        folder: where; by default below the cache folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = Path(folder) if folder is not None else cache_dir() / "registry"
        self.problems: dict[str, str] = {}

    def add(self, accepted: Accepted, captured: CapturedInputs | None = None) -> Path:
        """Keep a kernel; returns its folder. Values of ``captured`` are summed up, never stored.

        Raises:
            MissingTool: there is no C++ compiler (its identity is part of the address).
            DocumentError: the kernel would not pass :meth:`read`.
        """
        home = self._home(accepted)
        home.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".new-", dir=home.parent))
        try:
            language = accepted.candidate.language
            (folder / SOURCES.get(language, "candidate")).write_text(accepted.candidate.source)
            entry = _entry(accepted, environment_key(accepted.outputs[0].device), captured)
            if language == "cuda":
                shutil.copyfile(accepted.library, folder / CUBIN)
                entry["binary"] = _binary(accepted, folder / CUBIN)
            (folder / "entry.json").write_text(json.dumps(entry))
            self.read(folder)
            shutil.rmtree(home, ignore_errors=True)
            folder.rename(home)
        except OSError:
            if not home.exists():
                raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return home

    def remove(self, fingerprint: str) -> int:
        """Forget all kernels of a target on every device; returns how many."""
        found = list(self.folder.glob(f"*/{fingerprint[:32]}/*/entry.json"))
        for path in found:
            shutil.rmtree(path.parent, ignore_errors=True)
        return len(found)

    def entries(self, device: str = "cpu") -> dict[str, Path]:
        """The best entry of each target for this machine, by fingerprint; unchecked."""
        found: dict[str, tuple[float, Path]] = {}
        root = self.folder / environment_key(device)
        for path in sorted(root.glob("*/*/entry.json")):
            try:
                kernel = self.read(path.parent)
            except (KForgeError, OSError, ValueError) as problem:
                self.problems[str(path.parent)] = str(problem)
                continue
            speed = isolated_comparison(kernel)
            rank = speed.ratio if speed else 1.0
            if rank > found.get(kernel.target_fingerprint, (0.0, path))[0]:
                found[kernel.target_fingerprint] = (rank, path.parent)
        return {fingerprint: path for fingerprint, (_, path) in found.items()}

    def read(self, folder: Path) -> Accepted:
        """An entry as data, its digest and fingerprint computed anew; nothing is run or built.

        Raises:
            DocumentError: it is damaged, of another schema, or not what it claims to be.
        """
        return _read(folder)[0]

    def verified(self, folder: Path) -> Accepted:
        """An entry that passed policy, compile and a fresh correctness check just now.

        Raises:
            DocumentError: it did not, with the reason.
            MissingTool: there is no C++ compiler.
        """
        kernel, looks = _read(folder)
        return verify(kernel, looks)

    def _home(self, accepted: Accepted) -> Path:
        key = environment_key(accepted.outputs[0].device)
        place = self.folder / key / accepted.target_fingerprint[:32]
        return place / accepted.digest[:32]


def _entry(accepted: Accepted, environment: str, captured: CapturedInputs | None) -> dict[str, Any]:
    # Absent where graphs lie as the model has them, as in the entries of earlier versions.
    layout = {} if accepted.layout == "keep" else {"layout": accepted.layout}
    return {
        **layout,
        "schema": SCHEMA,
        "fingerprint": accepted.target_fingerprint,
        "name": accepted.name,
        "granularity": accepted.granularity,
        "graph": accepted.graph_document,
        "inputs": [asdict(spec) for spec in accepted.inputs],
        "outputs": [asdict(spec) for spec in accepted.outputs],
        "language": accepted.candidate.language,
        "plan": plan_to_document(accepted.candidate.plan),
        "title": accepted.candidate.title,
        "origin": accepted.candidate.origin,
        "digest": accepted.digest,
        "evidence": _without_samples(accepted.evidence),
        "looks": _looks(accepted, captured),
        "environment": environment,
        "created": time.time(),
    }


def _without_samples(evidence: dict[str, Any]) -> dict[str, Any]:
    """Samples are many numbers that nobody asks a registry for."""
    kept = {key: value for key, value in evidence.items() if key != "timings"}
    rows = [dict(row) for row in evidence.get("timings", ()) if isinstance(row, dict)]
    for row in rows:
        row.pop("ours_samples_us", None)
        row.pop("against_samples_us", None)
    return {**kept, "timings": rows} if rows else kept


def _looks(accepted: Accepted, captured: CapturedInputs | None) -> list[list[float]]:
    """For each input two numbers to draw like values from: mean and spread, or least and most."""
    sets = captured.sets() if captured is not None else []
    found = []
    for index, spec in enumerate(accepted.inputs):
        floating = spec.dtype.startswith(("float", "bfloat"))
        values = sets[0][index].detach().double() if sets else torch.empty(0)
        values = values[torch.isfinite(values)]
        if values.numel() == 0:
            found.append([0.0, 1.0])
        elif floating:
            found.append([float(values.mean()), float(values.std(unbiased=False))])
        else:
            found.append([float(values.min()), float(values.max())])
    return found


def _read(folder: Path) -> tuple[Accepted, list[list[float]]]:
    try:
        data = _checked(json.loads(_text(folder / "entry.json")))
        kernel = _accepted(data, folder)
        looks = [[float(a), float(b)] for a, b in data["looks"]]
    except DocumentError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError, KForgeError) as problem:
        raise DocumentError(f"{folder.name} is damaged: {problem}") from problem
    if kernel.digest != data["digest"] or len(looks) != len(kernel.inputs):
        raise DocumentError(f"{folder.name}: source or plan are not those that were judged")
    found = fingerprint_of(kernel)
    if found != kernel.target_fingerprint:
        raise DocumentError(f"{folder.name}: its graph is not the target that it names")
    return kernel, looks


def _checked(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise DocumentError(f"this is not a kernel entry of schema {SCHEMA}")
    if set(data) - {"binary", "layout"} != _FIELDS:
        raise DocumentError("the kernel entry has missing or unknown fields")
    if data["language"] not in SOURCES or ("binary" in data) != (data["language"] == "cuda"):
        raise DocumentError("it has an unknown language, or a binary that does not belong to it")
    return data


def _text(path: Path) -> str:
    if path.is_symlink() or path.stat().st_size > MAX_BYTES:
        raise DocumentError(f"{path.name} is a link or larger than {MAX_BYTES} bytes")
    return path.read_text()


def _binary(accepted: Accepted, cubin: Path) -> dict[str, str]:
    """What is to be known of a cubin before it is used again."""
    device = accepted.outputs[0].device
    try:
        toolchain = find_nvrtc().identity
    except MissingTool:
        toolchain = "unknown"
    return {
        "arch": accepted.arch or device_arch(device),
        "device": torch.cuda.get_device_name(device),
        "toolchain": toolchain,
        "sha256": hashlib.sha256(cubin.read_bytes()).hexdigest(),
    }


def _cubin(folder: Path, binary: Any) -> tuple[Path, str]:
    """The kept cubin and its architecture; the file's hash is computed anew."""
    if not isinstance(binary, dict) or set(binary) != _BINARY:
        raise DocumentError("what is said of its cubin has missing or unknown fields")
    path = folder / CUBIN
    if path.is_symlink() or path.stat().st_size > MAX_CUBIN:
        raise DocumentError(f"{CUBIN} is a link or larger than {MAX_CUBIN} bytes")
    if hashlib.sha256(path.read_bytes()).hexdigest() != binary["sha256"]:
        raise DocumentError("its cubin is not the one that was kept")
    return path, str(binary["arch"])


def _accepted(data: dict[str, Any], folder: Path) -> Accepted:
    source = _text(folder / SOURCES[data["language"]])
    if data["granularity"] not in ("op", "module", "region"):
        raise DocumentError("it has an unknown granularity")
    if data.get("layout", "keep") not in ("keep", "channels_last"):
        raise DocumentError("it has an unknown layout")
    if not isinstance(data["evidence"], dict) or not isinstance(data["origin"], dict):
        raise DocumentError("its evidence or origin is no object")
    graph_from_document(data["graph"])
    candidate = Candidate(
        data["language"], source, plan_from_document(data["plan"]), str(data["title"]),
        data["origin"],
    )  # fmt: skip
    library, arch = Path(os.devnull), ""
    if candidate.language == "cuda":
        library, arch = _cubin(folder, data["binary"])
    return Accepted(
        str(data["fingerprint"]), data["graph"], _specs(data["inputs"]), _specs(data["outputs"]),
        candidate, library, data["evidence"], data["granularity"], str(data["name"]), arch,
        data.get("layout", "keep"),
    )  # fmt: skip


def _specs(rows: Iterable[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    found = []
    for row in rows:
        shape = tuple(int(size) for size in row["shape"])
        stride = tuple(int(step) for step in row["stride"])
        if len(shape) != len(stride) or min((*shape, *stride, 0)) < 0 or set(row) != {
            "shape", "stride", "dtype", "device",
        }:  # fmt: skip
            raise DocumentError("a tensor's sizes or strides are not valid")
        found.append(TensorSpec(shape, stride, str(row["dtype"]), str(row["device"])))
    return tuple(found)
