"""The part of JSON Schema that the run document's schema uses, so that no package is needed for it.

A bare GPU server writes and reads run documents too. A keyword that is not known here is an error
and not ignored: what the schema demands is checked, or nothing is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Problem", "problems"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A rule that a value breaks: where (``$.nodes[3]``), which value, which rule of which schema.

    ``want`` is what the rule asks for; ``depth`` how deep the value lies.
    """

    path: str
    value: Any
    rule: str
    want: Any
    schema: Mapping[str, Any]
    depth: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the check stands, with the definitions that references point to."""

    definitions: Mapping[str, Any]
    path: str = "$"
    depth: int = 0

    def at(self, key: str | int) -> _Place:
        if isinstance(key, int):
            path = f"{self.path}[{key}]"
        elif re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            path = f"{self.path}.{key}"
        else:
            path = f"{self.path}[{key!r:.60}]"
        return _Place(self.definitions, path, self.depth + 1)


def problems(value: Any, schema: Mapping[str, Any]) -> Iterator[Problem]:
    """Everything in ``value`` (parsed JSON) that ``schema`` does not allow, in document order.

    Raises ValueError for a schema with a keyword that is not known here.
    """
    yield from _check(value, schema, _Place(schema.get("$defs", {})))


def _check(value: Any, schema: Mapping[str, Any], place: _Place) -> Iterator[Problem]:
    for rule, want in schema.items():
        if rule in _SILENT:
            continue
        if rule not in _RULES:
            raise ValueError(f"the schema uses {rule!r}, which is not known here")
        found = _RULES[rule](value, want, schema, place)
        if isinstance(found, bool):
            if not found:
                yield Problem(place.path, value, rule, want, schema, place.depth)
        else:
            yield from found


def _reference(value: Any, want: str, _: Mapping[str, Any], place: _Place) -> Iterator[Problem]:
    return _check(value, place.definitions[want.removeprefix("#/$defs/")], place)


def _any_of(value: Any, want: Any, _: Mapping[str, Any], place: _Place) -> Iterator[Problem]:
    """The problems of the first alternative stand for all: the others say ``or null``."""
    first: list[Problem] = []
    for alternative in want:
        found = list(_check(value, alternative, place))
        if not found:
            return iter(())
        first = first or found
    return iter(first)


def _properties(
    value: Any, want: Mapping[str, Any], _: Mapping[str, Any], place: _Place
) -> Iterator[Problem]:
    if isinstance(value, dict):
        for key, rule in want.items():
            if key in value:
                yield from _check(value[key], rule, place.at(key))


def _additional(
    value: Any, want: Any, schema: Mapping[str, Any], place: _Place
) -> Iterator[Problem]:
    known = schema.get("properties", {})
    if not isinstance(value, dict) or want is True:
        return
    others = [key for key in value if key not in known]
    if want is False:
        if others:
            yield Problem(place.path, value, "additionalProperties", want, schema, place.depth)
        return
    for key in others:
        yield from _check(value[key], want, place.at(key))


def _names(value: Any, want: Any, _: Mapping[str, Any], place: _Place) -> Iterator[Problem]:
    if isinstance(value, dict):
        for key in value:
            yield from _check(key, want, place)


def _items(value: Any, want: Any, _: Mapping[str, Any], place: _Place) -> Iterator[Problem]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _check(item, want, place.at(number))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "number": _number,
    "integer": lambda v: _number(v) and (isinstance(v, int) or v.is_integer()),
}


def _type(value: Any, want: Any, *_: Any) -> bool:
    return any(_TYPES[name](value) for name in ([want] if isinstance(want, str) else want))


def _same(value: Any, want: Any) -> bool:
    return bool(value == want) and isinstance(value, bool) == isinstance(want, bool)


_SILENT = frozenset({"$schema", "$id", "$defs", "title", "description"})
_RULES: dict[str, Callable[..., bool | Iterator[Problem]]] = {
    "$ref": _reference,
    "anyOf": _any_of,
    "type": _type,
    "const": lambda v, want, *_: _same(v, want),
    "enum": lambda v, want, *_: any(_same(v, w) for w in want),
    "required": lambda v, want, *_: not isinstance(v, dict) or all(n in v for n in want),
    "properties": _properties,
    "additionalProperties": _additional,
    "propertyNames": _names,
    "items": _items,
    "maxItems": lambda v, want, *_: not isinstance(v, list) or len(v) <= want,
    "maxLength": lambda v, want, *_: not isinstance(v, str) or len(v) <= want,
    "maxProperties": lambda v, want, *_: not isinstance(v, dict) or len(v) <= want,
    "pattern": lambda v, want, *_: not isinstance(v, str) or re.search(want, v) is not None,
    "minimum": lambda v, want, *_: not _number(v) or v >= want,
    "maximum": lambda v, want, *_: not _number(v) or v <= want,
}
