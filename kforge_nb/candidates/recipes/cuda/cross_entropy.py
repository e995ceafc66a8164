"""CUDA kernels for cross entropy: one block a row, one pass over its logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.candidate import Scratch
from kforge_nb.candidates.recipes.cuda import emit
from kforge_nb.candidates.recipes.families.cross_entropy import plan_cross_entropy
from kforge_nb.candidates.recipes.families.rowcode import CTYPES
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.candidates.recipes.families.program import Leaf
    from kforge_nb.targets.target import Target

__all__ = ["CudaCrossEntropy", "families"]


def families() -> list[Any]:
    """The family of this module."""
    return [CudaCrossEntropy()]


@dataclass(frozen=True, slots=True)
class CudaCrossEntropy:
    """``F.cross_entropy`` without class weights and label smoothing."""

    name: str = "cross_entropy"

    def match(self, target: Target) -> Match | None:
        """The match where the CPU family knows the graph."""
        found = plan_cross_entropy(target, "cuda")
        if found is None:
            return None
        logits, labels, op = found
        roles = {"logits": f"in{logits.index}", "labels": f"in{labels.index}", "loss": "out0"}
        return Match(self.name, target, roles, {"reduction": op.args["reduction"]})

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Threads a row, elements an access, accesses in flight."""
        logits = _known(match)[0]
        return {
            "block": [512, 256, 1024, 128],
            "vector": _widths(logits),
            "unroll": [4, 2, 8],
        }

    def emit(self, match: Match, params: Params) -> Candidate:
        """The row kernel, and where the loss is reduced, the one that adds the rows up."""
        logits, labels, op = _known(match)
        rows, length = logits.shape
        reduced = op.args["reduction"] != "none"
        constants: dict[str, emit.Constant] = {
            "V": ("int", params["vector"]),
            "FAST": ("bool", False),
            "BLOCK": ("int", params["block"]),
            "U": ("int", params["unroll"]),
            "ROWS": ("int", rows),
            "C": ("int", length),
            "MEAN": ("bool", op.args["reduction"] == "mean"),
            "STEP": ("int64_t", logits.view.stride(0)),
            "LABEL_STEP": ("int64_t", labels.view.stride(0)),
            "IGNORED": ("int64_t", int(op.args["ignore_index"])),
        }
        x, y = CTYPES[logits.dtype], CTYPES[op.dtype]
        shared = "  __shared__ float shared[Team<BLOCK, BLOCK>::FLOATS];\n"
        start, at = logits.view.storage_offset(), labels.view.storage_offset()
        each = "each" if reduced else "loss"
        pointers = [(f"const {x}* ", "logits"), ("const int64_t* ", "labels")]
        body = f"{shared}  losses(logits + {start}, labels + {at}, {each}, shared);"
        to = ("float* ", "each") if reduced else (f"{y}* ", "loss")
        entries = [
            emit.Entry("kf_losses", [*pointers, to], body, min(rows, 2**30), params["block"])
        ]
        scratch = {}
        if reduced:
            scratch["each"] = Scratch("float32", (str(rows),))
            body = f"{shared}  total(each, labels + {at}, loss, shared);"
            given = [("const float* ", "each"), ("const int64_t* ", "labels"), (f"{y}* ", "loss")]
            entries.append(emit.Entry("kf_total", given, body, 1, params["block"]))
        texts = [f"using X = {x};", emit.kernel_text("entropy.cuh")]
        text = emit.source(constants, texts, entries, match.target.name)
        return emit.candidate(match, params, text, entries, scratch, match.roles)


def _known(match: Match) -> Any:
    found = plan_cross_entropy(match.target, "cuda")
    assert found is not None  # noqa: S101  (a match exists, and matching is deterministic)
    return found


def _widths(logits: Leaf) -> list[int]:
    """Elements an access, best first, that divide the row, its stride and its start."""
    best = 16 // logits.dtype.itemsize
    parts = (logits.shape[1], logits.view.stride(0), logits.view.storage_offset())
    found = [w for w in (best, best // 2, best * 2, 2, 1) if all(p % w == 0 for p in parts)]
    return list(dict.fromkeys(found))[:3]
