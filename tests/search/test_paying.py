"""Paid calls go where a dollar brings most, and stop where it brings too little."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kforge_nb.proposers.cost import Ledger, Price
from kforge_nb.search.allocate import Pick, Rates, Stop, TargetState
from kforge_nb.search.paying import Close, money_shares, next_paid


def state(index=0, **facts):
    return TargetState(
        **{"index": index, "family": f"f{index}", "share": 0.1, "headroom": 3.0, **facts}
    )


def always(index):
    return True


def test_shares_go_by_expected_gain():
    """Twice the share of time means twice the money, and all of it is given away."""
    found = money_shares([state(0, share=0.2), state(1, share=0.1)])
    assert found == pytest.approx({0: 2 / 3, 1: 1 / 3})


@pytest.mark.parametrize(
    "facts", [{"share": 1e-6}, {"headroom": 1.04}, {"best": 2.9}, {"open": False}]
)
def test_small_and_finished_targets_get_nothing(facts):
    """A target near its roofline, with little share or closed is given no money, and no call."""
    assert money_shares([state(0), state(1, **facts)]) == {0: 1.0}
    assert money_shares([state(1, **facts)]) == {}
    assert isinstance(next_paid([state(1, **facts)], None, always, spent=0.0), Stop)


def test_the_cheaper_of_two_equal_gains_is_bought():
    """It is the gain per dollar that decides, not the gain."""
    found = next_paid([state(0, price=0.4), state(1, price=0.2)], None, always, spent=0.0)
    assert isinstance(found, Pick)
    assert found.index == 1


def test_a_run_stops_when_a_dollar_brings_too_little():
    """After much was gained for little, an attempt for hardly anything is not worth its price."""
    won = state(0, share=0.5, best=2.9, gains=5, attempts=6, price=0.1)
    rest = state(1, share=0.001, attempts=10, dry=10, price=0.1)
    found = next_paid([won, rest], None, always, spent=0.6)
    assert isinstance(found, Stop)
    assert "not worth its price" in found.reason
    # The same attempt is worth it in a run that has not brought more for its money.
    assert isinstance(next_paid([rest], None, always, spent=0.6), Pick)


def test_a_target_that_waits_for_money_gets_what_others_leave():
    """When only targets without money are worth a call, those that are not are closed first."""
    worth, done = state(0, share=0.3), state(1, share=1e-5)
    found = next_paid([worth, done], None, lambda i: i == 1, spent=1.0)
    assert isinstance(found, Close)
    assert found.index == 1


def test_the_least_valuable_of_those_that_wait_is_closed_first():
    """Where no part is enough for one call, parts are put together for the best targets."""
    states = [state(0, share=0.3), state(1, share=0.1), state(2, share=0.2)]
    found = next_paid(states, None, lambda i: False, spent=1.0)
    assert isinstance(found, Close)
    assert found.index == 1
    alone = next_paid([state(0)], None, lambda i: False, spent=1.0)
    assert isinstance(alone, Stop)
    assert "what is left of the money" in alone.reason


@given(
    shares=st.lists(st.floats(0, 0.3), min_size=1, max_size=6),
    max_cost=st.floats(0.001, 3.0),
    results=st.lists(st.booleans(), min_size=60, max_size=60),
)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_a_paid_run_ends_within_its_money(shares, max_cost, results):
    """Whatever is won, the loop of picks, closes and calls ends, and never spends too much."""
    price = Price(1.0, 1.0, 10.0, "m", "given", "d")
    facts = {i: {"share": s, "price": 0.02} for i, s in enumerate(shares)}
    rates = Rates()
    ledger = Ledger(price, max_cost, money_shares([state(i, **f) for i, f in facts.items()]))
    won = iter(results)
    for _ in range(1000):
        states = [state(i, **f) for i, f in facts.items()]
        found = next_paid(
            states, rates, lambda i: ledger.fits(i, 10_000, 1000, 2), spent=ledger.spent
        )
        if isinstance(found, Stop):
            break
        if isinstance(found, Close):
            assert facts[found.index].get("open", True)
            facts[found.index]["open"] = False
            ledger.close(found.index)
            continue
        call = ledger.reserve(found.index, 10_000, 1000, 2)
        call.settle(None)
        one, gain = facts[found.index], next(won, False)
        one["attempts"] = one.get("attempts", 0) + 1
        one["dry"] = 0 if gain else one.get("dry", 0) + 1
        one["gains"] = one.get("gains", 0) + gain
        one["best"] = one.get("best", 1.0) * (1.2 if gain else 1.0)
    else:
        pytest.fail("the run did not end")
    assert ledger.spent <= max_cost
    assert ledger.reserved == 0.0
