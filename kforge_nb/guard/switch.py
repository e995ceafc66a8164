"""One Dynamo compile, many variants: a backend whose compiled graphs can be switched at run time.

The in-model measurement needs the same call with no kernels, with all, with all but one, and with
each occurrence timed in place. Compiling each anew would take minutes; here Dynamo compiles once,
every graph becomes a ``Site``, and the variant is chosen by a field of the backend. Other rests
take these graphs as they are, for to trace a model that Dynamo unrolls takes a minute: one that
records CUDA graphs over what another runs (``recorded``), and one that compiles them (``fused``).
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from kforge_nb.errors import KForgeError
from kforge_nb.guard import launch
from kforge_nb.guard.backend import gradient_needed, install
from kforge_nb.guard.laid_out import LAYOUT, turned, wants_layout
from kforge_nb.guard.marks import as_dynamos
from kforge_nb.guard.policy import rest_compiler
from kforge_nb.workload.calls import GradState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kforge_nb.guard.accepted import Accepted

__all__ = ["Clock", "Site", "SwitchBackend"]

_LAUNCH = "kforge::launch"
_GRADIENT = "a gradient is needed"


class Clock:
    """Times each launch, or the original in its place, while a call runs.

    On a GPU a pair of events in the stream gives the time from the end of what came before to the
    end of the launch: device time where the device is behind, the host's where the host is.
    """

    def __init__(self) -> None:
        self.kernels = True
        self._ns: defaultdict[str, float] = defaultdict(float)
        self._pending: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def restart(self, kernels: bool) -> None:
        """Forget the times and choose what runs: kernels or originals."""
        self.kernels = kernels
        self._ns.clear()
        self._pending.clear()

    def read(self) -> dict[str, float]:
        """Nanoseconds by fingerprint since the last restart; waits for the device."""
        for key, start, end in self._pending:
            end.synchronize()
            self._ns[key] += 1e6 * start.elapsed_time(end)
        self._pending.clear()
        return dict(self._ns)

    def timed(self, handle: int) -> Callable[..., Any]:
        """The function that stands in for the launches of one kernel."""
        found = launch.kernel(handle)
        op, original = torch.ops.kforge.launch.default, found.reference.forward
        key, device = found.fingerprint, found.outputs[0].device
        ns, pending = self._ns, self._pending

        def kforge_timed(inputs: list[torch.Tensor], handle: int) -> Sequence[torch.Tensor]:
            start = time.perf_counter_ns()
            out = op(inputs, handle) if self.kernels else original(*inputs)
            ns[key] += time.perf_counter_ns() - start
            return out

        def kforge_timed_by_events(
            inputs: list[torch.Tensor], handle: int
        ) -> Sequence[torch.Tensor]:
            with torch.cuda.device(device):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                out = op(inputs, handle) if self.kernels else original(*inputs)
                end.record()
            pending.append((key, start, end))
            return out

        on_gpu = device.startswith("cuda")
        return kforge_timed_by_events if on_gpu else kforge_timed


class Site:
    """One graph with all its variants; a variant is the set of fingerprints that run kernels.

    Where kernels were searched in graphs laid out channels-last, every variant with a kernel of the
    model is laid out so, also in graphs without any; ``LAYOUT`` stands for that among them.
    """

    def __init__(self, owner: SwitchBackend, gm: fx.GraphModule, example_inputs: list[Any]) -> None:
        self.owner = owner
        self.gm = gm
        self.example_inputs = example_inputs
        self.replaced: dict[str, int] = {}
        self.problem = ""
        self.state = GradState.current()
        self.written: set[int] | None = None  # places of inputs written to, once looked at
        self.rewritten = self.laid = gm
        if not gradient_needed(gm, example_inputs):
            try:
                if wants_layout(owner.accepted[f] for f in owner.handles):
                    self.laid = turned(gm, example_inputs) or gm
                self.rewritten, self.replaced = install(
                    self.laid, example_inputs, owner.accepted, owner.handles
                )
            except Exception as problem:  # noqa: BLE001 (a reason in the report, not the end)
                self.problem = f"cutting failed: {type(problem).__name__}: {problem}"
        else:
            self.problem = _GRADIENT
        self._built: dict[frozenset[str], Callable[..., Any]] = {}
        self._timed: Callable[..., Any] | None = None

    def run(self, *args: Any) -> Any:
        """The graph on these arguments, in the variant that the acting backend has chosen."""
        owner = self.owner.acting
        site = owner.site_of(self)
        if owner.spy is not None:
            return owner.spy(site, args)
        if owner.timing:
            return site.timed(*args)
        return site.variant(owner.enabled)(*args)

    def present(self, enabled: frozenset[str]) -> frozenset[str]:
        """Those of these targets that occur in this graph, and the layout that they ask for."""
        own = enabled.intersection(self.replaced)
        return own | {LAYOUT} if enabled and self.laid is not self.gm else own

    def graph(self, enabled: frozenset[str]) -> fx.GraphModule:
        """The graph in which only these targets are launches; the others run their original."""
        base = self.laid if enabled else self.gm
        enabled = enabled.intersection(self.replaced)
        if not enabled:
            return base
        if enabled == self.replaced.keys():
            return self.rewritten
        handles = self.owner.handles
        others = {handles[f]: _original(handles[f]) for f in self.replaced if f not in enabled}
        return _retarget(self.rewritten, others)

    def only(self, enabled: frozenset[str]) -> fx.GraphModule:
        """The graph as a backend that has only these kernels makes it: no original stands apart."""
        here = enabled.intersection(self.replaced)
        if not here or here == self.replaced.keys():
            return self.graph(enabled)
        handles = {f: handle for f, handle in self.owner.handles.items() if f in here}
        return install(self.laid, self.example_inputs, self.owner.accepted, handles)[0]

    def variant(self, enabled: frozenset[str]) -> Callable[..., Any]:
        """The compiled variant, built on first use."""
        enabled = self.present(enabled)
        if enabled not in self._built:
            compiler = self.owner.compile_rest
            fuses = "inductor" in self.owner.rest  # and its cache knows the graph that is installed
            gm = self.only(enabled) if fuses else self.graph(enabled)
            self._built[enabled] = compiler(gm, self.example_inputs)
        return self._built[enabled]

    @property
    def fixed(self) -> bool:
        """Whether a compiler can have it later: no gradient is asked for, and no size varies."""
        given = self.example_inputs
        return self.problem != _GRADIENT and all(
            isinstance(t, torch.Tensor)
            and all(type(n) is int for n in (*t.shape, *t.stride(), t.storage_offset()))
            for t in given
        )

    @property
    def timed(self) -> Callable[..., Any]:
        """The variant in which each occurrence is timed in place (eager rest)."""
        if self._timed is None:
            handles = self.owner.handles
            watched = {handles[f]: self.owner.clock.timed(handles[f]) for f in self.replaced}
            self._timed = _retarget(self.rewritten, watched).forward
        return self._timed


class _SharedSite(Site):
    """A site of another backend's trace, with the kernels of its own backend."""

    def __init__(self, owner: SwitchBackend, base: Site) -> None:
        self.owner = owner
        self.base = base
        self.gm, self.laid, self.example_inputs = base.gm, base.laid, base.example_inputs
        self.problem, self.state, self.written = base.problem, base.state, base.written
        self.replaced = {f: n for f, n in base.replaced.items() if f in owner.handles}
        self.rewritten = self._with_all(frozenset(self.replaced))
        self._built = {}
        self._timed = None

    def _with_all(self, own: frozenset[str]) -> fx.GraphModule:
        """The graph with all kernels of its own backend."""
        return self.base.graph(own)


