"""The run's money: set apart before a call is made, booked when its answer is there.

What a call may cost at worst is *reserved* first: all its tokens in, all the tokens out that it
allows, every attempt. What is spent and what is reserved together never exceed ``max_cost``,
nor a target's part of it, however many threads ask at once. Afterwards the real usage is booked and
the rest is free again.

A target's part is its share of what the targets that are still searched may spend: when one is
closed, what it left over flows back to the others. Shares come from
:func:`kforge_nb.search.allocate.money_shares`, by expected gain.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kforge_nb.errors import BadInput, StoreError
from kforge_nb.proposers.prices import Price, Usage, picodollars, usd

__all__ = ["Journal", "Ledger", "OverBudget", "Reservation", "State"]

State = Literal["reserved", "settled", "released"]
Journal = Callable[[dict[str, Any]], None]
"""Told of each reservation before its call, and of its end; see :meth:`Reservation.to_row`."""


@dataclass(frozen=True, slots=True)
class OverBudget:
    """The call must not be made, and why. ``whole`` says that the run's money is meant."""

    reason: str
    whole: bool


@dataclass(slots=True)
class _Account:
    """Picodollars of one target."""

    spent: int = 0
    reserved: int = 0
    weight: float = 0.0
    open: bool = True

    @property
    def booked(self) -> int:
        return self.spent + self.reserved


class Reservation:
    """Money set apart for one call and its repeated attempts. Thread-safe; ends once.

    ``note`` says what was odd about the call once it is settled: no usage, more than reserved.
    """

    def __init__(self, ledger: Ledger, number: int, target: int, one: int, attempts: int) -> None:
        self._ledger, self._one = ledger, one
        self.number, self.target = number, target
        self.state: State = "reserved"
        self.note = ""
        self._amount = one * attempts  # picodollars: the worst case, then what was booked

    @property
    def usd(self) -> float:
        """USD set apart; what was booked once it is settled."""
        return usd(self._amount)

    def settle(self, usage: Usage | None, *, lost: int = 0) -> float:
        """Books what the call cost, in USD, and frees the rest.

        Args:
            usage: As the endpoint reported it; None where it did not, which is booked as the worst
                case of one attempt.
            lost: Further attempts that were sent and whose answer never came whole: each is booked
                as its worst case, as nobody can say what it cost.

        Raises:
            ValueError: The reservation was settled or released before.
        """
        one, lost = self._one, max(lost, 0)
        cost = (one if usage is None else self._ledger.price.cost(usage)) + lost * one
        notes = []
        if usage is None and one:
            notes.append(f"the endpoint reported no usage, so {usd(one):.4f} USD is booked")
        if lost and one:
            notes.append(f"{lost} unanswered attempts are booked at {usd(one):.4f} USD each")
        self._ledger._end(self, "settled", cost, notes)
        return self.usd

    def release(self) -> None:
        """Frees all of it: the call was certainly not made, or the endpoint refused it unread.

        Raises:
            ValueError: The reservation was settled or released before.
        """
        self._ledger._end(self, "released", 0, [])

    def to_row(self) -> dict[str, Any]:
        """Plain data for the store; ``usd`` is the worst case until the call has ended."""
        return {
            "number": self.number,
            "target": self.target,
            "state": self.state,
            "usd": self.usd,
            "note": self.note,
        }


