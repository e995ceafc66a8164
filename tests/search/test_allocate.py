"""Budget goes where the whole model gains most."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kforge_nb.errors import DocumentError
from kforge_nb.search.allocate import Pick, Rates, Stop, TargetState, expected_gain, next_target


def state(index=0, **facts):
    return TargetState(
        **{"index": index, "family": "softmax", "share": 0.1, "headroom": 3.0, **facts}
    )


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ({"share": 0.02}, {"share": 0.2}),
        ({"headroom": 1.1}, {"headroom": 4.0}),
        ({"best": 2.8, "gains": 1, "attempts": 1}, {}),
        ({"attempts": 10, "dry": 10}, {}),
        ({"pending": 3}, {}),
        ({"price": 5.0}, {}),
        ({"open": False, "share": 0.9}, {}),
    ],
)
def test_each_fact_decides(worse, better):
    """Share, headroom, what is won already, vain attempts, work under way and price must count."""
    for order in ((worse, better), (better, worse)):
        picked = next_target([state(i, **facts) for i, facts in enumerate(order)])
        assert order[picked.index] is better


def test_equal_targets_go_by_index():
    """Nothing is random: among equals the first is picked, every time."""
    assert {next_target([state(2), state(1), state(3)]).index for _ in range(5)} == {1}


def test_stops_in_words():
    """Without open targets, or with none worth its price, the answer says so."""
    assert "no targets" in next_target([]).reason
    assert "every target is done" in next_target([state(open=False)]).reason
    found = next_target([state(headroom=1.0)])
    assert isinstance(found, Stop)
    assert "no time is left to save" in found.reason
    found = next_target([state()], least_value=0.5)
    assert isinstance(found, Stop)
    assert "% of the workload's time, which is not worth" in found.reason
    assert isinstance(next_target([state()], least_gain=0.5), Stop)


def test_rates_are_learned_and_carry_over():
    """A family that succeeds must be preferred, and new ones inherit the rate of the action."""
    rates = Rates()
    for _ in range(20):
        rates.observe("softmax", "optimise", True)
        rates.observe("pooling", "optimise", False)
    assert rates.mean("softmax", "optimise") > 0.7
    assert rates.mean("pooling", "optimise") < 0.2
    assert 0.3 < rates.mean("unseen", "optimise") < 0.7
    assert rates.mean("unseen", "repair") == pytest.approx(Rates().mean("unseen", "repair"))
    picked = next_target([state(0, family="pooling"), state(1, family="softmax")], rates)
    assert picked.index == 1


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["draft", "repair"]), st.booleans()),
        max_size=40,
    )
)
@settings(deadline=None, max_examples=50, derandomize=True)
def test_rates_round_trip(seen):
    """Rates survive JSON and stay probabilities whatever was observed."""
    rates = Rates()
    for one in seen:
        rates.observe(*one)
    again = Rates.from_document(json.loads(json.dumps(rates.to_document())))
    for family in "abcd":
        for action in ("draft", "repair"):
            assert 0 < again.mean(family, action) < 1
            assert again.mean(family, action) == rates.mean(family, action)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"successes": 1, "failures": 1, "counts": [["a", "draft", -1, 0]]},
        {"successes": 0, "failures": 1, "counts": []},
        {"successes": 1, "failures": 1, "counts": [["a"]]},
    ],
)
def test_damaged_rates_are_refused(data):
    """Rates from outside that make no sense must not steer a search."""
    with pytest.raises(DocumentError):
        Rates.from_document(data)


@given(
    share=st.floats(0, 1),
    headroom=st.one_of(st.none(), st.floats(0.1, 100)),
    best=st.floats(0.1, 100),
    attempts=st.integers(0, 100),
    dry=st.integers(0, 100),
)
@settings(deadline=None, max_examples=100, derandomize=True)
def test_a_gain_is_a_part_of_the_time(share, headroom, best, attempts, dry):
    """No facts, however odd, may promise more than the target's share or less than nothing."""
    one = state(share=share, headroom=headroom, best=best, attempts=attempts, dry=dry)
    assert 0 <= expected_gain(one, Rates()) <= share


