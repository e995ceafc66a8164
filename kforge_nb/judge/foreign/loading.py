"""From a foreign file to a function of tensors, inside its worker.

``torch.utils.cpp_extension.load_inline`` does not compile here: it hands out what the judge has
built already, and otherwise writes down what it was asked for (the judge builds it, and the file is
loaded again in a new process). A file's module is executed once; its class is built with the seed
that the reference was built with.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import inspect
import json
import linecache
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from kforge_nb.judge.foreign.ops import NeedsBuild, Unfit
from kforge_nb.judge.foreign.values import decode

__all__ = ["Callee", "Extensions", "load_callee", "request_key"]

_PLAIN = ("cpp_sources", "cuda_sources", "functions", "extra_cflags", "extra_cuda_cflags")
_NAME = "kforge_candidate"


def request_key(request: dict[str, Any]) -> str:
    """What identifies one extension: its sources, functions and flags."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:32]


class Extensions:
    """Stands in for ``load_inline``: hands out what was built, remembers what was not."""

    def __init__(self, libraries: dict[str, str]) -> None:
        self._libraries = libraries
        self.wanted: list[dict[str, Any]] = []
        self.loaded: list[tuple[ModuleType, list[str]]] = []

    def install(self) -> None:
        """Take the place of torch's own functions in this process."""
        from torch.utils import cpp_extension

        cpp_extension.load_inline = self.load_inline  # type: ignore[assignment]
        cpp_extension.load = self.load

    def load_inline(self, name: str, cpp_sources: Any, cuda_sources: Any = None,
                    functions: Any = None, extra_cflags: Any = None,
                    extra_cuda_cflags: Any = None, *_: Any, **__: Any) -> ModuleType:  # fmt: skip
        """The module of an extension from its sources; NeedsBuild where it was not built yet."""
        request = {
            "cpp_sources": _texts(cpp_sources),
            "cuda_sources": _texts(cuda_sources),
            "functions": _functions(functions),
            "extra_cflags": _texts(extra_cflags),
            "extra_cuda_cflags": _texts(extra_cuda_cflags),
        }
        key = request_key(request)
        if key not in self._libraries:
            if request not in self.wanted:
                self.wanted.append(request)
            raise NeedsBuild(f"the extension {name} is not built yet")
        module = _import(self._libraries[key])
        self.loaded.append((module, list(request["functions"])))
        return module

    def load(self, *_: Any, **__: Any) -> ModuleType:
        """Files beside the judged one are not there."""
        raise Unfit("it compiles files beside it (load(sources=...)); put them into load_inline")


def _texts(value: Any) -> list[str]:
    return [str(v) for v in ([value] if isinstance(value, str) else value or [])]


def _functions(value: Any) -> dict[str, str]:
    if isinstance(value, dict):
        return {str(k): str(v) for k, v in value.items()}
    return {name: name for name in _texts(value)}


