"""The result of profiling: one row per target, shown as table, plot, HTML or text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from kforge_nb.profile.believing import is_crowded
from kforge_nb.profile.elsewhere import Elsewhere, elsewhere
from kforge_nb.targets.target import Granularity, Target, TensorSpec

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from kforge_nb.workload.capture import Workload

__all__ = ["Profile", "Row", "variant_text"]


@dataclass(slots=True)
class Row:
    """One target in the profile. Times are microseconds; ``wall_us`` is the whole workload's.

    ``share`` is the part of the workload's wall time that the target takes (eager, timed alone on
    its captured inputs, times its calls); ``headroom`` how many times faster it would be at its
    roofline; ``ceiling`` the speed-up of the whole workload if it ran there (Amdahl). All are None
    where the target could not be timed.
    """

    target: Target
    calls: int
    mean_us: float | None
    bytes: int
    flops: int
    roofline_us: float | None
    wall_us: float
    index: int = 0

    @property
    def share(self) -> float | None:
        """Part of the workload's wall time, 0 to 1."""
        if self.mean_us is None or self.wall_us <= 0:
            return None
        return min(self.mean_us * self.calls / self.wall_us, 1.0)

    @property
    def headroom(self) -> float | None:
        """Eager time over roofline time, at least 1."""
        if self.mean_us is None or not self.roofline_us:
            return None
        return max(self.mean_us / self.roofline_us, 1.0)

    @property
    def ceiling(self) -> float | None:
        """Speed-up of the whole workload with this target at its roofline."""
        if self.share is None or self.headroom is None:
            return None
        return 1.0 / (1.0 - self.share * (1.0 - 1.0 / self.headroom))

    @property
    def name(self) -> str:
        """The target's name."""
        return self.target.name

    @property
    def family(self) -> str:
        """The target's family."""
        return self.target.family

    @property
    def granularity(self) -> Granularity:
        """How the graph was cut."""
        return self.target.granularity

    @property
    def vendor(self) -> bool:
        """Whether this is a vendor operator."""
        return self.target.vendor

    @property
    def fingerprint(self) -> str:
        """The target's fingerprint."""
        return self.target.fingerprint

    @property
    def variant(self) -> str:
        """Shapes and dtypes in one line."""
        return variant_text(self.target)

    @property
    def modules(self) -> list[str]:
        """Paths of the modules that the target occurs in, each once."""
        return list(dict.fromkeys(o.module_path for o in self.target.occurrences))

    def to_document(self) -> dict[str, Any]:
        """Plain JSON-ready data: the target's entry in a run document."""
        return {
            "index": self.index,
            "fingerprint": self.fingerprint,
            "name": self.name,
            "family": self.family,
            "granularity": self.granularity,
            "vendor": self.vendor,
            "calls": self.calls,
            "mean_us": self.mean_us,
            "share": self.share,
            "bytes": self.bytes,
            "flops": self.flops,
            "roofline_us": self.roofline_us,
            "headroom": self.headroom,
            "ceiling": self.ceiling,
            "variant": self.variant,
            "modules": self.modules,
            "code": self.target.graph.code.strip(),
            "inputs": [_spec_document(s) for s in self.target.inputs],
            "outputs": [_spec_document(s) for s in self.target.outputs],
        }


def variant_text(target: Target) -> str:
    """``2×64×128 bf16, 128 bf16 → 2×64×128 bf16``: the floating inputs and the outputs."""
    inputs = ", ".join(dict.fromkeys(_spec_text(s) for s in target.inputs))
    outputs = ", ".join(dict.fromkeys(_spec_text(s) for s in target.outputs))
    return f"{inputs} → {outputs}"


_SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64", "int64": "i64"}


def _spec_text(spec: TensorSpec) -> str:
    shape = "×".join(str(n) for n in spec.shape) or "scalar"
    return f"{shape} {_SHORT.get(spec.dtype, spec.dtype)}"


def _spec_document(spec: TensorSpec) -> dict[str, Any]:
    body = asdict(spec)
    return {**body, "shape": list(spec.shape), "stride": list(spec.stride)}


@dataclass(eq=False, repr=False)
class Profile:
    """Where the time of a workload goes, and how much of it there is to win.

    ``rows`` are sorted by share (by tenths of a percent; equal ones as the model runs them).
    ``wall_us`` and ``device_us`` are microseconds of one run of the workload's module calls;
    ``launch_bound`` says that the device waits for the host most of the time; None where nobody
    knows, since other programs kept the machine busy. ``device`` holds facts and calibrated limits.
    """

    workload: Workload
    rows: list[Row]
    wall_us: float
    device_us: float
    launch_bound: bool | None
    granularity: Granularity
    device: dict[str, Any] = field(default_factory=dict)

    @property
    def targets(self) -> list[Target]:
        """The targets in the order of the rows."""
        return [row.target for row in self.rows]

    @property
    def everything_else(self) -> Elsewhere | None:
        """What of a run's time no row has; None where the rows have nearly all of it."""
        return elsewhere((row.share for row in self.rows), self.wall_us, self.device_us)

    @property
    def rough(self) -> bool:
        """Whether other programs kept the machine busy, so that shares and ceilings are rough."""
        return is_crowded(self.notes) or bool(self.device.get("calibrated_busy"))

    @property
    def notes(self) -> list[str]:
        """What could not be seen, traced or timed, in words."""
        return self.workload.notes

    @property
    def table(self) -> pd.DataFrame:
        """One line per target, indexed by the target's number; times in microseconds.

        ``attrs["everything_else"]`` is the part of the time (0 … 1) that no line has.
        """
        import pandas as pd

        columns = [
            "name", "family", "granularity", "vendor", "calls", "mean_us", "share", "bytes",
            "flops", "roofline_us", "headroom", "ceiling", "variant", "fingerprint", "modules",
        ]  # fmt: skip
        data = [[getattr(row, c) for c in columns] for row in self.rows]
        index = pd.Index([row.index for row in self.rows], name="index")
        frame = pd.DataFrame(data, columns=columns, index=index)
        left = self.everything_else
        frame.attrs["everything_else"] = left.share if left is not None else 0.0
        return frame

    def plot(self, ax: Axes | None = None, limit: int = 15) -> Axes:
        """Bars of the ``limit`` largest shares: what the roofline needs, and what is above it."""
        from kforge_nb.profile.plot import plot_profile

        return plot_profile(self, ax, limit)

    def __repr__(self) -> str:
        from kforge_nb.profile.text import profile_text

        return profile_text(self)

    def _repr_html_(self) -> str:
        from kforge_nb.profile.html import profile_html

        return profile_html(self)

    def to_document(self) -> dict[str, Any]:
        """Plain JSON-ready data, with the parts ``device``, ``workload`` and ``targets``."""
        return {
            "granularity": self.granularity,
            "device": self.device,
            "workload": {
                "wall_us": self.wall_us,
                "device_us": self.device_us,
                "launch_bound": self.launch_bound,
                "notes": list(self.notes),
                "modules": self._modules(),
                **({} if self.workload.layout == "keep" else {"layout": self.workload.layout}),
            },
            "targets": [row.to_document() for row in self.rows],
        }

    def _modules(self) -> list[dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for call in self.workload.calls:
            entry = found.setdefault(
                id(call.module),
                {"name": call.module_name, "class": type(call.module).__name__, "calls": 0},
            )
            entry["calls"] += call.count
        return list(found.values())
