"""The ledger: what is spent and set apart never exceeds what is allowed."""

import json
import math
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kforge_nb.errors import BadInput, StoreError
from kforge_nb.proposers.cost import Ledger, OverBudget, Price, Reservation, Usage

PRICE = Price(1.0, 0.1, 10.0, "m", "given", "2026-11-30")
ONE = (1000 + 10 * 100) / 1e6  # USD of a call with 1000 tokens in and 100 out
FREE = Price(0.0, 0.0, 0.0, "m", "given", "2026-11-30")


def ledger(max_cost=None, shares=None, **more):
    return Ledger(PRICE, max_cost, shares, **more)


def reserve(book, target=0, attempts=1):
    return book.reserve(target, 1000, 100, attempts)


def test_a_call_that_could_exceed_the_limit_is_not_made():
    """As many worst cases are allowed as fit, retries included, and what is left is said."""
    book = ledger(3 * ONE)
    assert isinstance(reserve(book, attempts=2), Reservation)
    assert book.reserved == pytest.approx(2 * ONE)
    refused = reserve(book, attempts=2)
    assert isinstance(refused, OverBudget)
    assert refused.whole
    assert "0.0020 USD are left" in refused.reason
    assert isinstance(reserve(book), Reservation)
    assert not book.fits(0, 1000, 100)


def test_ten_cents_ten_times_are_a_dollar():
    """Sums of amounts that no binary fraction holds must come out even."""
    book = Ledger(Price(0.1, 0.1, 0.0, "m", "given", "d"), 1.0)
    assert all(isinstance(book.reserve(0, 10**6, 0), Reservation) for _ in range(10))
    assert isinstance(book.reserve(0, 1, 0), OverBudget)
    assert book.reserved == 1.0


def test_settling_books_the_real_usage_and_frees_the_rest():
    """After the answer only what was used is gone."""
    book = ledger(3 * ONE)
    call = reserve(book, attempts=3)
    assert isinstance(reserve(book), OverBudget)
    paid = call.settle(Usage(500, 100, 20))
    assert paid == pytest.approx((400 + 0.1 * 100 + 10 * 20) / 1e6)
    assert (book.spent, book.reserved) == (paid, 0.0)
    assert book.remaining == pytest.approx(3 * ONE - paid)
    assert book.by_target == {0: paid}
    assert call.note == ""


def test_a_call_that_was_not_made_costs_nothing():
    """A refused key or a connection that never opened frees its money."""
    book = ledger(ONE)
    reserve(book).release()
    assert (book.spent, book.reserved) == (0.0, 0.0)
    assert isinstance(reserve(book), Reservation)


def test_missing_usage_and_lost_attempts_are_booked_at_their_worst():
    """Where nobody can say what a call cost, the worst case is spent, and it is said."""
    book = ledger(5 * ONE)
    call = reserve(book, attempts=3)
    assert call.settle(None, lost=2) == pytest.approx(3 * ONE)
    assert "reported no usage" in call.note
    assert "2 unanswered attempts" in call.note


def test_an_endpoint_that_reports_more_than_asked_for_is_told():
    """Usage above the call's own limits is booked as reported, named, and stops further calls."""
    book = ledger(2 * ONE)
    call = reserve(book)
    assert call.settle(Usage(1000, 0, 1000)) == pytest.approx(0.011)
    assert "more than the call could have used" in call.note
    assert book.spent == pytest.approx(0.011)
    assert book.remaining == 0.0
    assert isinstance(reserve(book), OverBudget)


@pytest.mark.parametrize("first", ["settle", "release"])
def test_a_reservation_ends_once(first):
    """Booking a call twice would be as wrong as never."""
    book = ledger(10 * ONE)
    call = reserve(book)
    call.settle(Usage(1)) if first == "settle" else call.release()
    before = book.spent
    for again in (call.release, lambda: call.settle(Usage(1000))):
        with pytest.raises(ValueError, match="before"):
            again()
    assert (book.spent, book.reserved) == (before, 0.0)