def _import(library: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(_NAME, library)
    spec = importlib.util.spec_from_file_location(_NAME, library, loader=loader)
    if spec is None:
        raise Unfit("its extension cannot be imported")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class Callee:
    """The candidate as a function of a target's inputs, in order.

    ``log`` is a dispatch mode that the next calls run under (None: none).
    """

    def __init__(self, function: Callable[..., Any], layout: dict[str, Any], state: bool) -> None:
        self._function = function
        self._given = int(layout["given"])
        self._state = state
        rows = layout["args"]["tuple"]
        self._simple = all(_flat(row) for row in rows)
        self._rows = [row["tensor"] if isinstance(row, dict) and "tensor" in row else None
                      for row in rows]  # fmt: skip
        self._encoded = layout["args"]
        self._constants = [None if isinstance(row, dict) and "tensor" in row else _plain(row)
                           for row in rows] if self._simple else []  # fmt: skip
        self.log: Any = None

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Outputs of one call, as a sequence."""
        args = self._arguments(inputs)
        if self.log is None:
            result = self._function(*args)
        else:
            with self.log:
                result = self._function(*args)
        if isinstance(result, torch.Tensor):
            return (result,)
        if not isinstance(result, list | tuple) or not all(
            isinstance(t, torch.Tensor) for t in result
        ):
            raise TypeError(f"it returned {type(result).__name__}, not tensors")
        return result

    def _arguments(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        if self._simple:
            args = [
                constant if at is None else inputs[at]
                for at, constant in zip(self._rows, self._constants, strict=True)
            ]
        else:
            args = list(decode(self._encoded, inputs.__getitem__, _dtype))
        return [*args, *inputs[self._given :]] if self._state else args


def _flat(row: Any) -> bool:
    return not isinstance(row, dict) or "tensor" in row or set(row) <= {"float", "dtype"}


def _plain(row: Any) -> Any:
    return decode(row, dtype=_dtype)


def _dtype(name: str) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise Unfit(f"there is no dtype {name}")
    return found


def load_callee(
    start: dict[str, Any], device: torch.device, extensions: Extensions
) -> tuple[Callee, Any]:
    """The candidate, and its module where it is one (None: a function).

    Args:
        start: ``source``, ``kind``, ``entry`` and ``layout`` of the file.
        device: where its weights go.
        extensions: installed.

    Raises:
        NeedsBuild: something has to be compiled first.
        Unfit: it cannot be called as the reference is.
    """
    kind, layout = start["kind"], start["layout"]
    if kind == "launch":
        module = _import(start["libraries"][start["launch"]])
        function = getattr(module, "launch", None)
        if function is None:
            raise Unfit("it binds no launch")
        return Callee(function, layout, _wants_state(function, layout)), None
    module = _execute(start["text"], start["source"])
    if kind == "model":
        torch.manual_seed(layout["seed"])
        made = getattr(module, start["entry"])(*decode(layout["init"], dtype=_dtype))
        made = made.to(device).train(layout["training"])
        return Callee(made, layout, False), made
    function = _function(module, start, extensions)
    return Callee(function, layout, _wants_state(function, layout)), None


def _function(
    module: ModuleType, start: dict[str, Any], extensions: Extensions
) -> Callable[..., Any]:
    if start["kind"] == "function":
        return getattr(module, start["entry"])
    built = [(m, name) for m, names in extensions.loaded for name in names]
    if len(built) != 1:
        names = ", ".join(name for _, name in built) or "none"
        raise Unfit(f"it must build one function by load_inline, or have a ModelNew; found {names}")
    return getattr(built[0][0], built[0][1])


def _execute(text: str, filename: str) -> ModuleType:
    """The file's module; its name is that of the copy that the judge made of it."""
    module = ModuleType("kforge_foreign")
    module.__file__ = filename
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    sys.modules["kforge_foreign"] = module
    exec(compile(text, filename, "exec"), module.__dict__)  # noqa: S102 - what this process is for
    return module


def _wants_state(function: Callable[..., Any], layout: dict[str, Any]) -> bool:
    """Whether a function takes the reference's weights after its arguments."""
    given, state = len(layout["args"]["tuple"]), len(layout["state"])
    count = _parameters(function)
    if count is None or count == given:
        return False
    if count == given + state:
        return True
    raise Unfit(
        f"{getattr(function, '__name__', 'it')} takes {count} arguments, where the reference is "
        f"called with {given} and has {state} weights"
    )


def _parameters(function: Callable[..., Any]) -> int | None:
    """How many arguments a function takes; None where that cannot be told."""
    try:
        parameters = inspect.signature(function).parameters.values()
        required = [p for p in parameters if p.default is p.empty]
        return None if len(required) < len(parameters) else len(required)
    except (TypeError, ValueError):
        text = (function.__doc__ or "").partition("(")[2].partition(") ->")[0]
        return text.count(": ") or None
