"""The process that runs a reference's code once, confined, and hands its graph and values out.

Started as ``python -I -c "…main()"`` with one JSON argument. What it answers is data that the judge
reads as it reads any document: a target by an allow-list of operators, and safetensors. Before it
runs a line of the file it gives away what it does not need (system calls, files, network), as a
worker with a candidate does.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["main"]

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


def _limits(start: dict[str, Any], on_gpu: bool) -> None:
    most = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: start["cpu_seconds"],
        resource.RLIMIT_FSIZE: start["file_bytes"],
    }
    if not on_gpu:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most[resource.RLIMIT_AS] = pages * resource.getpagesize() + start["memory"]
    for what, value in most.items():
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(what, (value, value))


def _warm(on_gpu: bool, device: str) -> None:
    """Import and start everything that needs files or threads of its own."""
    import torch
    import torch._dynamo

    from kforge_nb.judge.foreign.tracing import trace

    trace(torch.nn.functional.relu, [(torch.zeros(2),)], "warm-up")
    if on_gpu:
        torch.zeros(1 << 20, device=device).sum().item()


def _module(source: str) -> ModuleType:
    """The sliced reference as a module that Dynamo can find lines of."""
    import linecache

    name = "kforge_reference"
    module = ModuleType(name)
    filename = f"<{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    sys.modules[name] = module
    exec(compile(source, filename, "exec"), module.__dict__)  # noqa: S102 - confined, and meant to
    return module


def _answer(start: dict[str, Any], source: str) -> tuple[dict[str, Any], bytes]:
    import torch
    from safetensors.torch import save

    from kforge_nb.judge.foreign.tracing import flat, trace
    from kforge_nb.judge.foreign.values import encode
    from kforge_nb.targets.document import target_to_document

    device = torch.device(start["device"])
    module = _module(source)
    init = list(module.get_init_inputs()) if hasattr(module, "get_init_inputs") else []
    torch.manual_seed(start["seed"])
    model = module.Model(*init).to(device)
    sets = []
    for seed in start["input_seeds"]:
        torch.manual_seed(seed)
        given = [_to(value, device) for value in module.get_inputs()]
        sets.append(given)
    traced = trace(model, sets, start["name"])
    traced.layout.init, traced.layout.seed = encode(tuple(init)), start["seed"]
    held = traced.target.captured.sets() if traced.target.captured is not None else []
    tensors = {
        f"{number}.{i}": flat(tensor).cpu()
        for number, tensors in enumerate(held)
        for i, tensor in enumerate(tensors[: None if number == 0 else traced.layout.given])
    }
    answer = {
        "target": target_to_document(traced.target),
        "layout": asdict(traced.layout),
        "sets": len(held),
    }
    return answer, save(tensors)


def _to(value: Any, device: Any) -> Any:
    import torch
    from torch.utils import _pytree as pytree

    def move(leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(move, value)


def main() -> None:
    """Run the reference, write its graph and values to the two open files, and end."""
    start = json.loads(sys.argv[1])
    source = Path(start["source"]).read_text(encoding="utf-8")
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    on_gpu = start["device"].startswith("cuda")
    _warm(on_gpu, start["device"])
    if start["sandboxed"]:
        from kforge_nb.judge.extension.worker import confine

        words = ctypes.create_string_buffer(16)
        _limits(start, on_gpu)
        confine(start, ctypes.addressof(words), on_gpu)
    failed = ""
    answer: dict[str, Any] = {}
    tensors = b""
    try:
        answer, tensors = _answer(start, source)
    except Exception as problem:  # noqa: BLE001 - whatever the reference raised, the judge is told
        first = (str(problem).strip().splitlines() or [""])[0]
        kind = type(problem).__name__
        failed = first if kind == "BadInput" else f"it raised {kind}: {first}"
    for descriptor, data in zip(
        start["answers"], (json.dumps({**answer, "failed": failed[:600]}).encode(), tensors),
        strict=True,
    ):  # fmt: skip
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    os.write(int(start["reply"]), b"done")