class _FusedSite(_SharedSite):
    """A site whose variants are compiled after Dynamo's trace, by another rest.

    The compiler gets what it would get inside the trace, sizes without values, in a context of its
    own: so it looks into its cache, and finds there what was compiled ahead.
    """

    def _with_all(self, own: frozenset[str]) -> fx.GraphModule:
        return self.base.only(own)

    def variant(self, enabled: frozenset[str]) -> Callable[..., Any]:
        """The compiled variant, built on first use."""
        enabled = self.present(enabled)
        if enabled not in self._built:
            gm = _retarget(self.only(enabled), {})  # a compiler rewrites what it is given
            mode = FakeTensorMode(shape_env=ShapeEnv())
            inputs = [mode.from_tensor(t, static_shapes=True) for t in self.example_inputs]
            with self.state.restored(), tracing(TracingContext(mode)):
                self._built[enabled] = self.owner.compile_rest(gm, inputs)
        return self._built[enabled]


class _RecordedSite(_SharedSite):
    """A site whose variants run as CUDA graphs."""

    def variant(self, enabled: frozenset[str]) -> Callable[..., Any]:
        """A recording of what the other backend runs in this variant."""
        enabled = self.present(enabled)
        if enabled not in self._built:
            run, gm = self.base.variant(enabled), self.base.graph(enabled)
            self._built[enabled] = self.owner.compile_rest.record(run, gm, self.example_inputs)
        return self._built[enabled]


