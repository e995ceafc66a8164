"""A target: a cut of a captured graph that may be replaced, with real inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch
    from torch import fx

    from kforge_nb.targets.inputs import CapturedInputs

__all__ = ["Granularity", "Occurrence", "Target", "TensorSpec"]

Granularity = Literal["op", "module", "region"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What is known of one tensor: sizes and strides in elements, dtype without ``torch.``.

    The stride of an axis of size 1 means nothing and differs between runs; ``of`` writes the one
    that a contiguous tensor would have there, so that equal layouts compare equal.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str = "cpu"

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """The spec of a real or fake tensor with static sizes."""
        shape = tuple(int(s) for s in tensor.shape)
        return cls(
            shape,
            _without_noise(shape, tuple(int(s) for s in tensor.stride())),
            str(tensor.dtype).removeprefix("torch."),
            str(tensor.device),
        )


def _without_noise(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, with those of axes of size 1 set as in a contiguous tensor."""
    if 1 not in shape:
        return stride
    result = list(stride)
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1:
            inner = axis + 1
            result[axis] = result[inner] * shape[inner] if inner < len(shape) else 1
    return tuple(result)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One place where the target stands: captured graph index, module path, nodes, calls a run."""

    graph: int
    module_path: str
    nodes: tuple[str, ...]
    calls: int = 1


@dataclass(slots=True)
class Target:
    """A small FX graph with its variant, its occurrences and captured inputs.

    ``graph`` has placeholders ``in0 … inN`` in order, holds no weights (everything is an input) and
    returns a tuple of tensors, named ``out0 … outM`` in plans. ``inputs`` and ``outputs`` are the
    variant. ``fingerprint`` is the hash of canonical graph and variant. ``vendor`` marks a cut that
    consists of a vendor op (linear, matmul, convolution, attention, embedding).
    """

    fingerprint: str
    name: str
    family: str
    granularity: Granularity
    graph: fx.GraphModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    occurrences: list[Occurrence] = field(default_factory=list)
    vendor: bool = False
    captured: CapturedInputs | None = None

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names that plans use for the inputs."""
        return tuple(f"in{i}" for i in range(len(self.inputs)))

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names that plans use for the outputs."""
        return tuple(f"out{i}" for i in range(len(self.outputs)))

    @property
    def calls(self) -> int:
        """How often one run of the workload computes this target."""
        return sum(o.calls for o in self.occurrences)

    @property
    def device(self) -> str:
        """Device of the first output (``cpu`` or ``cuda:N``)."""
        return self.outputs[0].device