class Ledger:
    """What a run may spend, has set apart, and has spent. Thread-safe.

    Args:
        price: Of the model that is called.
        max_cost: USD for the whole run; None for no limit (shares then mean nothing).
        shares: Weight of each target's part of ``max_cost``; None where only the whole counts. A
            target that is not in it may spend nothing.
        journal: Told of each reservation before its call can be made, and of its end. If it raises
            for a new reservation, there is none.

    Raises:
        BadInput: ``max_cost`` or a share is no amount.
    """

    def __init__(
        self,
        price: Price,
        max_cost: float | None = None,
        shares: Mapping[int, float] | None = None,
        journal: Journal | None = None,
    ) -> None:
        if max_cost is not None and not (math.isfinite(max_cost) and max_cost >= 0):
            raise BadInput(f"--max-cost {max_cost} is no amount; give US dollars, 0 or more")
        self.price, self.max_cost = price, max_cost
        self._most = None if max_cost is None else picodollars(max_cost, up=False)
        self._shared = shares is not None
        self._accounts: dict[int, _Account] = {}
        self._lock = threading.RLock()
        self._journal = journal
        self._next = 0
        if shares is not None:
            self.set_shares(shares)

    # -- reading -----------------------------------------------------------------------------

    @property
    def spent(self) -> float:
        """USD of all settled calls."""
        with self._lock:
            return usd(sum(a.spent for a in self._accounts.values()))

    @property
    def reserved(self) -> float:
        """USD set apart for calls under way."""
        with self._lock:
            return usd(sum(a.reserved for a in self._accounts.values()))

    @property
    def booked(self) -> float:
        """USD spent and set apart together, read at one moment."""
        with self._lock:
            return usd(self._booked())

    @property
    def remaining(self) -> float:
        """USD neither spent nor set apart; infinite without a limit."""
        with self._lock:
            return math.inf if self._most is None else usd(max(self._most - self._booked(), 0))

    @property
    def by_target(self) -> dict[int, float]:
        """USD spent for each target that had calls."""
        with self._lock:
            return {t: usd(a.spent) for t, a in self._accounts.items() if a.booked}

    def allowance(self, target: int) -> float:
        """USD that a target may spend in all, as things stand; infinite without a limit."""
        with self._lock:
            most = self._allowed(target)
            return math.inf if most is None else usd(most)

    def fits(self, target: int, tokens_in: int, max_tokens: int, attempts: int = 1) -> bool:
        """Whether :meth:`reserve` would answer with a reservation now."""
        with self._lock:
            worst = self.price.most(tokens_in, max_tokens) * attempts
            return self._refusal(target, worst) is None

    # -- booking -----------------------------------------------------------------------------

    def reserve(
        self, target: int, tokens_in: int, max_tokens: int, attempts: int = 1
    ) -> Reservation | OverBudget:
        """Sets the worst case of a call apart, or says why the call must not be made.

        Args:
            target: Index of the target that the call is for.
            tokens_in: Upper bound, see :func:`tokens_bound`.
            max_tokens: The limit of tokens out that is sent with the call.
            attempts: The first one and all repeats that may be made of it.

        Raises:
            ValueError: A count is negative, or there is no attempt.
        """
        if tokens_in < 0 or max_tokens < 0 or attempts < 1:
            raise ValueError(f"no call has {tokens_in}, {max_tokens} tokens, {attempts} attempts")
        one = self.price.most(tokens_in, max_tokens)
        with self._lock:
            refusal = self._refusal(target, one * attempts)
            if refusal is not None:
                return refusal
            made = Reservation(self, self._next, target, one, attempts)
            self._next += 1
            self._account(target).reserved += one * attempts
        if self._journal is not None:
            try:
                self._journal(made.to_row())
            except BaseException:
                with self._lock:
                    self._account(target).reserved -= one * attempts
                    made.state = "released"
                raise
        return made

    def set_shares(self, shares: Mapping[int, float]) -> None:
        """New weights of the targets' parts; what was spent stays spent, what is closed closed."""
        for target, weight in shares.items():
            if not (math.isfinite(weight) and weight >= 0):
                raise BadInput(f"the share {weight} of target {target} is no number of 0 or more")
        with self._lock:
            self._shared = True
            for account in self._accounts.values():
                account.weight = 0.0
            for target, weight in shares.items():
                self._account(target).weight = float(weight)

    def close(self, target: int) -> None:
        """The target's search is over: what it left flows back to the others."""
        with self._lock:
            self._account(target).open = False

    def restore(self, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """Books what earlier sessions spent; returns what must be told, in words.

        Args:
            rows: With ``target``, ``usd`` and ``state``, as :meth:`Reservation.to_row` gives them.
                One that is still ``reserved`` belongs to a call whose answer never came: it is
                booked as spent, at its worst case.

        Raises:
            StoreError: A row is malformed.
        """
        lost = 0
        count = 0
        for row in rows:
            try:
                target, state, amount = int(row["target"]), str(row["state"]), float(row["usd"])
                cost = picodollars(amount)
            except (KeyError, TypeError, ValueError, OverflowError) as e:
                raise StoreError(f"a booking of the store is damaged ({e!r}): {dict(row)!r}") from e
            if state not in ("reserved", "settled", "released") or cost < 0:
                raise StoreError(f"a booking of the store is damaged: {dict(row)!r}")
            if state == "released":
                continue
            with self._lock:
                self._account(target).spent += cost
                self._next = max(self._next, int(row.get("number", -1)) + 1)
            if state == "reserved":
                lost += cost
                count += 1
        if not count:
            return []
        calls = "call was" if count == 1 else "calls were"
        return [
            f"{count} {calls} under way when the last session ended; nobody knows what was "
            f"answered, so the worst case of {usd(lost):.4f} USD is counted as spent"
        ]

    # -- inside ------------------------------------------------------------------------------

    def _account(self, target: int) -> _Account:
        return self._accounts.setdefault(target, _Account())

    def _booked(self) -> int:
        return sum(a.booked for a in self._accounts.values())

    def _allowed(self, target: int) -> int | None:
        """Picodollars that a target may have booked: its part of what the open ones may share."""
        if self._most is None:
            return None
        account = self._accounts.get(target, _Account())
        if not account.open:
            return account.booked
        if not self._shared:
            return self._most
        closed = sum(a.booked for a in self._accounts.values() if not a.open)
        weights = sum(a.weight for a in self._accounts.values() if a.open)
        if not weights or not account.weight:
            return 0
        if account.weight == weights:
            return max(self._most - closed, 0)
        return max(math.floor((self._most - closed) * (account.weight / weights)), 0)

    def _refusal(self, target: int, worst: int) -> OverBudget | None:
        if self._most is None or worst == 0:
            return None
        free = self._most - self._booked()
        if worst > free:
            return OverBudget(
                f"the next call could cost {usd(worst):.4f} USD, and of the "
                f"{self.max_cost:.2f} USD allowed {usd(max(free, 0)):.4f} USD are left",
                whole=True,
            )
        allowed = self._allowed(target) or 0
        left = allowed - self._accounts.get(target, _Account()).booked
        if worst > left:
            return OverBudget(
                f"the next call for target {target} could cost {usd(worst):.4f} USD, and of its "
                f"part of {usd(allowed):.4f} USD {usd(max(left, 0)):.4f} USD are left",
                whole=False,
            )
        return None

    def _end(self, reservation: Reservation, state: State, cost: int, notes: list[str]) -> None:
        with self._lock:
            if reservation.state != "reserved":
                raise ValueError(f"the reservation was {reservation.state} before")
            over = cost - reservation._amount
            if over > 0:
                notes.append(
                    f"the endpoint reported {usd(cost):.4f} USD of usage, {usd(over):.4f} USD "
                    "more than the call could have used by its own limits"
                )
            account = self._account(reservation.target)
            account.reserved -= reservation._amount
            account.spent += cost
            reservation.state, reservation.note = state, "; ".join(notes)
            reservation._amount = cost
        if self._journal is not None:
            self._journal(reservation.to_row())