class SwitchBackend:
    """A ``torch.compile`` backend for measurements.

    ``enabled`` chooses the variant, ``timing`` the in-place timed one, and ``spy``, if set, is
    called with (site, arguments) instead. ``refused`` says which kernels could not be registered.
    Several may share what Dynamo compiled for the first of them; ``act`` says which one runs. Sets
    of kernels that are known ``early`` are compiled while Dynamo is at it, as all and none are:
    what Inductor compiles later it does not look for in its cache.
    """

    def __init__(
        self,
        accepted: Iterable[Accepted],
        rest: str = "eager",
        early: Iterable[frozenset[str]] = (),
    ) -> None:
        self.early = tuple(early)
        self.accepted = {kernel.target_fingerprint: kernel for kernel in accepted}
        self.rest = rest
        self.compile_rest = rest_compiler(rest)
        self.handles: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        for fingerprint, kernel in self.accepted.items():
            try:
                self.handles[fingerprint] = kernel.register()
            except KForgeError as problem:
                self.refused[fingerprint] = str(problem)
        self.sites: list[Site] = []
        self.enabled: frozenset[str] = frozenset()
        self.timing = False
        self.spy: Callable[[Site, tuple[Any, ...]], Any] | None = None
        self.clock = Clock()
        self.traced = self.acting = self
        self._base = self
        self._kind: type[_SharedSite] = _RecordedSite
        self._places: dict[Site, Site] = {}

    def recorded(self, accepted: Iterable[Accepted], rest: str) -> SwitchBackend:
        """A backend that runs this one's graphs as CUDA graphs; nothing is traced or compiled.

        Args:
            accepted: kernels, all of them among this backend's own.
            rest: the rest that is this one's with recordings.
        """
        return self._shared(accepted, rest, _RecordedSite)

    def fused(self, accepted: Iterable[Accepted], rest: str) -> SwitchBackend:
        """A backend that compiles this one's graphs with another rest; nothing is traced anew.

        Possible where the graphs are ``fixed``. Nothing is compiled before ``build`` or a call.
        """
        return self._shared(accepted, rest, _FusedSite)

    def _shared(
        self, accepted: Iterable[Accepted], rest: str, kind: type[_SharedSite]
    ) -> SwitchBackend:
        other = SwitchBackend(accepted, rest)
        other.traced, other._base, other._kind = self.traced, self, kind
        for site in self.traced.sites:
            other.site_of(site)
        return other

    @property
    def fixed(self) -> bool:
        """Whether there are graphs, and all of them can be compiled with another rest later."""
        return bool(self.sites) and all(site.fixed for site in self.sites)

    def build(self, enabled: frozenset[str]) -> None:
        """Have this variant of every graph compiled now."""
        for site in list(self.sites):
            site.variant(enabled)

    def act(self) -> None:
        """Be the one that the next calls of the shared compiled entries run."""
        self.traced.acting = self

    def site_of(self, site: Site) -> Site:
        """What this backend makes of a site of the backend that traced it."""
        if site.owner is self:
            return site
        if site not in self._places:
            self._places[site] = self._kind(self, self._base.site_of(site))
            self.sites.append(self._places[site])
        return self._places[site]

    def __call__(
        self, gm: fx.GraphModule, example_inputs: list[Any], **_: Any
    ) -> Callable[..., Any]:
        """Compile one graph for Dynamo."""
        site = Site(self, gm, list(example_inputs))
        self.sites.append(site)
        if self.rest != "eager":  # needs Dynamo's context, which is gone at run time
            for enabled in (frozenset[str](), frozenset(self.handles), *self.early):
                site.variant(enabled)
        return site.run

    def release(self) -> None:
        """Give back what recorded CUDA graphs hold; later calls record anew."""
        self.compile_rest.release()

    @property
    def replaced(self) -> dict[str, int]:
        """Occurrences of each target over all graphs."""
        found: dict[str, int] = defaultdict(int)
        for site in self.sites:
            for fingerprint, count in site.replaced.items():
                found[fingerprint] += count
        return dict(found)


def _original(handle: int) -> Callable[..., Any]:
    reference = launch.kernel(handle).reference

    def kforge_original(inputs: list[torch.Tensor], handle: int) -> Any:
        del handle
        return reference.forward(*inputs)

    return kforge_original


def _retarget(gm: fx.GraphModule, targets: dict[int, Callable[..., Any]]) -> fx.GraphModule:
    """A copy in which the launches of these handles call these functions."""
    graph = fx.Graph()
    value = graph.graph_copy(gm.graph, {})
    graph.output(value)
    op = torch.ops.kforge.launch.default
    for node in graph.nodes:
        if node.op == "call_function" and node.target is op and node.args[1] in targets:
            node.target = targets[node.args[1]]
    copied = fx.GraphModule(gm, graph)
    copied.meta = dict(gm.meta)
    return as_dynamos(copied, gm)
