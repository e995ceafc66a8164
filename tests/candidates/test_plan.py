"""Launch plans: strict reading, the rules, and the arguments of a launch."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan, Scratch
from kforge_nb.candidates.plan import (
    plan_from_document,
    plan_to_document,
    resolve,
    scratch_limit,
    validate,
)
from kforge_nb.errors import ContractBreach
from kforge_nb.targets.target import TensorSpec

INPUTS = (TensorSpec((4, 6, 32), (192, 32, 1), "float32"), TensorSpec((32,), (1,), "bfloat16"))
OUTPUTS = (TensorSpec((4, 6, 32), (192, 32, 1), "float32"),)
CPP = {
    "kernels": [
        {
            "name": "rows",
            "args": ["in0", "in1", "out0", "tmp", "i64:ROWS", "i32:C", "f32:1e-6", "i32:nthreads"],
        }
    ],
    "symbols": {"ROWS": "numel(in0) // C", "C": "in0.shape[-1]"},
    "scratch": {"tmp": {"dtype": "float32", "shape": ["ROWS", "2"], "init": "zero"}},
}
CUDA = {
    "kernels": [
        {"name": "k", "grid": ["ceil_div(N, 256)", "1", "1"], "block": ["256", "1", "1"],
         "shared": "1024", "args": ["in0", "in1", "out0", "i64:N"]}
    ],
    "symbols": {"N": "numel(out0)"},
}  # fmt: skip


def changed(document: dict, *path: object, to: object) -> dict:
    """A copy of a document with one place changed."""
    found = copy.deepcopy(document)
    place = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return found


def test_resolve_gives_the_arguments_of_the_call() -> None:
    """Symbols are worked out in order of dependency and every argument becomes concrete."""
    found = resolve(plan_from_document(CPP), INPUTS, OUTPUTS)

    expected = [
        ("input", 0), ("input", 1), ("output", 0), ("scratch", "tmp"), ("i64", 24), ("i32", 32),
        ("f32", 1e-6), ("nthreads",),
    ]  # fmt: skip
    assert expected == found.calls[0].args
    assert tuple(found.scratch["tmp"]) == ("float32", (24, 2), "zero")
    assert found.scratch_bytes == 24 * 2 * 4


def test_round_trip() -> None:
    """Reading and writing a plan changes nothing, also through JSON text."""
    for document in (CPP, CUDA):
        plan = plan_from_document(document)
        assert plan == plan_from_document(json.loads(json.dumps(plan_to_document(plan))))
    assert "grid" not in plan_to_document(plan_from_document(CPP))["kernels"][0]


def test_valid_plans_pass() -> None:
    """Plans as docs show them are accepted."""
    validate(plan_from_document(CPP), "cpp", INPUTS, OUTPUTS)
    validate(plan_from_document(CUDA), "cuda", INPUTS, OUTPUTS)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "must be an object"),
        ({}, "lacks kernels"),
        ({**CPP, "stream": 1}, "unknown field(s) stream"),
        (changed(CPP, "kernels", 0, "cluster", to=["1"]), "unknown field(s) cluster"),
        (changed(CPP, "scratch", "tmp", "init", to="ones"), "init must be"),
        (changed(CPP, "scratch", "tmp", "shape", to=[]), "1 to 8 entries"),
        (changed(CPP, "kernels", to=[]), "1 to 16 entries"),
        (changed(CPP, "kernels", 0, "args", to=[1.5]), "must be a string"),
        (changed(CPP, "symbols", "C", to=10**5000), "64 bits"),
        (changed(CPP, "symbols", to={f"S{i}": "1" for i in range(65)}), "at most 64"),
        (changed(CPP, "symbols", to={"a b": "1"}), "is not a name"),
        (changed(CUDA, "kernels", 0, "grid", to=["1", "1"]), "3 to 3 entries"),
        (changed(CUDA, "kernels", 0, "grid", to="111"), "3 to 3 entries"),
    ],
)
def test_strict_reading(document: object, words: str) -> None:
    """Unknown fields, wrong types and sizes beyond the limits are refused when read."""
    with pytest.raises(ContractBreach) as caught:
        plan_from_document(document)

    assert words in str(caught.value)


ARGS = CPP["kernels"][0]["args"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (changed(CPP, "kernels", 0, "args", to=ARGS[:-1]), "last argument"),
        (changed(CPP, "kernels", 0, "args", to=[*ARGS[:4], "i32:nthreads", *ARGS[4:]]), "last"),
        (changed(CPP, "kernels", 0, "args", to=["i64:1", *ARGS]), "scalars after them"),
        (changed(CPP, "kernels", 0, "args", to=["in0", *ARGS]), "more than once"),
        (changed(CPP, "kernels", 0, "args", to=["in0", "i32:nthreads"]), "out0"),
        (changed(CPP, "kernels", 0, "args", to=["in7", *ARGS]), "no input"),
        (changed(CPP, "kernels", 0, "args", to=["out1", *ARGS]), "no input"),
        (changed(CPP, "kernels", 0, "args", to=[*ARGS[:4], "u8:1", ARGS[-1]]), "no known type"),
        (changed(CPP, "kernels", 0, "args", to=[*ARGS[:4], "i64:C/2", ARGS[-1]]), "an integer"),
        (
            changed(CPP, "kernels", 0, "args", to=[*ARGS[:4], "i32:C*100000000", ARGS[-1]]),
            "32 bits",
        ),
        (changed(CPP, "kernels", 0, "args", to=[*ARGS[:4], "f32:1e300", ARGS[-1]]), "32 bits"),
        (changed(CPP, "kernels", 0, "name", to="main"), "may not be called"),
        (changed(CPP, "kernels", 0, "name", to="a::b"), "is not a name"),
        (changed(CPP, "kernels", 0, "block", to=["2", "1", "1"]), "no grid"),
        (changed(CPP, "symbols", "in0", to="1"), "reserved"),
        (changed(CPP, "symbols", "nthreads", to="1"), "reserved"),
        (changed(CPP, "symbols", "tmp", to="1"), "both"),
        (changed(CPP, "symbols", "C", to="ROWS"), "ring"),
        (changed(CPP, "symbols", "C", to="in0.shape[9]"), "no index 9"),
        (changed(CPP, "symbols", "C", to="0"), "division by zero"),
        (changed(CPP, "scratch", "tmp", "dtype", to="complex64"), "no dtype"),
        (changed(CPP, "scratch", "tmp", "shape", to=["-1"]), "negative"),
        (changed(CPP, "scratch", "tmp", "shape", to=["1000000000"]), "at most"),
        (changed(CPP, "scratch", "tmp", "shape", to=["9223372036854775807", "1"]), "at most"),
        (changed(CPP, "scratch", "tmp", "shape", to=["nthreads"]), "no symbol 'nthreads'"),
        ({**CPP, "kernels": CPP["kernels"] * 2}, "exactly one kernel"),
    ],
)
def test_cpp_rules(document: dict, words: str) -> None:
    """Each rule of a cpp plan is enforced, with its reason."""
    plan = plan_from_document(document)
    with pytest.raises(ContractBreach) as caught:
        validate(plan, "cpp", INPUTS, OUTPUTS)

    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("grid", ["0", "1", "1"], "outside"),
        ("grid", ["1", "65536", "1"], "outside"),
        ("block", ["512", "4", "1"], "1024 threads"),
        ("block", ["1", "1", "65"], "outside"),
        ("shared", "300000", "shared"),
        ("shared", "-1", "shared"),
    ],
)
def test_launch_limits(field: str, value: object, words: str) -> None:
    """Launch sizes that no GPU takes are refused before a launch."""
    plan = plan_from_document(changed(CUDA, "kernels", 0, field, to=value))
    with pytest.raises(ContractBreach) as caught:
        validate(plan, "cuda", INPUTS, OUTPUTS)

    assert words in str(caught.value)


def test_scratch_may_grow_with_the_tensors() -> None:
    """The limit on scratch follows what the target reads and writes, with a floor."""
    big = TensorSpec((1 << 14, 1 << 12), (1 << 12, 1), "float32")

    assert scratch_limit(INPUTS, OUTPUTS) == 16 << 20
    assert scratch_limit([big], [big]) == 4 * 2 * (1 << 26) * 4


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
_HOSTILE = _JSON | st.fixed_dictionaries(
    {"kernels": st.lists(st.fixed_dictionaries({"name": _JSON, "args": _JSON}) | _JSON)},
    optional={"symbols": st.dictionaries(st.text(max_size=4), _JSON) | _JSON, "scratch": _JSON},
)


@given(_HOSTILE)
def test_any_json_is_a_plan_or_a_breach(document: object) -> None:
    """No document raises anything but ContractBreach, in reading or in checking."""
    try:
        validate(plan_from_document(document), "cpp", INPUTS, OUTPUTS)
    except ContractBreach:
        return


def test_digest_is_of_language_source_and_plan() -> None:
    """The content address changes with what runs, and only with that."""
    plan = LaunchPlan((Kernel("k", ("out0", "i32:nthreads")),))
    one = Candidate("cpp", "int x;", plan, title="a", origin={"proposer": "manual"})

    assert one.digest == Candidate("cpp", "int x;", plan).digest
    assert one.digest != Candidate("cpp", "int y;", plan).digest
    other = LaunchPlan(plan.kernels, scratch={"t": Scratch("float32", ("1",))})
    assert one.digest != Candidate("cpp", "int x;", other).digest
