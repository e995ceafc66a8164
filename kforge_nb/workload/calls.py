"""One recorded module call: how to run it again without changing anybody's state."""

from __future__ import annotations

import copy
import logging
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from kforge_nb.workload.copies import Copier

__all__ = [
    "GradState",
    "ModuleCall",
    "RandomState",
    "WrittenState",
    "fresh",
    "signature",
    "snapshot",
    "tensors_of",
    "versions",
]

_DEVICES = ("cpu", "cuda")
_DEEPEST = 4
_NOT_ENTERED = (
    nn.Module,
    nn.Parameter,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    logging.Logger,
    logging.Handler,
)


@dataclass(frozen=True, slots=True)
class GradState:
    """The thread-local switches under which a call was made."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    autocast_cache: bool = True

    @classmethod
    def current(cls) -> GradState:
        """The switches of this thread, now."""
        autocast = tuple(
            (d, torch.get_autocast_dtype(d)) for d in _DEVICES if torch.is_autocast_enabled(d)
        )
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            autocast,
            torch.is_autocast_cache_enabled(),
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Run the body under these switches, whatever this thread has set."""
        active = dict(self.autocast)
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            if not self.inference:
                stack.enter_context(torch.set_grad_enabled(self.grad))
            for device in _DEVICES:
                if device in active or torch.is_autocast_enabled(device):
                    stack.enter_context(
                        torch.autocast(
                            device,
                            dtype=active.get(device),
                            enabled=device in active,
                            cache_enabled=self.autocast_cache,
                        )
                    )
            yield


@dataclass(frozen=True, slots=True, eq=False)
class RandomState:
    """States of torch's default generators: the CPU's, and those of the GPUs that a call uses."""

    cpu: torch.Tensor
    cuda: dict[int, torch.Tensor]

    @classmethod
    def of(cls, tensors: Iterable[torch.Tensor]) -> RandomState:
        """The states now; GPUs are those of the tensors (none while a CUDA graph is captured)."""
        used = {t.device.index or 0 for t in tensors if t.is_cuda}
        if used and torch.cuda.is_current_stream_capturing():
            used = set()
        cuda = {index: torch.cuda.get_rng_state(index) for index in sorted(used)}
        return cls(torch.get_rng_state(), cuda)

    def moved(self) -> bool:
        """Whether a generator has drawn since."""
        now = (torch.get_rng_state(), *(torch.cuda.get_rng_state(i) for i in self.cuda))
        before = (self.cpu, *self.cuda.values())
        return any(not torch.equal(a, b) for a, b in zip(before, now, strict=True))

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Run the body with these states; afterwards the generators are as they were before."""
        now, now_cuda = torch.get_rng_state(), {i: torch.cuda.get_rng_state(i) for i in self.cuda}
        self._set(self.cpu, self.cuda)
        try:
            yield
        finally:
            self._set(now, now_cuda)

    @staticmethod
    def _set(cpu: torch.Tensor, cuda: Mapping[int, torch.Tensor]) -> None:
        torch.set_rng_state(cpu)
        for index, state in cuda.items():
            torch.cuda.set_rng_state(state, index)


@dataclass(slots=True, eq=False)
class ModuleCall:
    """An outermost call of ``module`` with the arguments of its first occurrence.

    ``count`` is how often the workload made a call with this signature. The arguments are kept as
    they were when the call began. ``writes`` says that the module wrote to a tensor it was given,
    ``written_state`` which of its own buffers and parameters it wrote to: a replay puts them back.
    ``random`` holds the states of the random number generators when the call began: each replay
    draws the same numbers, and the user's generators are as if it had not been. It is None where
    the call drew none: putting generators back would undo what other threads draw meanwhile.
    """

    module: nn.Module
    module_name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grad_state: GradState
    count: int = 1
    writes: bool = False
    written_state: list[torch.Tensor] = field(default_factory=list)
    random: RandomState | None = None

    def fresh_args(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments for one more run: containers and stateful objects are copies of their own.

        Plain tensors are shared between runs unless the module was seen to write to one.
        """
        args, kwargs = fresh((self.args, self.kwargs), tensors=self.writes)
        return args, kwargs

    def run(self, callable: Callable[..., Any] | None = None) -> Any:
        """Call the module, or ``callable`` in its place, on fresh arguments under the same state.

        Raises whatever the call raises.
        """
        with self.grad_state.restored(), self.state_kept():
            args, kwargs = self.fresh_args()
            return (callable if callable is not None else self.module)(*args, **kwargs)

    @contextmanager
    def state_kept(self) -> Iterator[None]:
        """Put back, afterwards, what the module is known to write to, and the random generators."""
        before = [t.detach().clone() for t in self.written_state]
        drawn = self.random.replayed() if self.random is not None else nullcontext()
        try:
            with drawn:
                yield
        finally:
            with torch.no_grad():
                for tensor, value in zip(self.written_state, before, strict=True):
                    tensor.copy_(value)


