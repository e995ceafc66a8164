"""Cross entropy of logits ``(N, C)`` with class labels, mean, sum or per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.candidates.candidate import Scratch
from kforge_nb.candidates.recipes.families import render
from kforge_nb.candidates.recipes.families.isa import available_isas
from kforge_nb.candidates.recipes.families.program import Leaf, Op, read_program
from kforge_nb.candidates.recipes.families.rowcode import CTYPES
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["CrossEntropy", "families", "plan_cross_entropy"]

_REDUCTIONS = ("none", "mean", "sum")


def families() -> list[Any]:
    """The family of this module."""
    return [CrossEntropy()]


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """``F.cross_entropy`` without class weights and label smoothing."""

    name: str = "cross_entropy"

    def match(self, target: Target) -> Match | None:
        """The match where the graph is one cross entropy of an input (or a cast of it)."""
        found = plan_cross_entropy(target)
        if found is None:
            return None
        logits, labels, op = found
        roles = {"logits": f"in{logits.index}", "labels": f"in{labels.index}", "loss": "out0"}
        return Match(self.name, target, roles, {"reduction": op.args["reduction"]})

    def parameters(self, match: Match) -> dict[str, list[Any]]:  # noqa: ARG002
        """Instruction set, unrolling, block in elements, prefetch distance in elements."""
        return {
            "ahead": [1024, 0, 512, 2048],
            "tile": [8192, 4096, 2048, 1024],
            "unroll": [4, 2, 8],
            "isa": available_isas(),
        }

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernel for these parameters; row losses go to scratch where they are reduced."""
        found = plan_cross_entropy(match.target)
        assert found is not None  # noqa: S101  (a match exists, and matching is deterministic)
        logits, labels, op = found
        rows, length = logits.shape
        reduced = op.args["reduction"] != "none"
        constants: dict[str, tuple[str, Any]] = {
            "ROWS": ("int64_t", rows),
            "C": ("int64_t", length),
            "STEP": ("int64_t", logits.view.stride(0)),
            "LABEL_STEP": ("int64_t", labels.view.stride(0)),
            "IGNORED": ("int64_t", int(op.args["ignore_index"])),
            "MEAN": ("bool", op.args["reduction"] == "mean"),
            "U": ("int", params["unroll"]),
            "TILE": ("int64_t", params["tile"]),
            "AHEAD": ("int64_t", params["ahead"]),
        }
        x, y = CTYPES[logits.dtype], CTYPES[op.dtype]
        arguments = [(f"const {x}* ", "logits"), ("const int64_t* ", "labels"), (f"{y}* ", "loss")]
        names = [match.roles["logits"], match.roles["labels"], match.roles["loss"]]
        scratch: dict[str, Scratch] = {}
        if reduced or y != "float":
            arguments.append(("float* ", "each"))
            names.append("each")
            scratch["each"] = Scratch("float32", (str(rows),))
        body = _body(logits, labels, "each" if scratch else "loss", reduced, bool(scratch))
        tail = render.entry("kf_cross_entropy", arguments, body)
        alias = f"using X = {x};\n"
        text = render.source(
            params["isa"], constants, [alias, render.kernel_text("entropy.h")], tail
        )
        return render.candidate(match, params, "kf_cross_entropy", text, names, scratch)


def _body(logits: Leaf, labels: Leaf, each: str, reduced: bool, scratched: bool) -> str:
    lines = [
        f"  const X* const x = logits + {logits.view.storage_offset()};",
        f"  const int64_t* const y = labels + {labels.view.storage_offset()};",
        "  share(ROWS, ROWS * C, nthreads, [&](int64_t first, int64_t last) {",
        f"    losses(x, y, {each}, first, last);\n  }});",
    ]
    if reduced:
        lines.append("  put(loss, total(y, each));")
    elif scratched:
        lines.append("  for (int64_t r = 0; r < ROWS; ++r) put(loss + r, each[r]);")
    return "\n".join(lines)


def plan_cross_entropy(target: Target, device: str = "cpu") -> tuple[Leaf, Leaf, Op] | None:
    """Logits, labels and the operator, or None where the graph is something else."""
    program = read_program(target, device)
    op = program.only("cross_entropy") if program is not None else None
    if program is None or op is None or len(program.outputs) != 1:
        return None
    answer = program.outputs[0]
    if answer is not op:  # a cast of the answer may follow
        return None
    plain = (
        op.args["weight"] is None
        and op.args["size_average"] is None
        and op.args["reduce"] is None
        and op.args["label_smoothing"] == 0
        and op.args["reduction"] in _REDUCTIONS
        and isinstance(op.args["ignore_index"], int)
    )
    logits, labels = op.args["input"], op.args["target"]
    others = [o for o in program.ops if o is not op]
    if isinstance(logits, Op) and logits.name == "cast" and logits.dtype is torch.float32:
        others.remove(logits)
        logits = logits.args["input"]
    if not plain or others or not isinstance(logits, Leaf) or not isinstance(labels, Leaf):
        return None
    fits = (
        logits.dtype in CTYPES
        and labels.dtype is torch.int64
        and len(logits.shape) == 2
        and len(labels.shape) == 1
        and logits.view.stride(1) == 1
        and 0 not in logits.shape
        and op.dtype in CTYPES
    )
    return (logits, labels, op) if fits else None
