"""Makes data fit to leave the process: plain, finite, and without secrets.

Every string of a run document goes through here, because compiler logs, notes and error messages
may quote anything the process knew. What is removed: values of environment variables whose name
says that they are secret, and strings in the well-known shapes of keys and passwords.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from kforge_nb.settings import SECRET_NAME

__all__ = ["REMOVED", "clean", "depth", "scrubber", "secret_values"]

REMOVED = "[removed]"

_SHORTEST = 6
_DEEPEST = 40
_LARGEST = 2**64  # larger integers are no figures, and some readers choke on them
_SHAPES = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"  # model providers
    r"|\bhf_[A-Za-z0-9]{20,}|\bgh[opsur]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}"
    r"|\bxox[abprs]-[A-Za-z0-9-]{10,}|\bAKIA[0-9A-Z]{16}\b"
    r"|(?<=Bearer )[A-Za-z0-9._~+/=-]{8,}"
    r"|(?<=://)[^\s/@:]{1,200}:[^\s/@]{1,200}(?=@)"  # user:password in an address
)


def secret_values(environment: Mapping[str, str] | None = None) -> list[str]:
    """Values of variables whose name looks like a key, longest first; too short ones left out."""
    found = os.environ if environment is None else environment
    values = {v.strip() for k, v in found.items() if SECRET_NAME.search(k)}
    return sorted((v for v in values if len(v) >= _SHORTEST), key=lambda v: (-len(v), v))


def scrubber(environment: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """A function that replaces secrets in a text by ``[removed]``."""
    values = secret_values(environment)
    known = re.compile("|".join(re.escape(v) for v in values)) if values else None

    def scrub(text: str) -> str:
        if len(text) < _SHORTEST:
            return text
        if known is not None:
            text = known.sub(REMOVED, text)
        return _SHAPES.sub(REMOVED, text)

    remembered = lru_cache(maxsize=4096)(scrub)  # field names and verdicts come again and again
    return lambda text: remembered(text) if len(text) <= 64 else scrub(text)


def clean(value: Any, scrub: Callable[[str], str] | None = None) -> Any:
    """Plain JSON data equal to ``value``: tuples become lists, non-finite floats null.

    What is nested too deep and integers that no reader could hold become null too.


    Args:
        value: Mappings, sequences, sets, numbers (numpy's too), strings, None; anything else
            becomes its text.
        scrub: What is done to each string, keys too; default :func:`scrubber`.
    """
    return _clean(value, scrub or scrubber(), 0)


def _clean(value: Any, scrub: Callable[[str], str], level: int) -> Any:
    if value is None or isinstance(value, bool) or level > _DEEPEST:
        return None if level > _DEEPEST else value
    if isinstance(value, int):
        return int(value) if abs(value) < _LARGEST else None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return scrub(str(value).encode("utf-8", "replace").decode("utf-8"))
    level += 1
    if isinstance(value, Mapping):
        return {_clean(str(k), scrub, 0): _clean(v, scrub, level) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(v, scrub, level) for v in value]
    if isinstance(value, set | frozenset):
        return sorted((_clean(v, scrub, level) for v in value), key=str)
    item = getattr(value, "item", None)
    return _clean(item() if callable(item) else str(value), scrub, level)


def depth(value: Any, limit: int) -> int:
    """How deep lists and objects are nested, counted up to ``limit`` without recursion."""
    level, now = 0, [value]
    while now and level < limit:
        inner = [v for v in now if isinstance(v, dict | list)]
        now = [w for v in inner for w in (v.values() if isinstance(v, dict) else v)]
        level += bool(inner)
        if not inner:
            break
    return level
