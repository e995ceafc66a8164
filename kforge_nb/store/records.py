"""Plain records from the objects of other rooms, and text fit for a column.

The store itself takes and gives plain data; these are the few places where candidates become data
and come back, checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.errors import BadInput, StoreError

__all__ = [
    "ACTIVE",
    "STATES",
    "candidate_from_record",
    "candidate_to_record",
    "check_name",
    "dump",
    "load",
    "now",
]

ACTIVE = ("profiling", "searching", "guarding")
"""States of a run that somebody works on."""
STATES = (*ACTIVE, "done", "stopped", "failed", "interrupted")

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def check_name(name: str) -> str:
    """The name of a run, if it is fit for one.

    Raises:
        BadInput: Empty, longer than 100, or with a character outside ``A-Z a-z 0-9 _ . -``.
    """
    if not _NAME.fullmatch(name) or name.strip(".") == "":
        raise BadInput(
            f"{name[:120]!r} cannot name a run; use 1 to 100 letters, digits, '_', '.' and '-'"
        )
    return name


def now() -> str:
    """The present time, ISO 8601 UTC with microseconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def dump(value: Any) -> str:
    """JSON text; numpy scalars become numbers, non-finite floats are kept as they are.

    Raises:
        StoreError: The value is no plain data.
    """
    try:
        return json.dumps(value, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError, RecursionError) as e:
        raise StoreError(f"a record holds something that is no plain data: {e}") from e


def load(text: str) -> Any:
    """Inverse of :func:`dump`.

    Raises:
        StoreError: The text is damaged.
    """
    try:
        return json.loads(text)
    except ValueError as e:
        raise StoreError(f"a record of the store is damaged ({e}): {text[:60]!r}") from e


def _plain(value: Any) -> Any:
    item = getattr(value, "item", None)
    if callable(item):  # numpy and torch scalars
        return item()
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} {value!r:.80}")


def candidate_to_record(candidate: Candidate) -> dict[str, Any]:
    """Language, source, plan, title, origin and digest as plain data."""
    from kforge_nb.candidates.plan import plan_to_document

    return {
        "language": candidate.language,
        "source": candidate.source,
        "plan": plan_to_document(candidate.plan),
        "title": candidate.title,
        "origin": candidate.origin,
        "digest": candidate.digest,
    }


def candidate_from_record(record: Mapping[str, Any]) -> Candidate:
    """Inverse of :func:`candidate_to_record`; the plan is validated.

    Raises:
        ContractBreach: The plan breaks the contract.
        StoreError: The record is malformed.
    """
    from kforge_nb.candidates.plan import plan_from_document

    try:
        return Candidate(
            record["language"],
            record["source"],
            plan_from_document(record["plan"]),
            record.get("title", ""),
            dict(record.get("origin", {})),
        )
    except (KeyError, TypeError) as e:
        raise StoreError(f"the record of a candidate is malformed: {e!r}") from e
