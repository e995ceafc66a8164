"""The callable that stands in for a module's call: a compile of its own, and a way back.

Each installation compiles a fresh copy of a small entry function's code object. Dynamo's cache and
its recompile limit belong to code objects, so an installation shares neither with the user's own
``torch.compile``, nor with other instances of the class, nor with earlier installations: stale code
cannot run, twenty applies do not reach the limit of eight, and undo leaves nothing behind. (Torch
2.13 has ``isolate_recompiles`` for this; torch 2.11 has nothing, and ``reset_code`` drops the
user's compiled code as well.) Only frames next to a graph break are cached by torch on the module's
own code, where torch tells backends apart by identity, so these are never stale either; ``release``
drops them, so that they do not fill up the limit.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.exc import TorchDynamoException
from torch.utils.hooks import RemovableHandle

from kforge_nb.guard.missed import HOOKED, UNCOMPILED
from kforge_nb.guard.policy import FIXED_SHAPES
from kforge_nb.workload.fixed_sizes import compiled

if TYPE_CHECKING:
    from collections.abc import Callable

    from kforge_nb.guard.apply import Applied
    from kforge_nb.guard.backend import Backend

__all__ = ["GuardedCall", "fresh_entry", "hook_counts"]

MAX_FAILURES = 2
_GLOBAL_HOOKS: tuple[dict[int, Any], ...] = (
    torch.nn.modules.module._global_forward_hooks,
    torch.nn.modules.module._global_forward_pre_hooks,
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _entry(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return module._call_impl(*args, **kwargs)


def fresh_entry(name: str) -> types.FunctionType:
    """A copy of ``_entry`` with a code object that nothing else shares."""
    code = _entry.__code__.replace(co_name=f"kforge_{name}")
    return types.FunctionType(code, _entry.__globals__, f"kforge_{name}")


def hook_counts(module: torch.nn.Module) -> dict[str, int]:
    """How many hooks each submodule has, those with any; hooks on all modules are under ``*``."""
    found = {"*": count} if (count := sum(map(len, _GLOBAL_HOOKS))) else {}
    for path, child in module.named_modules():
        count = sum(len(getattr(child, hooks, ())) for hooks in _HOOKS)
        if count:
            found[path] = count
    return found


def _traced() -> bool:
    """Whether somebody records this call: ``torch.jit.trace``, ``make_fx`` or a fake run."""
    mode, key = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey
    return (
        torch._C._get_tracing_state() is not None
        or mode(key.PROXY) is not None
        or mode(key.FAKE) is not None
    )


class GuardedCall:
    """Calls a module through the backend; a drop-in for ``module._compiled_call_impl``.

    ``compiled`` counts calls that reached at least one compiled graph, ``bypassed`` those that did
    not (recompile limit, nothing to compile), ``hooked`` those that ran plain because hooks were
    added after installation, which compiled code would not call. ``grown`` says that more shapes
    came than are compiled one by one, so that symbolic graphs took over; ``untraceable`` why Dynamo
    is no longer tried. ``places`` is how often one call meets each kernel's target, as far as calls
    that compiled something have shown. ``before`` is what stood in the module when ``owner``
    installed this call.
    """

    def __init__(self, module: torch.nn.Module, backend: Backend, dynamic: bool | None) -> None:
        self.module = module
        self.backend = backend
        self.owner: Applied | None = None
        self.before: Any = None
        self.codes: list[types.CodeType] = []
        self._forward = type(module).forward
        self.call = self._compile(dynamic)
        self.calls = self.compiled = self.bypassed = self.hooked = self.compiles = 0
        self.failures = 0
        self.grown, self.untraceable = False, ""
        self.places: dict[str, int] = {}
        backend.users.add(self)
        self._hooks = hook_counts(module)
        self._hook_id = RemovableHandle.next_id
        self._new_hooks = False

    def _compile(self, dynamic: bool | None) -> Callable[..., Any]:
        self.dynamic = dynamic
        entry = fresh_entry(type(self.module).__name__)
        self.codes.append(entry.__code__)
        return compiled(entry, self.backend, dynamic)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on these arguments; under export and tracing the module's own call."""
        if torch.compiler.is_compiling() or _traced():
            return self.module._call_impl(*args, **kwargs)
        self.calls += 1
        if type(self.module).forward is not self._forward:
            self._forward_replaced()
        if RemovableHandle.next_id != self._hook_id or self._new_hooks:
            self._look_for_hooks()
        if self._new_hooks:
            self.hooked += 1
            return self.module._call_impl(*args, **kwargs)
        backend = self.backend
        ran, seen = backend.calls, len(backend.graphs)
        if self.untraceable:
            self.bypassed += 1
            return self.module._call_impl(*args, **kwargs)
        try:
            result = self.call(self.module, args, kwargs)
        except TorchDynamoException as problem:
            if backend.calls != ran:
                raise  # a part has run, and may have changed something
            return self._plain(problem, args, kwargs)
        if backend.calls == ran:
            self.bypassed += 1
        else:
            self.compiled += 1
        if len(backend.graphs) != seen:
            self._compiled_again(seen)
        return result

    def _plain(self, problem: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Dynamo failed before anything ran: eager's result, or eager's own exception."""
        result = self.module._call_impl(*args, **kwargs)
        self.bypassed += 1
        self.failures += 1
        if self.failures >= MAX_FAILURES:
            lines = str(problem).strip().splitlines() or [""]
            self.untraceable = f"{type(problem).__name__}: {lines[0][:200]}"
        return result

    def went_past(self, fingerprint: str) -> dict[str, int]:
        """How often a kernel's original ran because calls ran plain, by reason.

        Where nothing was ever compiled, so that its places are not known, a call counts as one.
        """
        places = self.places.get(fingerprint, 0) if self.compiles else 1
        return {UNCOMPILED: self.bypassed * places, HOOKED: self.hooked * places}

    def release(self) -> None:
        """Drop compiled code that sits on code objects of the module itself."""
        for code in self.backend.codes - {*self.codes}:
            torch._dynamo.reset_code(code)  # type: ignore[attr-defined]

    def _compiled_again(self, seen: int) -> None:
        self.compiles += 1
        for fingerprint, count in self.backend.places(seen).items():
            self.places[fingerprint] = max(count, self.places.get(fingerprint, 0))
        if self.dynamic is False and self.compiles > FIXED_SHAPES:
            self.grown = True
            self.call = self._compile(None)

    def _forward_replaced(self) -> None:
        """Dynamo reads a class's method once, so another one needs another compile."""
        self._forward = type(self.module).forward
        self.call = self._compile(self.dynamic)

    def _look_for_hooks(self) -> None:
        """Hooks are numbered for the whole process, so a new number is a reason to look."""
        self._hook_id = RemovableHandle.next_id
        self._new_hooks = hook_counts(self.module) != self._hooks

    @property
    def new_hooks(self) -> list[str]:
        """Paths of submodules whose hooks changed since installation."""
        now = hook_counts(self.module)
        return sorted(p for p in now.keys() | self._hooks if now.get(p) != self._hooks.get(p))
