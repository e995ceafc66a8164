"""More inputs for the whole model: the cell's own calls, the user's, then seeded redraws.

A redraw keeps the form of a call and replaces values: floats by values of the same spread, ids by
ids that were seen (so embeddings stay in range), counting-up positions and masks as they are. All
that Dynamo's guards see of a tensor stays, its strides too, or each check of a model of thousands
of nodes would begin with another trace, and under Inductor with another compile.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from kforge_nb.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kforge_nb.workload.calls import ModuleCall

__all__ = ["LEAST", "fidelity_calls", "redrawn", "user_call"]

LEAST = 8


def fidelity_calls(
    calls: Sequence[ModuleCall], inputs: Sequence[Any], seed: int, least: int = LEAST
) -> list[tuple[str, ModuleCall]]:
    """(origin, call) for the fidelity check: ``cell``, ``user`` or ``redrawn``.

    Args:
        calls: the recorded calls.
        inputs: the user's own, as :func:`user_call` takes them, for the first call's module.
        seed: of the redraws.
        least: redraws fill up to this many for each module, over its calls in turn.

    Raises:
        BadInput: an input of the user's is not understood.
    """
    found = [("cell", call) for call in calls]
    found += [("user", user_call(calls[0], value)) for value in inputs]
    generator = torch.Generator().manual_seed(seed)
    for module in {id(call.module): call.module for call in calls}.values():
        own = [call for call in calls if call.module is module]
        have = sum(call.module is module for _, call in found)
        for turn in range(least - have):
            found.append(("redrawn", redrawn(own[turn % len(own)], generator)))
    return found


def user_call(like: ModuleCall, value: Any) -> ModuleCall:
    """A call of the same module on the user's input.

    Args:
        like: the recorded call whose module and state are used.
        value: a tensor (the first argument), a tuple (positional arguments), a dict (keyword
            arguments), or a pair of both.

    Raises:
        BadInput: something else.
    """
    call = copy.copy(like)
    if isinstance(value, torch.Tensor):
        call.args, call.kwargs = (value, *like.args[1:]), dict(like.kwargs)
    elif isinstance(value, dict):
        call.args, call.kwargs = (), dict(value)
    elif (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], tuple)
        and isinstance(value[1], dict)
    ):
        call.args, call.kwargs = value[0], dict(value[1])
    elif isinstance(value, tuple):
        call.args, call.kwargs = value, {}
    else:
        raise BadInput(
            f"inputs= takes tensors, tuples of arguments, dicts of keyword arguments or pairs of "
            f"both, not {type(value).__name__}"
        )
    return call


def redrawn(call: ModuleCall, generator: torch.Generator) -> ModuleCall:
    """The same call with other values; caches and other objects stay as recorded."""
    twin, drawn = copy.copy(call), dict[int, torch.Tensor]()

    def other(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in drawn:  # a tensor that is passed twice stays one
            drawn[id(leaf)] = _like(leaf, generator)
        return drawn[id(leaf)]

    twin.args, twin.kwargs = pytree.tree_map(other, (call.args, call.kwargs))
    return twin


def _like(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Other values in the layout of a tensor; what is expanded stays so."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return tensor
    narrow = tensor.detach()
    for dim, stride in enumerate(narrow.stride()):
        if stride == 0 and narrow.shape[dim] > 1:
            narrow = narrow.narrow(dim, 0, 1)
    values = _redraw(narrow, generator)
    if values is narrow:
        return tensor
    with torch.inference_mode(tensor.is_inference()):  # which guards see as well
        placed = torch.empty_strided(
            narrow.shape, narrow.stride(), dtype=tensor.dtype, device=tensor.device
        )
        result = placed.copy_(values).expand(tensor.shape)
    if result.stride() != tensor.stride():
        result = result.as_strided(tensor.shape, tensor.stride())
    return result.requires_grad_(tensor.requires_grad)


def _redraw(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if tensor.numel() == 0 or tensor.dtype == torch.bool or tensor.is_complex():
        return tensor
    generator = _on(tensor.device, generator)
    if tensor.is_floating_point():
        return _redraw_floats(tensor, generator)
    values = tensor.detach().reshape(-1)
    if values.numel() < 2 or _two_valued(values) or _counts_up(tensor):
        return tensor
    count = values.numel()
    pick = torch.randint(count, (count,), generator=generator, device=values.device)
    return values[pick].reshape(tensor.shape)


def _on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """A generator on the tensor's device, seeded from the one that is given."""
    if device.type == generator.device.type:
        return generator
    seed = int(torch.randint(1 << 62, (), generator=generator))
    return torch.Generator(device).manual_seed(seed)


def _two_valued(values: torch.Tensor) -> bool:
    """Whether there are no more than two different values, as in a mask."""
    least, most = values.min(), values.max()
    return bool(((values == least) | (values == most)).all())


def _redraw_floats(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Normal values with the mean and spread of the finite ones; masks stay as they are."""
    values = tensor.detach().reshape(-1)
    if not bool((torch.isfinite(values) & (values.abs() < 1e4)).all()) or _two_valued(values):
        return tensor
    exact = values.to(torch.float64)
    noise = torch.randn(
        values.shape, generator=generator, dtype=torch.float64, device=values.device
    )
    fresh = exact.mean() + noise * exact.std(unbiased=False)
    return fresh.reshape(tensor.shape).to(tensor.dtype)


def _counts_up(tensor: torch.Tensor) -> bool:
    """Positions: each row counts up by one."""
    return tensor.dim() > 0 and tensor.shape[-1] > 1 and bool((tensor.diff(dim=-1) == 1).all())
