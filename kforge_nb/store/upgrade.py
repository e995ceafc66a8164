"""Documents of older versions, brought to the shape of today's before they are checked.

Each step adds what a version brought, with the value that says "there was none"; nothing that a
file says is changed. What is not of the expected shape is left for the check to name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["upgraded"]

_NO_CALL = {
    "tokens_cached": 0, "tokens_reasoning": 0, "estimated": False, "model": "", "prompt": "",
    "purpose": "", "state": "done", "problem": "",
}  # fmt: skip
_NOTHING_ASKED: dict[str, Any] = {"paused": False, "prompts": 0, "calls": []}


def upgraded(data: dict[str, Any]) -> dict[str, Any]:
    """The document in the newest schema; one that is new already is returned as it is."""
    while (step := _STEPS.get(data.get("schema", ""))) is not None:
        data = step(data)
    return data


def _to_1_1(data: dict[str, Any]) -> dict[str, Any]:
    """Version 1.1 tells calls of language models and what is under way."""
    found = {**data, "schema": "kforge.run/1.1"}
    if isinstance(data.get("progress"), dict):
        found["progress"] = {**_NOTHING_ASKED, **data["progress"]}
    if isinstance(data.get("costs"), list):
        found["costs"] = [{**_NO_CALL, **c} if isinstance(c, dict) else c for c in data["costs"]]
    return found


def _to_1_2(data: dict[str, Any]) -> dict[str, Any]:
    """Version 1.2 brought optional fields only: what an older file lacks was not told."""
    return {**data, "schema": "kforge.run/1.2"}


_STEPS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "kforge.run/1": _to_1_1,
    "kforge.run/1.1": _to_1_2,
}