class WrittenState:
    """Which parameters and buffers of a module are written to between two moments.

    Inference tensors count no versions: their buffers are compared with copies. That a parameter is
    one (a model made or loaded under ``inference_mode``) is common, that one is written to is not.
    """

    def __init__(self, module: nn.Module) -> None:
        state = [*module.parameters(), *module.buffers()]
        self._versions = [(t, t._version) for t in state if not t.is_inference()]
        self._values = [(t, t.detach().clone()) for t in module.buffers() if t.is_inference()]

    def written(self) -> list[torch.Tensor]:
        """Those written to since this object was made."""
        counted = [t for t, version in self._versions if t._version != version]
        return counted + [t for t, value in self._values if not _same_bits(t, value)]


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equality in which a NaN is like itself."""
    return torch.equal(one.nan_to_num(), other.nan_to_num()) and torch.equal(
        one.isnan(), other.isnan()
    )


def snapshot(value: Any) -> Any:
    """A copy of arguments as they are now, tensors included; parameters are kept as they are."""
    return fresh(value, tensors=True)


def fresh(value: Any, *, tensors: bool = False) -> Any:
    """A copy of what a call may change: containers by element, stateful objects deeply.

    Modules and parameters are passed as they are; tensors at the surface (also inside lists,
    tuples and dicts) too, unless ``tensors``. Objects and storages that were shared stay shared.
    """
    return _fresh(value, {}, Copier(_surface(value)) if tensors else None)


def _fresh(value: Any, memo: dict[int, Any], copier: Copier | None) -> Any:
    if _plain(value) or isinstance(value, nn.Module | nn.Parameter):
        return value
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, torch.Tensor):
        result: Any = value if copier is None else copier.copy(value)
    elif type(value) is tuple:
        result = tuple(_fresh(v, memo, copier) for v in value)
    elif type(value) is list:
        result = [_fresh(v, memo, copier) for v in value]
    elif type(value) is dict:
        result = {k: _fresh(v, memo, copier) for k, v in value.items()}
    else:
        result = _deep(value)
    memo[id(value)] = result
    return result


def _surface(value: Any) -> Iterator[torch.Tensor]:
    """Tensors that are not inside a stateful object, parameters left out."""
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        yield value
    elif type(value) in (tuple, list):
        for item in value:
            yield from _surface(item)
    elif type(value) is dict:
        yield from _surface(list(value.values()))


def _deep(value: Any) -> Any:
    """A deep copy that shares modules; an object that refuses to be copied is passed as it is."""
    memo: dict[int, Any] = {
        id(item): item
        for item in (vars(value).values() if hasattr(value, "__dict__") else ())
        if isinstance(item, nn.Module)
    }
    try:
        for tensor in _tensors_inside(value, set()):
            with torch.inference_mode(tensor.is_inference()):  # see Copier.copy
                copy.deepcopy(tensor, memo)
        return copy.deepcopy(value, memo)
    except Exception:  # noqa: BLE001 - locks, generators, handles: there is no copy to be had
        return value


def _tensors_inside(value: Any, seen: set[int], depth: int = 0) -> Iterator[torch.Tensor]:
    """Plain tensors in the containers and attributes of an object, each once.

    None of modules, and none of what every object of a program can be reached from: an argument may
    hold a logger or a module of Python. ``depth`` counts objects within objects.
    """
    if id(value) in seen or _plain(value) or isinstance(value, _NOT_ENTERED):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in list(value.values()):
            yield from _tensors_inside(item, seen, depth)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _tensors_inside(item, seen, depth)
    elif hasattr(value, "__dict__") and depth < _DEEPEST:
        yield from _tensors_inside(vars(value), seen, depth + 1)


def tensors_of(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[torch.Tensor]:
    """Parameters and buffers of a module, and the tensors at the surface of its arguments."""
    yield from module.parameters()
    yield from module.buffers()
    yield from _surface((args, kwargs))


def versions(value: Any) -> tuple[int, ...]:
    """Version counters of the tensors at the surface; a change means that one was written to."""
    return tuple(-1 if t.is_inference() else t._version for t in _surface(value))


def _plain(value: Any) -> bool:
    return value is None or isinstance(
        value, int | float | complex | str | bytes | torch.dtype | torch.device | torch.Size | type
    )


def signature(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A hashable description of arguments: tensors by metadata, other values by kind and value."""
    return tuple(_sign(a, 0) for a in args), tuple((k, _sign(kwargs[k], 0)) for k in sorted(kwargs))


def _sign(value: Any, depth: int) -> Any:
    if isinstance(value, torch.Tensor) and value.is_nested:  # sizes are tensors, or symbols
        return ("nested", value.numel(), value.dtype, str(value.device), str(value.layout))
    if isinstance(value, torch.Tensor):
        return (
            "tensor", tuple(value.shape), tuple(value.stride()) if _strided(value) else (),
            value.dtype, str(value.device), value.requires_grad,
        )  # fmt: skip
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple(_sign(v, depth + 1) for v in value))
    if isinstance(value, Mapping):
        return ("map", tuple((str(k), _sign(v, depth + 1)) for k, v in value.items()))
    if isinstance(value, float) and depth == 0:
        return ("float", value)
    if _plain(value):
        return (type(value).__name__, value)
    if depth < 4 and hasattr(value, "__dict__") and not isinstance(value, nn.Module):
        items = sorted(vars(value).items())
        return (type(value).__name__, tuple((k, _sign(v, depth + 1)) for k, v in items))
    return (type(value).__name__, id(value) if isinstance(value, nn.Module) else "")


def _strided(value: torch.Tensor) -> bool:
    return value.layout is torch.strided
