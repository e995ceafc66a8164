"""Plan expressions: Python's arithmetic and nothing else."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kforge_nb.candidates.expressions import MAX_DEPTH, MAX_LENGTH, evaluate, names
from kforge_nb.errors import ContractBreach
from kforge_nb.targets.target import TensorSpec

X = TensorSpec((2, 3, 8), (24, 8, 1), "float32")


@st.composite
def integer_trees(draw: st.DrawFn, depth: int = 4) -> tuple[str, str]:
    """An expression as the plan writes it and as Python writes it."""
    if depth == 0 or draw(st.booleans()):
        number = str(draw(st.integers(0, 10**6)))
        return number, number
    kind = draw(st.sampled_from(["+", "-", "*", "//", "%", "neg", "min", "max", "ceil_div"]))
    left, left_py = draw(integer_trees(depth - 1))
    if kind == "neg":
        return f"-({left})", f"-({left_py})"
    right, right_py = draw(integer_trees(depth - 1))
    if kind == "ceil_div":
        return f"ceil_div({left}, {right})", f"(-(-({left_py}) // ({right_py})))"
    if kind in ("min", "max"):
        return f"{kind}({left},{right})", f"{kind}({left_py}, {right_py})"
    return f"({left}) {kind} ({right})", f"({left_py}) {kind} ({right_py})"


@given(integer_trees())
def test_integers_agree_with_python(pair: tuple[str, str]) -> None:
    """Whatever Python computes for the same integers is what a plan gets, or a breach in words."""
    text, python = pair
    try:
        expected = eval(python, {"__builtins__": {}, "min": min, "max": max})
    except ZeroDivisionError:
        with pytest.raises(ContractBreach):
            evaluate(text, {})
        return
    try:
        found = evaluate(text, {})
    except ContractBreach as problem:
        reason = str(problem)
    else:
        assert expected == found
        assert isinstance(found, int)
        return

    assert "64 bits" in reason or "characters" in reason


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x.shape[0] * x.shape[1] * x.shape[-1]", 48),
        ("numel(x)", 48),
        ("x.ndim", 3),
        ("x.stride(0) - x.stride(-2)", 16),
        ("x.shape[x.ndim - 1]", 8),
        ("ceil_div(N, 5) * 5", 50),
        ("2 + 3 * 4 - 10 // 3 % 2", 13),
        ("-7 // 2", -4),
        ("-7 % 3", 2),
        ("- - 3", 3),
        ("min(4, 2, 3)", 2),
        ("1 / 4", 0.25),
        ("1e-6", 1e-6),
        ("0.5 * N", 23.5),
    ],
)
def test_values(text: str, value: float) -> None:
    """Each question and operator of the grammar gives what its words say."""
    assert value == evaluate(text, {"x": X, "N": 47})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 // 0", "division by zero"),
        ("N % (N - N)", "division by zero"),
        ("1 / 0", "division by zero"),
        ("9223372036854775807 + 1", "64 bits"),
        ("9223372036854775808", "64 bits"),
        ("4000000000 * 4000000000", "64 bits"),
        ("1e308 * 10", "not finite"),
        ("y", "no symbol 'y'"),
        ("x", "is a tensor"),
        ("numel(N)", "no tensor 'N'"),
        ("x.shape[3]", "no index 3"),
        ("x.shape[-4]", "no index -4"),
        ("x.shape[0.5]", "no index 0.5"),
        ("x.data", "not 'data'"),
        ("__import__(1)", "no function '__import__'"),
        ("x.__class__", "not '__class__'"),
        ("open(1, 2)", "no function 'open'"),
        ("ceil_div(1)", "1 argument"),
        ("N = 3", "'=' is not allowed"),
        ("1 ** 2", "expected a number or a name"),
        ("'a'", "not allowed"),
        ("1 2", "not expected"),
        ("(1", "expected ')'"),
        ("", "expected a number"),
        ("1 +", "expected a number"),
        ("ｎ", "not allowed"),
        ("[x for x in N]", "expected a number"),
    ],
)
def test_refusals_quote_the_expression(text: str, words: str) -> None:
    """What is outside of the grammar is refused with the text and the reason."""
    with pytest.raises(ContractBreach) as caught:
        evaluate(text, {"x": X, "N": 47})

    assert words in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 60 + "1" + ")" * 60,
        "-" * 200 + "1",
        "+".join(["1"] * 100),
        "1" + " " * MAX_LENGTH,
        "min(" * 40 + "1" + ",1)" * 40,
    ],
)
def test_size_limits(text: str) -> None:
    """Deep and long expressions are refused, so that none can exhaust the stack or the time."""
    with pytest.raises(ContractBreach):
        evaluate(text, {})


@given(st.text(max_size=60))
def test_any_text_is_a_number_or_a_breach(text: str) -> None:
    """Hostile text never raises anything but ContractBreach."""
    try:
        assert math.isfinite(evaluate(text, {"x": X}))
    except ContractBreach:
        return


def test_no_other_types() -> None:
    """Expressions that are no strings, and values that are no numbers, are refused."""
    with pytest.raises(ContractBreach):
        evaluate(["1"], {})  # type: ignore[arg-type]
    with pytest.raises(ContractBreach):
        evaluate("b", {"b": True})


def test_names() -> None:
    """Dependencies are found without evaluating."""
    assert names("ceil_div(numel(x), A) * y.shape[B]") == {"x", "A", "y", "B"}
    assert MAX_DEPTH > 8
