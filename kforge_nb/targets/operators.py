"""What each operator of a Dynamo graph is, whatever its spelling.

Dynamo writes the same operation as ``torch.add``, ``operator.add``, ``+=``, ``x.add`` or an
``aten`` overload. Everything in this room asks here for the canonical name, whether the call works
in place, and the kind of work; operators that are not listed are opaque and never cut.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import fx

__all__ = ["KINDS", "Operator", "base_name", "describe", "is_training_call", "spelling"]

_ALIASES = {
    "truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul",
    "subtract": "sub", "negative": "neg", "absolute": "abs", "clip": "clamp",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "__eq__": "eq", "__ne__": "ne", "__lt__": "lt", "__le__": "le", "__gt__": "gt", "__ge__": "ge",
    "__add__": "add", "__radd__": "add", "__mul__": "mul", "__rmul__": "mul", "__neg__": "neg",
    "__sub__": "sub", "__truediv__": "div", "__matmul__": "matmul", "__and__": "and",
    "__or__": "or", "__getitem__": "getitem", "__setitem__": "setitem", "__pow__": "pow",
    "and_": "and", "or_": "or", "invert": "not", "inv": "not", "__invert__": "not",
    "bitwise_and": "and", "bitwise_or": "or", "bitwise_not": "not", "logical_not": "not_logical",
    "iand": "and", "ior": "or", "float": "cast", "half": "cast", "bfloat16": "cast",
    "double": "cast", "to": "cast", "type_as": "cast", "bool": "cast", "_to_copy": "cast",
    "arccos": "acos", "special_expit": "sigmoid", "expit": "sigmoid", "special_erf": "erf",
    "swapaxes": "transpose", "swapdims": "transpose", "concat": "cat", "concatenate": "cat",
    "special_softmax": "softmax", "_softmax": "softmax", "_log_softmax": "log_softmax",
    "native_layer_norm": "native_layer_norm", "convolution": "convolution",
    "feature_dropout": "dropout", "alpha_dropout": "dropout", "mm": "mm",
    "__iadd__": "add", "max": "max", "min": "min",
}  # fmt: skip
_IN_PLACE_OPERATORS = {
    "iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div", "ipow": "pow",
    "iand": "and", "ior": "or", "setitem": "setitem", "__iadd__": "add", "__imul__": "mul",
    "__setitem__": "setitem",
}  # fmt: skip

_CHEAP = {
    "add", "sub", "mul", "div", "neg", "abs", "cast", "where", "masked_fill", "clamp",
    "clamp_min", "clamp_max", "maximum", "minimum", "dropout", "eq", "ne", "lt", "le", "gt", "ge",
    "and", "or", "not", "not_logical", "logical_and", "logical_or", "square", "contiguous",
    "clone", "detach", "rsub", "reciprocal", "relu", "addcmul", "lerp", "identity", "sign",
}  # fmt: skip
_COSTLY = {
    "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "pow", "tanh", "sigmoid",
    "silu", "gelu", "erf", "relu6", "leaky_relu", "elu", "selu", "celu", "softplus", "mish",
    "hardswish", "hardsigmoid", "hardtanh", "logsigmoid", "softsign", "sin", "cos", "tan",
    "atan", "sinh", "cosh", "floor", "ceil", "round", "quick_gelu", "glu", "nan_to_num",
    "isnan", "isinf", "isfinite", "fmod", "remainder", "floor_divide", "atan2", "threshold",
}  # fmt: skip
_REDUCTION = {
    "mean", "sum", "amax", "amin", "var", "std", "logsumexp", "prod", "norm", "argmax", "argmin",
    "vector_norm", "linalg_vector_norm", "all", "any",
}  # fmt: skip
_ROW_NORM = {"softmax", "log_softmax", "layer_norm", "rms_norm", "softmin", "normalize"}
_CHANNEL_NORM = {"group_norm", "instance_norm"}
_LOSS = {"cross_entropy", "nll_loss", "mse_loss", "l1_loss", "kl_div",
         "binary_cross_entropy", "binary_cross_entropy_with_logits", "smooth_l1_loss"}  # fmt: skip
_POOLING = {
    "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool2d",
    "boolean_dispatch",
}  # fmt: skip
_VIEW = {
    "view", "reshape", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "expand_as",
    "getitem", "chunk", "split", "split_with_sizes", "unbind", "select", "narrow", "flatten",
    "unflatten", "view_as", "reshape_as", "movedim", "as_strided", "slice", "broadcast_to",
    "tensor_split", "diagonal", "unfold", "mT", "real", "imag", "view_as_real", "view_as_complex",
    "broadcast_tensors", "ravel", "swapaxes", "adjoint", "hsplit", "vsplit", "alias",
}  # fmt: skip
_VENDOR = {
    "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution", "addbmm", "bilinear",
    "scaled_dot_product_attention", "embedding", "embedding_bag", "linalg_solve_triangular",
    "_grouped_mm", "grouped_mm", "multi_head_attention_forward", "addmv", "mv", "dot", "outer",
    "lstm", "gru", "tensordot", "_scaled_mm", "baddmm", "linalg_inv", "linalg_solve", "cdist",
    "triangular_solve", "linalg_vecdot", "chain_matmul", "multi_dot", "solve_triangular",
}  # fmt: skip
_MOVE = {
    "cat", "stack", "pad", "repeat", "repeat_interleave", "gather", "index_select", "roll", "flip",
    "tile", "interpolate", "pixel_shuffle", "pixel_unshuffle", "upsample", "triu", "tril",
    "cumsum", "cumprod", "constant_pad_nd", "take_along_dim", "one_hot", "diff", "masked_select",
    "index_add", "scatter", "scatter_add", "grid_sample", "hstack", "vstack", "diag_embed",
}  # fmt: skip
_FACTORY = {
    "arange", "zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like",
    "empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "tensor", "scalar_tensor",
    "eye", "linspace", "new_tensor", "as_tensor",
}  # fmt: skip
_RANDOM = {
    "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "bernoulli", "normal",
    "multinomial", "randperm", "uniform", "exponential", "dropout1d", "dropout2d", "dropout3d",
    "gumbel_softmax", "rrelu",
}  # fmt: skip
_BARRIER = {
    "_set_grad_enabled", "set_grad_enabled", "_enter_autocast", "_exit_autocast",
    "_enter_inference_mode", "_exit_inference_mode", "inference_mode", "no_grad", "enable_grad",
    "manual_seed", "set_rng_state", "_saved_tensors_hooks_disable", "_saved_tensors_hooks_enable",
    "_vmap_increment_nesting", "_vmap_decrement_nesting", "set_", "resize_", "swap_tensors",
}  # fmt: skip

KINDS: dict[str, str] = {
    **dict.fromkeys(_CHEAP, "cheap"),
    **dict.fromkeys(_COSTLY, "costly"),
    **dict.fromkeys(_REDUCTION, "reduction"),
    **dict.fromkeys(_ROW_NORM, "row_norm"),
    **dict.fromkeys(_CHANNEL_NORM, "channel_norm"),
    "batch_norm": "batch_norm",
    **dict.fromkeys(_LOSS, "loss"),
    **dict.fromkeys(_POOLING, "pooling"),
    **dict.fromkeys(_VIEW, "view"),
    **dict.fromkeys(_VENDOR, "vendor"),
    **dict.fromkeys(_MOVE, "move"),
    **dict.fromkeys(_FACTORY, "factory"),
    **dict.fromkeys(_RANDOM, "random"),
    **dict.fromkeys(_BARRIER, "barrier"),
    "setitem": "write",
    "copy": "write",
    "fill": "write",
    "zero": "write",
    "index_copy": "write",
    "max": "reduction",
    "min": "reduction",
}
_MODULES = (
    "torch",
    "torch.functional",
    "torch.nn.functional",
    "torch.special",
    "torch._C",
    "torch._C._nn",
    "torch._C._linalg",
    "torch._C._special",
    "torch.amp.autocast_mode",
    "torch.autograd.grad_mode",
    "torch._jit_internal",
    "torch.random",
)


@dataclass(frozen=True, slots=True)
class Operator:
    """Canonical name, kind (see ``KINDS``; ``opaque`` if unknown) and whether it works in place."""

    name: str
    kind: str
    in_place: bool = False


_OPAQUE = Operator("?", "opaque")


def spelling(target: Any) -> tuple[str, str] | None:
    """Where a call target comes from and its name there, or None if it is not one of torch's.

    ``("method", "softmax")``, ``("operator", "mul")``, ``("aten", "add.Tensor")`` or
    ``("torch.nn.functional", "softmax")``.
    """
    if isinstance(target, str):
        return ("method", target)
    if isinstance(target, torch._ops.OpOverload):
        space, _, name = target._schema.name.partition("::")
        return (space, f"{name}.{target._overloadname}") if space == "aten" else None
    own = getattr(target, "__name__", None)
    if not isinstance(own, str):
        return None
    if getattr(operator, own, None) is target:
        return ("operator", own)
    module = _home_of(target, own)
    return (module, own) if module else None


def _home_of(target: Any, name: str) -> str | None:
    declared = getattr(target, "__module__", None)
    if isinstance(declared, str) and declared in _MODULES:
        return declared
    for space, module in (("torch", torch), ("torch.nn.functional", torch.nn.functional)):
        if getattr(module, name, None) is target:
            return space
    return None


def base_name(home: str, name: str) -> tuple[str, bool]:
    """Canonical name and whether the spelling itself says *in place*."""
    if home == "operator" and name in _IN_PLACE_OPERATORS:
        return _IN_PLACE_OPERATORS[name], True
    if home == "aten":
        name = name.partition(".")[0]
    if home == "method" and name in _IN_PLACE_OPERATORS:
        return _IN_PLACE_OPERATORS[name], True
    stem = name
    in_place = False
    if name.endswith("_") and not name.endswith("__") and home != "operator":
        bare = name[:-1]
        if name not in _BARRIER and (bare in KINDS or bare in _ALIASES):
            stem, in_place = bare, True
    return _ALIASES.get(stem, stem), in_place


def describe(node: fx.Node) -> Operator:
    """The operator of one node; placeholders, outputs and unknown calls are opaque."""
    if node.op not in ("call_function", "call_method"):
        return _OPAQUE
    found = spelling(node.target)
    if found is None:
        return _OPAQUE
    name, in_place = base_name(*found)
    kind = KINDS.get(name, "opaque")
    in_place = in_place or node.kwargs.get("inplace") is True or _positional_in_place(node, name)
    if kind != "opaque" and is_training_call(node, name):
        kind = "random" if name in ("dropout", "scaled_dot_product_attention") else "opaque"
    return Operator(name, kind, in_place)


# Position of ``inplace`` in the functional forms that take it positionally.
_IN_PLACE_AT = {"relu": 1, "silu": 1, "dropout": 3, "relu6": 1, "hardswish": 1, "mish": 1,
                "leaky_relu": 2, "elu": 2, "hardsigmoid": 1}  # fmt: skip


def _positional_in_place(node: fx.Node, name: str) -> bool:
    at = _IN_PLACE_AT.get(name)
    if at is None or node.op != "call_function" or len(node.args) <= at:
        return False
    return node.args[at] is True


def is_training_call(node: fx.Node, name: str) -> bool:
    """Whether a dropout, batch norm or attention call behaves as in training (random, updating)."""
    if name == "dropout":
        probability = _argument(node, 1, "p", 0.5)
        return bool(_argument(node, 2, "training", True)) and probability != 0
    if name == "batch_norm":
        return bool(_argument(node, 5, "training", False))
    if name == "instance_norm":
        return bool(_argument(node, 5, "use_input_stats", True)) and node.args[1:2] not in (
            (),
            (None,),
        )
    if name == "scaled_dot_product_attention":
        return _argument(node, 4, "dropout_p", 0.0) != 0
    return False


def _argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    if name in node.kwargs:
        return node.kwargs[name]
    return node.args[position] if len(node.args) > position else default
