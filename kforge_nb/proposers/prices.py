"""What a language model's tokens cost, from a table that needs no network, or as the user says.

Money is counted in whole picodollars (10⁻¹² USD), rounded up, so that sums of many calls are exact
and a limit is a limit. A model whose price is not known is an error before the first call: booked
as free it would spend without end.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from kforge_nb.errors import BadInput, MissingTool, install

__all__ = ["PICO", "Price", "Rates", "Usage", "picodollars", "price_of", "usd"]

PICO = 10**12
"""Picodollars in a US dollar."""

_DEFAULT_ENDPOINT = "https://api.openai.com/v1"
_HOURS = 24
_LOCAL = "for an endpoint of your own say --price-in 0 --price-out 0"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call as the endpoint reports them.

    ``tokens_in`` includes those ``cached``; ``tokens_out`` includes those spent on ``reasoning``.
    """

    tokens_in: int
    cached: int = 0
    tokens_out: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """USD per million tokens, for calls with more than ``above`` tokens in."""

    above: int
    per_million_in: float
    per_million_cached: float
    per_million_out: float


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens of one model.

    ``source`` is the table with its version, or ``given``; ``dated`` the day it was read (ISO).
    ``per_call`` is USD for each call whatever its length. ``tiers`` are dearer rates for long
    prompts, each for the whole call.
    """

    per_million_in: float
    per_million_cached: float
    per_million_out: float
    model: str
    source: str
    dated: str
    per_call: float = 0.0
    tiers: tuple[Rates, ...] = ()

    @property
    def free(self) -> bool:
        """Whether no call can cost anything."""
        return self.most(1, 1) == 0

    def cost(self, usage: Usage) -> int:
        """Picodollars of one call, rounded up; counts below zero are taken as zero."""
        total = max(usage.tokens_in, 0)
        cached = min(max(usage.cached, 0), total)
        rates = self._rates(total)
        exact = (
            (total - cached) * _exact(rates.per_million_in)
            + cached * _exact(rates.per_million_cached)
            + max(usage.tokens_out, 0) * _exact(rates.per_million_out)
        ) / 10**6 + _exact(self.per_call)
        return math.ceil(exact * PICO)

    def most(self, tokens_in: int, tokens_out: int) -> int:
        """Picodollars of the dearest call with at most so many tokens.

        Nothing is taken to be cached, and each tier that the call might reach is looked at: a tier
        may be cheaper than the one before it.
        """
        sizes = [t.above + 1 for t in self.tiers if t.above < tokens_in]
        below = [t.above for t in self.tiers if 0 <= t.above < tokens_in]
        counts = {tokens_in, *sizes, *below}
        return max(self.cost(Usage(n, cached, tokens_out)) for n in counts for cached in (0, n))

    def _rates(self, tokens_in: int) -> Rates:
        base = Rates(-1, self.per_million_in, self.per_million_cached, self.per_million_out)
        return max((r for r in (base, *self.tiers) if tokens_in > r.above), key=lambda r: r.above)


@lru_cache(maxsize=256)
def _exact(amount: float) -> Fraction:
    """An amount as it is written in decimals."""
    return Fraction(str(amount))


def picodollars(amount: float, *, up: bool = True) -> int:
    """An amount in USD, as it is written in decimals, in whole picodollars."""
    exact = _exact(amount) * PICO
    return math.ceil(exact) if up else math.floor(exact)


def usd(amount: int) -> float:
    """Picodollars in USD."""
    return amount / PICO


def price_of(
    model: str,
    *,
    price_in: float | None = None,
    price_out: float | None = None,
    base_url: str | None = None,
) -> Price:
    """The price of a model, as given or from the table of the genai-prices package.

    Args:
        model: Name of the model as the endpoint knows it.
        price_in: USD per million tokens in (cached ones too); with ``price_out``, or not at all.
        price_out: USD per million tokens out.
        base_url: The endpoint; None for ``OPENAI_BASE_URL``, else OpenAI's own.

    Raises:
        BadInput: The price is not known, only half of it was given, or it is no price.
        MissingTool: No price was given and genai-prices is not installed.
    """
    today = dt.datetime.now(dt.UTC).date().isoformat()
    if price_in is None and price_out is None:
        return _from_table(model, base_url, today)
    if price_in is None or price_out is None:
        raise BadInput(
            f"only one half of the price of {model!r} was given; say both --price-in and "
            f"--price-out, in USD per million tokens ({_LOCAL})"
        )
    for flag, value in (("--price-in", price_in), ("--price-out", price_out)):
        if not math.isfinite(value) or value < 0:
            raise BadInput(
                f"{flag} {value} is no price; it is in USD per million tokens, 0 or more"
            )
    return Price(price_in, price_in, price_out, model, "given", today)


def _from_table(model: str, base_url: str | None, today: str) -> Price:
    try:
        import genai_prices
        from genai_prices.data_snapshot import get_snapshot
    except ImportError as e:
        raise MissingTool(
            f"the price of {model!r} is looked up with the genai-prices package, which is not "
            f"here; {install('openai')}, or say --price-in and "
            f"--price-out ({_LOCAL})"
        ) from e
    endpoint = base_url or os.environ.get("OPENAI_BASE_URL") or _DEFAULT_ENDPOINT
    try:
        _, found = get_snapshot().find_provider_model(model, None, None, endpoint)
        rates, per_call = _dearest(found)
    except LookupError as e:
        raise BadInput(
            f"the price of model {model!r} at {_host(endpoint)} is not known to genai-prices "
            f"{genai_prices.__version__}; say --price-in and --price-out in USD per million "
            f"tokens ({_LOCAL})"
        ) from e
    base, *tiers = rates
    return Price(
        base.per_million_in,
        base.per_million_cached,
        base.per_million_out,
        model,
        f"genai-prices {genai_prices.__version__}",
        today,
        per_call,
        tuple(tiers),
    )


def _dearest(found: Any) -> tuple[list[Rates], float]:
    """Rates by length of the prompt, the dearest of all hours of today and tomorrow.

    Some models cost less at night, and a run may go on until the night is over.
    """
    now = dt.datetime.now(dt.UTC)
    hours = [now + dt.timedelta(hours=h) for h in range(2 * _HOURS)]
    tables = [found.get_prices(hour) for hour in hours]
    tables = [t for i, t in enumerate(tables) if t not in tables[:i]]
    starts = sorted({s for t in tables for s in _starts(t)})
    rates = [
        Rates(
            start,
            *(max(_at(t, names, start) for t in tables) for names in _NAMES),
        )
        for start in (-1, *starts)
    ]
    calls = max(float(getattr(t, "requests_kcount", None) or 0) for t in tables) / 1000
    return rates, calls


_NAMES = (("input_mtok",), ("cache_read_mtok", "input_mtok"), ("output_mtok",))


def _starts(table: Any) -> list[int]:
    found = (getattr(table, name, None) for names in _NAMES for name in names)
    return [tier.start for value in found for tier in getattr(value, "tiers", ())]


def _at(table: Any, names: tuple[str, ...], start: int) -> float:
    """The first price that the table has, for prompts longer than ``start`` tokens."""
    value = next((v for v in (getattr(table, name, None) for name in names) if v is not None), None)
    if value is None:
        raise LookupError(f"the table has no {names[-1]}")
    if not hasattr(value, "tiers"):
        return float(value)
    reached = [tier.price for tier in value.tiers if start >= tier.start]
    return float(reached[-1] if reached else value.base)


def _host(endpoint: str) -> str:
    """The host of an endpoint, without whatever else may stand in its address."""
    found = re.match(r"[a-z]+://(?:[^/@]*@)?([^/?#]+)", endpoint, re.IGNORECASE)
    return found[1] if found else "this endpoint"
