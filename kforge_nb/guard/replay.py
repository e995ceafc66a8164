"""The rests with CUDA graphs: one graph of a model, recorded once and replayed on every call.

Torch's own ``cudagraphs`` backend copies every weight on every call where Dynamo lifts weights to
inputs (it takes none of them as fixed), keeps its recordings for each thread apart, and overwrites
outputs that the user still holds. Here weights are read where they lie, and recorded anew when they
move; inputs are copied in and outputs copied out, so a held output never changes; and each call
looks at the kill switch first. Where a graph cannot be recorded it runs as it is, with the reason.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.guard import launch
from kforge_nb.guard.handout import Handout, buffer_like, flat, span, storage_key
from kforge_nb.targets.dataflow import analyse
from kforge_nb.targets.operators import describe
from kforge_nb.workload.collection import quiet_gc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import fx

__all__ = ["Lane", "Replay", "why_not_recorded"]

WARM_UPS = 3
"""Runs before recording: lazy set-up, autotuning and the kernels' shadow checks are over then."""
MOST_RECORDINGS = 32
CUDA = "cuda"
"""Kind of the devices whose graphs can be recorded."""


class Lane:
    """The recordings of one installation: one memory pool, and one replay at a time.

    Replays overwrite each other's memory, which is safe as outputs are copied out at once and a
    replay on another stream waits for the one before.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._pool: Any = None
        self._users: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        self._side: dict[int, torch.cuda.Stream] = {}
        self._last: torch.cuda.Stream | None = None

    def pool(self, graph: torch.cuda.CUDAGraph) -> Any:
        """The handle of the memory pool for one more graph.

        A pool is gone with its last graph, and its handle must not be used again.
        """
        if not self._users:
            self._pool = torch.cuda.graph_pool_handle()
        self._users.add(graph)
        return self._pool

    def abandon(self, device: torch.device) -> None:
        """After a recording that failed: let the allocator know that it is over."""
        ended = getattr(torch._C, "_cuda_endAllocateToPool", None)
        if ended is not None and self._pool is not None:
            with suppress(RuntimeError):  # where torch has ended it by itself
                ended(device.index or 0, self._pool)

    def side(self, device: torch.device) -> torch.cuda.Stream:
        """The stream on which a device's graphs are warmed up and recorded."""
        index = device.index or 0
        if index not in self._side:
            self._side[index] = torch.cuda.Stream(device)
        return self._side[index]

    def order(self, device: torch.device) -> None:
        """Let the current stream wait for the last replay, where that ran on another one."""
        now = torch.cuda.current_stream(device)
        if self._last is not None and self._last != now:
            now.wait_stream(self._last)
        self._last = now

    def drain(self) -> None:
        """Wait for the last replay; only then may the memory that it works on be given back."""
        if self._last is not None:
            self._last.synchronize()


