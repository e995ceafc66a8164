"""Prices, bounds and the worst case of a run."""

import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kforge_nb.errors import BadInput, MissingTool
from kforge_nb.proposers.cost import (
    Plan,
    Price,
    Usage,
    price_of,
    tokens_bound,
    tokens_estimate,
    worst_case,
)
from kforge_nb.proposers.prices import Rates

CHEAP = Price(1.0, 0.5, 4.0, "m", "given", "2026-11-30")
LONG = Price(1.0, 0.1, 4.0, "m", "t", "d", tiers=(Rates(1000, 2.0, 0.2, 8.0),))


@pytest.fixture
def _table():
    """The price table, which a bare GPU server does not have."""
    pytest.importorskip("genai_prices")


def test_given_prices_win_over_the_table():
    """What the user says is the price, of a known model too, with cached tokens at full price."""
    found = price_of("gpt-4o-mini", price_in=3, price_out=9)
    assert (found.per_million_in, found.per_million_cached, found.per_million_out) == (3, 3, 9)
    assert found.source == "given"


@pytest.mark.usefixtures("_table")
def test_a_known_model_has_the_price_of_the_table(monkeypatch):
    """A model of the table needs no flags, and says from which table and when."""
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    found = price_of("gpt-4o-mini")
    assert 0 < found.per_million_cached < found.per_million_in < found.per_million_out
    assert found.source.startswith("genai-prices ")
    assert len(found.dated) == len("2026-11-30")


@pytest.mark.usefixtures("_table")
@pytest.mark.parametrize(
    ("model", "url"),
    [
        ("no-such-model", None),
        ("gpt-4o-mini", "http://127.0.0.1:8000/v1"),
        ("llama3", "http://user:secret@localhost:11434/v1"),
        ("claude-opus-4-5", "https://api.openai.com/v1"),
    ],
)
def test_an_unknown_price_is_an_error_that_names_the_flags(model, url, monkeypatch):
    """An unknown model, or a known name at an unknown endpoint, must never be booked as free."""
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(BadInput, match="--price-in 0 --price-out 0") as caught:
        price_of(model, base_url=url)
    assert "secret" not in str(caught.value)


@pytest.mark.usefixtures("_table")
def test_the_endpoint_of_the_environment_counts(monkeypatch):
    """Where the openai package would call another endpoint, that endpoint's price is asked for."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8000/v1")
    with pytest.raises(BadInput, match="localhost:8000"):
        price_of("gpt-4o-mini")


@pytest.mark.parametrize(("low", "high"), [(1.0, None), (None, 1.0)])
def test_half_a_price_is_an_error(low, high):
    """One flag alone would leave the other half unknown."""
    with pytest.raises(BadInput, match="both --price-in and --price-out"):
        price_of("m", price_in=low, price_out=high)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_what_is_no_price_is_refused(value):
    """A negative price would let a run earn money, an endless one stop it without words."""
    with pytest.raises(BadInput, match="is no price"):
        price_of("m", price_in=value, price_out=1.0)


def test_without_the_package_the_flags_are_named(monkeypatch):
    """A missing genai-prices is told by name, with the way around it."""
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(MissingTool, match=r"pip install.*--price-in"):
        price_of("gpt-4o-mini")
    assert price_of("gpt-4o-mini", price_in=0, price_out=0).free


def test_neither_the_table_nor_anything_large_is_imported_early():
    """Importing the money must not load genai-prices, openai or torch."""
    words = "import sys, kforge_nb.proposers.cost, kforge_nb.proposers.spending;"
    check = (
        "assert not {'genai_prices', 'openai', 'torch', 'pydantic', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", words + check], check=True, timeout=60)


def test_cached_and_reasoning_tokens():
    """Cached tokens cost less, reasoning is part of what came out and not counted twice."""
    assert CHEAP.cost(Usage(1_000_000, 0, 0)) == 10**12
    assert CHEAP.cost(Usage(1_000_000, 1_000_000, 0)) == 5 * 10**11
    assert CHEAP.cost(Usage(0, 0, 500_000, reasoning=400_000)) == 2 * 10**12


def test_odd_usage_costs_nothing_less_than_nothing():
    """An endpoint that reports negative counts, or more cached than sent, must not pay us."""
    assert CHEAP.cost(Usage(-5, -5, -5)) == 0
    assert CHEAP.cost(Usage(10, 10_000, 0)) == CHEAP.cost(Usage(10, 10, 0))


def test_long_prompts_pay_the_rate_of_their_tier():
    """Beyond a tier's start all tokens cost its rate."""
    assert LONG.cost(Usage(1000, 0, 0)) == 1000 * 10**6
    assert LONG.cost(Usage(1001, 0, 0)) == 2 * 1001 * 10**6


tokens = st.integers(0, 10**7)
rate = st.floats(0, 1000, allow_nan=False)
prices = st.builds(
    Price,
    rate, rate, rate, st.just("m"), st.just("s"), st.just("d"), st.floats(0, 1),
    st.lists(st.builds(Rates, st.integers(0, 10**6), rate, rate, rate), max_size=2).map(tuple),
)  # fmt: skip


@given(price=prices, limit_in=tokens, limit_out=tokens, data=st.data())
@settings(deadline=None, max_examples=150, derandomize=True)
def test_no_call_within_its_limits_costs_more_than_the_worst_case(price, limit_in, limit_out, data):
    """Whatever the rates and tiers, a usage within the limits is at most the worst case."""
    count = data.draw(st.integers(0, limit_in))
    usage = Usage(count, data.draw(st.integers(0, count)), data.draw(st.integers(0, limit_out)))
    assert price.cost(usage) <= price.most(limit_in, limit_out)


@given(st.text(max_size=200))
@settings(deadline=None, max_examples=100, derandomize=True)
def test_the_bound_is_above_bytes_and_the_estimate(text):
    """No tokenizer needs more tokens than bytes; the estimate lies below the bound."""
    assert tokens_bound(text) > len(text.encode())
    assert tokens_estimate(text) <= tokens_bound(text)


def test_characters_that_a_tokenizer_writes_out_are_counted_so():
    """One character may be eighteen after normalisation, and each of them tokens."""
    assert tokens_bound("\ufdfa" * 100) > 100 * 18


def test_a_lone_surrogate_has_a_bound():
    """Text that is no UTF-8 must not end the run before its first call."""
    assert tokens_bound("\ud800") > 0


def test_worst_case_of_a_run():
    """Calls times their price, the dearest within the budget, and never above the limit."""
    plans = [Plan(0, 10, 1000), Plan(1, 10, 2000)]
    one = [(1000 + 4 * 100) / 1e6, (2000 + 4 * 100) / 1e6]
    found = worst_case(CHEAP, plans, max_tokens=100, attempts=3)
    assert found.calls == 20
    assert found.usd == pytest.approx(30 * sum(one))
    assert found.by_target == pytest.approx({0: 30 * one[0], 1: 30 * one[1]})
    assert not found.capped
    assert worst_case(CHEAP, plans, max_tokens=100, budget=10).usd == pytest.approx(10 * one[1])
    capped = worst_case(CHEAP, plans, max_tokens=100, max_cost=0.01)
    assert capped.usd == 0.01
    assert capped.capped