def test_shares_split_the_money_and_flow_back():
    """No target takes another's part, and what a finished one left is shared among the others."""
    book = ledger(8 * ONE, {0: 2.0, 1: 1.0, 2: 1.0})
    assert [book.allowance(t) for t in range(3)] == pytest.approx([4 * ONE, 2 * ONE, 2 * ONE])
    calls = [reserve(book, 1) for _ in range(3)]
    assert [isinstance(c, Reservation) for c in calls] == [True, True, False]
    assert not calls[2].whole
    assert "its part of 0.0040 USD" in calls[2].reason
    reserve(book, 0).settle(Usage(1000, 0, 100))
    book.close(0)  # three calls' worth comes back: seven for 1 and 2 together
    assert book.allowance(1) == pytest.approx(3.5 * ONE)
    assert isinstance(reserve(book, 1), Reservation)
    assert isinstance(reserve(book, 0), OverBudget)
    book.close(2)
    assert book.allowance(1) == pytest.approx(7 * ONE)


def test_a_target_without_a_share_gets_nothing():
    """A target that is not worth money must not be paid for by mistake."""
    book = ledger(8 * ONE, {0: 1.0, 1: 0.0})
    assert isinstance(reserve(book, 1), OverBudget)
    assert isinstance(reserve(book, 7), OverBudget)


def test_without_a_limit_everything_is_booked_and_nothing_refused():
    """No --max-cost still means that each call is counted."""
    book = ledger(None, {0: 1.0})
    assert reserve(book, 5).settle(Usage(1000, 0, 100)) == pytest.approx(ONE)
    assert book.remaining == math.inf
    assert book.allowance(0) == math.inf


def test_a_free_model_is_never_refused():
    """A local endpoint costs nothing, so a limit of nothing does not stop it."""
    book = Ledger(FREE, 0.0, {})
    call = book.reserve(3, 10**6, 10**6, 5)
    assert isinstance(call, Reservation)
    assert call.settle(None, lost=3) == 0.0
    assert call.note == ""


@pytest.mark.parametrize("amount", [-1.0, math.nan, math.inf])
def test_limits_and_shares_must_be_amounts(amount):
    """A limit of nan would never stop anything."""
    with pytest.raises(BadInput, match="is no amount"):
        ledger(amount)
    with pytest.raises(BadInput, match="share"):
        ledger(1.0, {0: amount})


def test_journal_hears_of_a_call_before_it_can_be_made():
    """Each reservation is written down as it is made, and once more when it ends."""
    rows = []
    book = ledger(10 * ONE, journal=rows.append)
    call = reserve(book, 3)
    assert [r["state"] for r in rows] == ["reserved"]
    assert rows[0]["usd"] == pytest.approx(ONE)
    call.settle(Usage(1000))
    reserve(book).release()
    assert [(r["number"], r["state"]) for r in rows] == [
        (0, "reserved"), (0, "settled"), (1, "reserved"), (1, "released"),
    ]  # fmt: skip
    assert rows[1]["usd"] == pytest.approx(0.001)


def test_a_journal_that_cannot_write_means_no_reservation():
    """A full disk must not leave money set apart for a call that nobody will make."""

    def full(row):
        raise StoreError("the disk is full")

    book = ledger(ONE, journal=full)
    with pytest.raises(StoreError):
        reserve(book)
    assert book.reserved == 0.0