def why_not_recorded(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """Why this graph can be no CUDA graph, in words; empty if it seems it can.

    All tensors must lie on one CUDA device: what the CPU holds would be read once, at recording.
    """
    if any(not isinstance(value, torch.Tensor) for value in example_inputs):
        return "its sizes change from call to call, and a CUDA graph has fixed ones"
    if any(_own_weight(gm, node) for node in gm.graph.nodes):
        return (
            "its weights are not among its inputs, where a recording would see them move (is "
            "torch._dynamo.config.inline_inbuilt_nn_modules off?)"
        )
    devices = {str(value.device) for value in example_inputs}
    for node in gm.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            devices.add(str(value.device))
    if not any(device.startswith(CUDA) for device in devices):
        return "it has no tensor on a CUDA device"
    if len(devices) > 1:
        return f"its tensors lie on {' and '.join(sorted(devices))}, not on one CUDA device"
    return ""


def _own_weight(gm: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node reads a tensor that the graph itself holds, by itself or in a module."""
    if node.op == "call_module":
        return True
    if node.op != "get_attr":
        return False
    value: Any = gm
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    return isinstance(value, torch.Tensor)


class Replay:
    """A graph as a CUDA graph; called like the graph itself, with the same results.

    Args:
        run: what is recorded, and what runs where there is no recording.
        gm: the graph that ``run`` computes.
        example_inputs: its inputs at compile time; parameters and what else Dynamo knows as the
            module's own tensors are read at their addresses.
        lane: shared by all graphs of one installation.

    ``why_not`` says why it is not recorded, empty if it is or may still be; ``replays`` counts.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        lane: Lane,
    ) -> None:
        self.run = run
        self.lane = lane
        self.why_not = why_not_recorded(gm, example_inputs)
        self.replays = 0
        self._renewed = 0
        self._found: _Recording | None = None
        if self.why_not:
            return
        self._device = example_inputs[0].device
        self._pinned = [i for i, value in enumerate(example_inputs) if _stays(value)]
        self._is_weight = [isinstance(v, torch.nn.Parameter) for v in example_inputs]
        self._kernels = _kernels_of(gm)
        self._written = _written(gm, example_inputs)

    @property
    def recorded(self) -> bool:
        """Whether calls are replays now."""
        return self._found is not None

    def release(self) -> None:
        """Drop the recording and its memory; the next call records anew."""
        with self.lane.lock:
            self._drop()

    def release_if_moved(self) -> None:
        """Drop the recording where a weight lies elsewhere by now, as after ``half()``."""
        with self.lane.lock:
            if self._found is not None and self._found.left():
                self._drop()

    def _drop(self) -> None:
        if self._found is not None:
            self.lane.drain()
            self._found = None

    def __call__(self, *args: Any) -> Any:
        """The graph's outputs on these inputs; records first where that is needed."""
        if self.why_not or self._held_back(args):
            return self.run(*args)
        with self.lane.lock, torch.cuda.device(self._device):
            found = self._current(args)
            if found is None:
                return self.run(*args)
            self.lane.order(self._device)
            self.replays += 1
            return found.replay(args)

    def _held_back(self, args: Sequence[Any]) -> bool:
        """Whether this call must run plain: kill switch, gradients, somebody's own recording."""
        if self._kernels and not launch.running():
            return True
        if torch.is_grad_enabled() and any(t.requires_grad for t in args):
            return True
        if self._written and _overlap(args, self._written, self._pinned):
            return True
        return bool(torch.cuda.is_current_stream_capturing())

    def _current(self, args: Sequence[Any]) -> _Recording | None:
        """The recording that fits, made if need be; None where there can be none."""
        notes = [kernel.note for kernel in self._kernels]
        if self._found is not None:
            moved = self._found.moved(args)
            if not moved and self._found.notes == notes:
                return self._found
            self._renewed += 1
            loose = {i for i in moved if not self._is_weight[i]}
            self._pinned = [i for i in self._pinned if i not in loose]
            self._drop()
        if self._renewed >= MOST_RECORDINGS:
            self.why_not = f"its weights moved more than {MOST_RECORDINGS} times"
            return None
        try:
            with quiet_gc():  # a collection might free what belongs to another recording
                self._found = _Recording(self.run, args, self._pinned, self._written, self.lane)
        except Exception as problem:  # noqa: BLE001 (the graph itself runs as it is)
            self.why_not = _words(problem)
            return None
        self._found.notes = [kernel.note for kernel in self._kernels]
        return self._found


class _Recording:
    """One recorded run: buffers for inputs, the CUDA graph, and how outputs are handed out."""

    def __init__(
        self,
        run: Callable[..., Any],
        args: Sequence[torch.Tensor],
        pinned: Sequence[int],
        written: frozenset[int],
        lane: Lane,
    ) -> None:
        self.notes: list[str] = []
        fixed = set(pinned)
        self._copied = [i for i in range(len(args)) if i not in fixed]
        self._back = [i for i in self._copied if i in written]
        self._pinned = list(pinned)
        self._addresses = [args[i].data_ptr() for i in self._pinned]
        device = args[0].device
        with torch.inference_mode(False), torch.no_grad():
            self._inputs = [t if i in fixed else buffer_like(t) for i, t in enumerate(args)]
            kept = {i: self._inputs[i].clone() for i in written}
        self._rows = frozenset(i for i in self._copied if span(args[i]) < args[i].numel())
        state = torch.cuda.get_rng_state(device)
        try:
            self._warm_up(run, lane.side(device))
        finally:
            torch.cuda.set_rng_state(state, device)
            with torch.no_grad():
                for i, value in kept.items():
                    self._inputs[i].copy_(value)
        self.graph = torch.cuda.CUDAGraph()
        try:
            outputs = self._record(run, lane, lane.side(device))
        except Exception:
            lane.abandon(device)
            _mend_generators(lane.side(device))
            raise
        self._handout = Handout(outputs, self._inputs)

    def _warm_up(self, run: Callable[..., Any], side: torch.cuda.Stream) -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), _no_cached_casts():
            for _ in range(WARM_UPS):
                run(*self._inputs)
        torch.cuda.current_stream().wait_stream(side)

    def _record(self, run: Callable[..., Any], lane: Lane, side: torch.cuda.Stream) -> list[Any]:
        torch.cuda.synchronize()
        with _own_workspaces(), torch.cuda.stream(side), _no_cached_casts():
            pool = lane.pool(self.graph)
            self.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                outputs = run(*self._inputs)
            finally:
                self.graph.capture_end()
        if not isinstance(outputs, tuple | list):
            raise TypeError(f"the graph returns {type(outputs).__name__}, not a tuple")
        return list(outputs)

    def moved(self, args: Sequence[torch.Tensor]) -> list[int]:
        """Pinned inputs that lie elsewhere now."""
        now = [args[i].data_ptr() for i in self._pinned]
        if now == self._addresses:
            return []
        pairs = zip(self._pinned, now, self._addresses, strict=True)
        return [i for i, new, old in pairs if new != old]

    def left(self) -> bool:
        """Whether a weight lies elsewhere by now, or on another device."""
        return bool(self.moved(self._inputs))

    def replay(self, args: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Copy in, replay, copy out, on the current stream."""
        with torch.no_grad():
            for i in self._copied:
                self._copy_in(i, args[i])
            self.graph.replay()
            for i in self._back:
                args[i].copy_(self._inputs[i])
            return self._handout.make(args)

    def _copy_in(self, i: int, value: torch.Tensor) -> None:
        if i in self._rows:  # elements that share memory cannot be written one by one
            flat(self._inputs[i]).copy_(flat(value))
        else:
            self._inputs[i].copy_(value)


def _mend_generators(side: torch.cuda.Stream) -> None:
    """After a recording that failed torch takes the random generators for still being recorded.

    Every random number on the GPU would be an error from then on; a recording that ends well, of
    next to nothing, puts that right.
    """
    torch.cuda.synchronize()
    spare = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        tensor = torch.zeros(1, device=side.device)
        spare.capture_begin(capture_error_mode="thread_local")
        tensor.add_(1)
        spare.capture_end()


def _stays(value: torch.Tensor) -> bool:
    """Whether a graph's input is the module's own, so that its address is worth recording."""
    known = getattr(value, "_dynamo_static_input_type", None) is not None
    return known or isinstance(value, torch.nn.Parameter)


def _kernels_of(gm: fx.GraphModule) -> list[launch.Kernel]:
    """The kernels that a graph launches."""
    found = {}
    for node in gm.graph.nodes:
        if node.op == "call_function" and str(node.target) == "kforge.launch.default":
            found[node.args[1]] = launch.kernel(node.args[1])
    return list(found.values())


def _written(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> frozenset[int]:
    """Places of the inputs that the graph writes to."""
    if not any(_may_write(node) for node in gm.graph.nodes):
        return frozenset()
    written = set(analyse(gm, example_inputs).mutated_placeholders())
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return frozenset(i for i, node in enumerate(placeholders) if node in written)


def _may_write(node: fx.Node) -> bool:
    if node.op not in ("call_function", "call_method", "call_module"):
        return False
    if str(node.target) == "kforge.launch.default":
        return False
    operator = describe(node)
    return operator.in_place or operator.kind in ("write", "opaque", "barrier")


def _overlap(args: Sequence[torch.Tensor], written: frozenset[int], pinned: Sequence[int]) -> bool:
    """Whether an input that is written to shares its memory with another, and one is a copy."""
    fixed = set(pinned)
    keys = [storage_key(value) for value in args]
    return any(
        keys[i] == key and i != j and not (i in fixed and j in fixed)
        for i in written
        for j, key in enumerate(keys)
    )


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """A recording's matrix products work in memory of its own pool.

    torch keeps one cuBLAS workspace for each stream, and gives them all back whenever Inductor
    records a CUDA graph. A recording that worked in one that was there before would from then on
    write into memory that is somebody else's, or nobody's. So none is there when it begins, and
    none of its own stays for others.
    """
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    try:
        yield
    finally:
        if clear is not None:
            clear()


@contextmanager
def _no_cached_casts() -> Iterator[None]:
    """Within an autocast block torch casts a weight once and keeps the copy until the block ends.

    A recording that read such a copy would read freed memory, or an older weight, ever after. So
    the recorded run casts by itself, and leaves none of its own casts behind.
    """
    before = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(before)


def _words(problem: Exception) -> str:
    """Why recording failed, in one line."""
    first = (str(problem).strip().splitlines() or [""])[0][:200]
    if isinstance(problem, torch.OutOfMemoryError):
        torch.cuda.empty_cache()
        return f"the GPU's memory does not suffice for a recording of its own ({first})"
    return f"recording it failed ({type(problem).__name__}: {first})"