def simulate(policy, seed, budget):
    """Part of the workload's time saved when attempts are given away by a policy."""
    rng = random.Random(seed)
    facts = [(0.30, 1.3), (0.15, 4.0), (0.05, 8.0), (0.02, 10.0), (0.01, 3.0), (0.01, 2.0)]
    chances = [0.05, 0.35, 0.3, 0.3, 0.3, 0.3]
    states = [state(i, family=f"f{i}", share=s, headroom=h) for i, (s, h) in enumerate(facts)]
    rates = Rates()
    for turn in range(budget):
        i = policy(states, rates, turn)
        one = states[i]
        won = rng.random() < chances[i]
        rates.observe(one.family, one.action, won)
        left = 1 / one.best - 1 / one.headroom
        best = 1 / (1 / one.best - left * 0.5) if won else one.best
        states[i] = replace(
            one,
            best=best,
            attempts=one.attempts + 1,
            gains=one.gains + won,
            dry=0 if won else one.dry + 1,
        )
    return sum(s.share * (1 - 1 / s.best) for s in states)


def test_saves_more_than_uniform_budgets():
    """At the same budget the policy must save clearly more of the workload than taking turns."""

    def ours(states, rates, turn):
        picked = next_target(states, rates)
        assert isinstance(picked, Pick)
        return picked.index

    def uniform(states, rates, turn):
        return turn % len(states)

    seeds = range(50)
    mine = sum(simulate(ours, s, 18) for s in seeds)
    theirs = sum(simulate(uniform, s, 18) for s in seeds)
    assert mine > 1.2 * theirs


def test_a_slow_start_that_comes_closer_is_worth_more():
    """Where nothing is won yet, the target whose best is nearer to the original goes first."""
    near, far = state(0, reached=0.95, headroom=1.4), state(1, reached=0.4, headroom=1.4)
    assert expected_gain(near, Rates()) > expected_gain(far, Rates()) > 0


def test_a_best_at_the_roofline_has_nothing_left():
    """A few percent below the roofline nobody can measure what is left."""
    assert expected_gain(state(best=2.9), Rates()) == 0.0
    assert expected_gain(state(best=2.7), Rates()) > 0.0


def test_what_is_accepted_counts_as_reached():
    """Where only the accepted best is known, the next success starts from it."""
    known = expected_gain(state(best=2.0, reached=2.0), Rates())
    assert expected_gain(state(best=2.0), Rates()) == known > 0
    assert expected_gain(state(reached=0.0), Rates()) >= 0.0


def test_every_target_that_is_worth_it_is_tried_before_any_gets_its_fourth_attempt():
    """A budget of 12 over one large target and two lesser ones: none goes without a draft."""
    counts = {0: 0, 1: 0, 2: 0, 3: 0}
    shares = {0: 0.6, 1: 0.08, 2: 0.05, 3: 0.0001}
    order = []
    for _ in range(12):
        states = [state(i, share=shares[i], attempts=n, gains=n) for i, n in counts.items()]
        picked = next_target(states, broad=True)
        counts[picked.index] += 1
        order.append(picked.index)
    assert order[:6] == [0, 0, 0, 1, 2, 0]
    assert counts[3] == 0  # it could save nothing that anybody would notice


def test_a_first_attempt_under_way_keeps_nobody_waiting():
    """Targets wait for a first attempt to begin, not for its verdict, and for no closed one."""
    large = state(0, share=0.6, attempts=5, gains=5)
    assert next_target([large, state(1)], broad=True).index == 1
    assert next_target([large, state(1, pending=1)], broad=True).index == 0
    assert next_target([large, state(1, open=False)], broad=True).index == 0
    assert next_target([large, state(1)]).index == 0


def test_the_first_attempt_on_a_target_ends_before_its_second_begins():
    """As long as another that is worth it has had none; with nothing else to do it goes on."""
    under_way = state(0, share=0.6, pending=1)
    assert next_target([under_way, state(1)], broad=True).index == 1
    assert next_target([under_way, state(1, pending=1)], broad=True).index == 0
    assert next_target([under_way, state(1, share=0.001)], broad=True).index == 0
    assert next_target([state(0, share=0.6, attempts=1), state(1)], broad=True).index == 0
    assert next_target([under_way, state(1)]).index == 0