def test_a_crash_between_call_and_answer_counts_as_spent():
    """A session that ended with calls under way resumes with their worst case gone, and says so."""
    rows = {}
    book = ledger(4 * ONE, journal=lambda row: rows.__setitem__(row["number"], row))
    reserve(book, 1).settle(Usage(1000, 0, 100))
    reserve(book, 2)
    reserve(book, 2).release()
    again = ledger(4 * ONE)
    told = again.restore(json.loads(json.dumps(list(rows.values()))))
    assert again.by_target == pytest.approx({1: ONE, 2: ONE})
    assert len(told) == 1
    assert "1 call was under way" in told[0]
    assert "0.0020 USD" in told[0]
    made = reserve(again)
    assert made.number == 2  # numbers of released calls may come again, others never
    assert ledger(1.0).restore([]) == []


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"target": 0, "state": "settled", "usd": None},
        {"target": 0, "state": "paid", "usd": 1},
        {"target": 0, "state": "settled", "usd": -1},
        {"target": 0, "state": "settled", "usd": math.nan},
        {"target": 0, "state": "settled", "usd": math.inf},
    ],
)
def test_damaged_bookings_are_refused(row):
    """What was spent cannot be guessed: a damaged row must be told, not skipped."""
    with pytest.raises(StoreError, match="damaged"):
        ledger(1.0).restore([row])


class Books(RuleBasedStateMachine):
    """Any order of reserving, settling, releasing and closing keeps to the limits."""

    def __init__(self):
        super().__init__()
        self.book = ledger(20 * ONE, {0: 3.0, 1: 1.0, 2: 0.5})
        self.open = []

    @rule(index=st.integers(0, 3), tokens=st.integers(0, 3000), attempts=st.integers(1, 3))
    def reserve(self, index, tokens, attempts):
        before = self.book.allowance(index)
        fits = self.book.fits(index, tokens, 100, attempts)
        made = self.book.reserve(index, tokens, 100, attempts)
        assert fits == isinstance(made, Reservation)
        if fits:
            self.open.append((made, tokens))
            booked = self.book.by_target.get(index, 0.0)
            ours = sum(m.usd for m, _ in self.open if m.target == index)
            assert booked + ours <= before * (1 + 1e-12)

    @rule(data=st.data(), lost=st.integers(0, 1))
    def settle(self, data, lost):
        if self.open:
            made, tokens = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
            usage = data.draw(st.one_of(st.none(), st.builds(
                Usage, st.integers(0, tokens), st.just(0), st.integers(0, 100))))  # fmt: skip
            most = made.usd
            attempts = round(most / PRICE.most(tokens, 100) * 1e12)
            made.settle(usage, lost=min(lost, attempts - 1))
            assert made.usd <= most

    @rule(data=st.data())
    def release(self, data):
        if self.open:
            self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))[0].release()

    @rule(index=st.integers(0, 3))
    def close(self, index):
        self.book.close(index)

    @invariant()
    def never_above_the_limit(self):
        assert self.book.spent + self.book.reserved <= 20 * ONE * (1 + 1e-12)
        assert self.book.reserved == pytest.approx(sum(m.usd for m, _ in self.open))


TestBooks = Books.TestCase
TestBooks.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, derandomize=True
)


@given(seed=st.integers(0, 10**6), threads=st.integers(2, 6))
@settings(deadline=None, max_examples=15, derandomize=True)
def test_threads_cannot_spend_more_than_is_allowed(seed, threads):
    """Many threads that reserve, settle and release at once stay within the run's money."""
    limit = 25 * ONE
    book = ledger(limit, {0: 1.0, 1: 2.0})
    seen = []

    def work(number):
        rng = random.Random(f"{seed}/{number}")
        for _ in range(30):
            target = rng.randrange(2)
            made = reserve(book, target, rng.randint(1, 3))
            seen.append(book.booked)
            if isinstance(made, OverBudget):
                continue
            ending = rng.random()
            if ending < 0.3:
                made.release()
            else:
                made.settle(Usage(rng.randint(0, 1000), 0, rng.randint(0, 100)))
            seen.append(book.booked)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    assert max(seen) <= limit
    assert book.reserved == 0.0
    assert sum(book.by_target.values()) == pytest.approx(book.spent)
    assert book.by_target.get(0, 0.0) <= limit / 3 * (1 + 1e-12)
