"""Faults that are planted into recorded kernels, so that repair prompts can be tried.

A strong model's first answers were right, and a prompt that asks for a repair is only worth
something if it leads from a failure to a right kernel. Each fault is one that people and models
make: the kernel was accepted, a few words of it are changed, and the judge finds what it finds. The
repair prompt that follows is the product's own and says nothing of how the fault came about.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kforge_nb.errors import BadInput
from kforge_nb.proposers.transcript import Entry

__all__ = ["FAULTS", "LABEL", "Fault", "label_of", "plant", "sound_answer"]

LABEL = "planted: "
"""How the ``strategy`` of a planted kernel, and of every repair of it, begins in a transcript."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault by name, the target whose first accepted draft gets it, and the edits that make it.

    An edit is a text that stands in the answer exactly once, and what stands there afterwards.
    """

    name: str
    target: str
    edits: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        """The strategy under which the transcript keeps it."""
        return LABEL + self.name

    @property
    def folder(self) -> str:
        """Name of the folder of its prompts."""
        return "planted-" + self.name.replace(" ", "-")


def label_of(entry: Entry) -> str | None:
    """The planted fault that an entry belongs to; None where it belongs to none."""
    strategy = entry.strategy or ""
    return strategy if strategy.startswith(LABEL) else None


def sound_answer(fault: Fault, entries: Iterable[Entry]) -> Entry:
    """The recorded draft that gets the fault.

    Raises:
        BadInput: the transcript holds no accepted draft of the target.
    """
    for entry in entries:
        right = entry.evaluation is not None and entry.evaluation["verdict"] == "accepted"
        if entry.target == fault.target and entry.action == "draft" and right:
            return entry
    raise BadInput(f"the transcript has no accepted draft of {fault.target} to plant a fault in")


def plant(fault: Fault, answer: str) -> str:
    """The answer with its fault.

    Raises:
        BadInput: a text that is to be changed is not there exactly once.
    """
    for before, after in fault.edits:
        count = answer.count(before)
        if count != 1:
            raise BadInput(f"{fault.name}: {before[:60]!r} stands {count} times in the answer")
        answer = answer.replace(before, after)
    return answer


_SHIFT_IN = """static inline __m512 shift_in(__m512 odd, __m512 prev) {
  return _mm512_castsi512_ps(
      _mm512_alignr_epi32(_mm512_castps_si512(odd), _mm512_castps_si512(prev), 15));
}

"""
_OWN_SUMS = "int g0, int g1) {\n  if (g0 >= g1) return;\n  double bm[CPG], b2[CPG];\n"
_HANDED_SUMS = (
    "int g0, int g1, double* bm,\n                       double* b2) {\n  if (g0 >= g1) return;\n"
)
_THREADS = "  const int nt = nthreads < 1 ? 1 : nthreads;\n"

FAULTS: tuple[Fault, ...] = (
    Fault(
        "type error", "gelu_up",
        (("const __mmask16 keep = _mm512_cmp_ps_mask", "const __m512 keep = _mm512_cmp_ps_mask"),),
    ),
    Fault("undeclared helper", "max_pool", ((_SHIFT_IN, ""),)),
    Fault(
        "off by one at the tail", "rotary",
        (("for (int64_t r = P - PD; r < P; ++r) {", "for (int64_t r = P - PD; r < P - 1; ++r) {"),),
    ),
    Fault(
        "missing weight", "group_norm_silu",
        (("const double ad = rstd * static_cast<double>(in1[g * CPG + c]);",
          "const double ad = rstd;"),),
    ),
    Fault(
        "race in a reduction", "group_norm_silu",
        ((_OWN_SUMS, _HANDED_SUMS), (_THREADS, _THREADS + "  double bm[CPG], b2[CPG];\n"),
         ("run_groups(in0, in1, in2, out0, g0, g1);",
          "run_groups(in0, in1, in2, out0, g0, g1, bm, b2);")),
    ),
    Fault(
        "wrong dtype conversion", "rms_norm_bf16",
        (("const __m512i re = _mm512_srli_epi32(round_bits(e), 16);",
          "const __m512i re = _mm512_srai_epi32(round_bits(e), 16);"),),
    ),
    Fault(
        "lost NaN", "batch_norm_add_relu",
        (("        // max(zero, v) returns v when v is NaN\n", ""),
         *((f"_mm512_max_ps(zero, v{i})", f"_mm512_max_ps(v{i}, zero)") for i in range(4))),
    ),
    Fault(
        "variance that cancels", "layer_norm",
        (("  const __m512 vm = _mm512_set1_ps(mean);\n",
          "  const __m512 vm = _mm512_setzero_ps();\n"),
         ("  // Pass 2: sum and sum of squares of the differences from that mean.\n",
          "  // Pass 2: sum and sum of squares.\n"),
         ("  // Pass 1: first estimate of the mean (8 accumulators).\n",
          "  // Pass 1: brings the row into the cache (8 accumulators).\n"),
         ("   // what the first mean was off by\n", "   // the mean\n")),
    ),
)  # fmt: skip
