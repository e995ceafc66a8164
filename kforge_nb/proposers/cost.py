"""What a language model's calls cost: bounds before the call, and the worst case of a whole run.

The room's other parts are :mod:`kforge_nb.proposers.prices` (USD per token) and
:mod:`kforge_nb.proposers.ledger` (what a run may spend); both can be had from here.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from kforge_nb.proposers.ledger import Ledger, OverBudget, Reservation
from kforge_nb.proposers.prices import Price, Usage, picodollars, price_of, usd

__all__ = [
    "Ledger",
    "OverBudget",
    "Plan",
    "Price",
    "Reservation",
    "Usage",
    "WorstCase",
    "price_of",
    "tokens_bound",
    "tokens_estimate",
    "worst_case",
]

_PER_MESSAGE = 16  # role, separators
_PER_REQUEST = 256  # a default system prompt that a chat template may add
_BYTES_PER_TOKEN = 3.5  # of English and code, by common tokenizers


def tokens_bound(*messages: str) -> int:
    """At most so many tokens are in a request with these messages, whatever the tokenizer.

    Tokenizers in use cover at least one byte of UTF-8 with each token; some first write
    characters out (NFKC), which makes a few of them longer. A chat template adds some of its own.
    """
    long = (max(_bytes(m), _bytes(unicodedata.normalize("NFKC", m))) for m in messages)
    return sum(long) + _PER_MESSAGE * len(messages) + _PER_REQUEST


def tokens_estimate(text: str) -> int:
    """About how many tokens a text has; an estimate, never booked."""
    return math.ceil(_bytes(text) / _BYTES_PER_TOKEN)


def _bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


@dataclass(frozen=True, slots=True)
class Plan:
    """Calls that a target may get at most, with the tokens of the longest prompt."""

    target: int
    calls: int
    tokens_in: int


@dataclass(frozen=True, slots=True)
class WorstCase:
    """At most so many calls and USD, by target and in all; ``usd`` respects ``max_cost``."""

    by_target: dict[int, float]
    calls: int
    usd: float
    capped: bool


def worst_case(
    price: Price,
    plans: Iterable[Plan],
    *,
    max_tokens: int,
    attempts: int = 1,
    budget: int | None = None,
    max_cost: float | None = None,
) -> WorstCase:
    """What a run may cost at most, before any call: for ``--dry-run``.

    Args:
        price: Of the model.
        plans: One a target.
        max_tokens: Tokens out that each call allows.
        attempts: Of each call.
        budget: Calls of the whole run; the dearest are counted.
        max_cost: USD that the run may spend; None for no limit.
    """
    plans = list(plans)
    one = {p.target: price.most(p.tokens_in, max_tokens) * attempts for p in plans}
    dearest = sorted((one[p.target] for p in plans for _ in range(p.calls)), reverse=True)
    total = sum(dearest[:budget])
    most = total if max_cost is None else min(total, picodollars(max_cost, up=False))
    by_target = {p.target: usd(min(one[p.target] * p.calls, most)) for p in plans}
    return WorstCase(by_target, len(dearest[:budget]), usd(most), most < total)
