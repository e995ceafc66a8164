"""The run document's schema at work: is this data valid, and how is data made to fit it.

``run.schema.json`` is the one description of the document (the view's types are generated from
it). :func:`validate` refuses what does not follow it; :func:`fit` gives records that come from
inside, and may be young and incomplete, the schema's shape: missing fields become null or empty,
unknown ones are dropped, and texts and lists are cut to their bounds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from itertools import islice
from typing import Any

from kforge_nb.errors import DocumentError, upgrade
from kforge_nb.store.clean import depth
from kforge_nb.store.rules import Problem, problems
from kforge_nb.store.upgrade import upgraded

__all__ = ["SCHEMA", "fit", "schema", "validate"]

SCHEMA = "kforge.run/1.2"
_NUMBER = (1, 2)
_VERSION = re.compile(r"kforge\.run/([0-9]{1,6})(?:\.([0-9]{1,6}))?")
_DEEPEST = 60
_ERRORS = 50


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the run document; do not change it."""
    text = resources.files("kforge_nb.store").joinpath("run.schema.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def validate(data: Any, where: str = "the run document") -> dict[str, Any]:
    """The data in the newest schema, if it is a valid run document.

    Args:
        data: Parsed JSON; a document of an older schema gets what it could not say.
        where: What to call it in a message.

    Raises:
        DocumentError: It is not; the message names the path and the value. A document of a newer
            schema says to upgrade.
    """
    _check_version(data, where)
    data = upgraded(data)
    if depth(data, _DEEPEST) >= _DEEPEST:
        raise DocumentError(f"{where} is nested deeper than {_DEEPEST} levels; it was not read")
    found = list(islice(problems(data, schema()), _ERRORS))
    if found:
        first = min(found, key=lambda problem: problem.depth)
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise DocumentError(
            f"{where} is not valid at {first.path}: {_short(first.value)} {_why(first)}{more}"
        )
    for path, problem in _broken_links(data):
        raise DocumentError(f"{where} is not valid at {path}: {problem}")
    return dict(data)


def fit(value: Any, name: str) -> Any:
    """``value`` in the shape of the schema's definition ``name`` (``target``, ``progress``, …)."""
    return _fit(value, schema()["$defs"][name])


# -- validation ----------------------------------------------------------------------------


def _check_version(data: Any, where: str) -> None:
    if not isinstance(data, dict):
        raise DocumentError(f"{where} must be a JSON object, not {_short(data)}")
    version = data.get("schema")
    number = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if number is None:
        raise DocumentError(
            f"{where} is no run document: its schema must be {SCHEMA!r}, not {_short(version)}"
        )
    if (int(number[1]), int(number[2] or 0)) > _NUMBER:
        raise DocumentError(
            f"{where} was written by a newer kforge_nb (schema {version}; this one reads "
            f"{SCHEMA}); to upgrade: {upgrade()}"
        )


def _why(problem: Problem) -> str:
    rule, want = problem.rule, problem.want
    names = want if isinstance(want, list) else [want]
    words = {
        "additionalProperties": "has fields that are not allowed",
        "required": "lacks a field",
        "type": "must be " + " or ".join(map(str, names)),
        "maxLength": f"is longer than {want}",
        "maxItems": f"has more than {want} entries",
        "maxProperties": f"has more than {want} fields",
        "minimum": f"is below {want}",
        "maximum": f"is above {want}",
        "pattern": f"does not match {want}",
        "enum": "must be one of " + ", ".join(map(str, names)),
        "const": f"must be {want!r}",
    }
    text = words[rule]
    if rule == "required":
        text += ": " + ", ".join(n for n in names if n not in problem.value)
    if rule == "additionalProperties":
        extra = sorted(set(problem.value) - set(problem.schema.get("properties", ())))
        text += ": " + ", ".join(_short(e) for e in extra[:5])
    return text


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def _broken_links(data: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """References that lead nowhere, which a schema cannot see."""
    targets = {t["index"] for t in data["targets"]}
    if len(targets) != len(data["targets"]):
        yield "$.targets", "two targets have the same index"
    nodes: dict[str, int] = {}
    for i, node in enumerate(data["nodes"]):
        path = f"$.nodes[{i}]"
        if node["id"] in nodes:
            yield f"{path}.id", f"{node['id']!r} is the id of an earlier node too"
        if node["target"] not in targets:
            yield f"{path}.target", f"there is no target {node['target']}"
        if node["parent"] is not None and nodes.get(node["parent"]) != node["target"]:
            yield f"{path}.parent", f"no earlier node of this target has id {node['parent']!r}"
        nodes[node["id"]] = node["target"]
    for i, target in enumerate(data["targets"]):
        if target["best"] is not None and nodes.get(target["best"]) != target["index"]:
            yield f"$.targets[{i}].best", f"this target has no node {target['best']!r}"
    for i, decision in enumerate(data["decisions"]):
        if decision["target"] not in targets:
            yield f"$.decisions[{i}].target", f"there is no target {decision['target']}"
        if decision["node"] is not None and nodes.get(decision["node"]) != decision["target"]:
            yield f"$.decisions[{i}].node", f"the target has no node {decision['node']!r}"
    for i, cost in enumerate(data["costs"]):
        if cost["target"] is not None and cost["target"] not in targets:
            yield f"$.costs[{i}].target", f"there is no target {cost['target']}"
    for node_id in data["details"]:
        if node_id not in nodes:
            yield "$.details", f"there is no node {node_id!r}"


# -- fitting -------------------------------------------------------------------------------


def _fit(value: Any, rule: Mapping[str, Any]) -> Any:
    if "$ref" in rule:
        return _fit(value, schema()["$defs"][rule["$ref"].rpartition("/")[2]])
    if "anyOf" in rule:  # something or null
        return None if value is None else _fit(value, rule["anyOf"][0])
    kind = rule.get("type")
    if isinstance(kind, list):
        return None if value is None else _fit(value, {**rule, "type": kind[0]})
    if kind == "object":
        return _fit_object(value, rule)
    if kind == "array":
        items = list(value) if value is not None else []
        return [_fit(v, rule["items"]) for v in items[: rule["maxItems"]]]
    if kind == "string":
        return _cut(value, rule.get("maxLength"))
    if kind == "boolean":
        return bool(value)
    return _fit_number(value, rule) if kind in ("number", "integer") else value


def _fit_object(value: Any, rule: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(value) if value is not None else {}
    known = rule.get("properties", {})
    must = rule.get("required", ())
    found = {k: _fit(given.get(k), r) for k, r in known.items() if k in given or k in must}
    others = rule.get("additionalProperties", True)
    if others is not False:
        room = rule["maxProperties"] - len(found)
        for key in [k for k in given if k not in known][:room]:
            found[key] = given[key] if others is True else _fit(given[key], others)
    return found


def _fit_number(value: Any, rule: Mapping[str, Any]) -> float | int | None:
    whole = rule["type"] == "integer"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0 if whole else None
    if isinstance(value, float) and not math.isfinite(value):
        return 0 if whole else None
    number = int(value) if whole else value
    return min(max(number, rule.get("minimum", number)), rule.get("maximum", number))


def _cut(value: Any, longest: int | None) -> str:
    text = "" if value is None else str(value)
    return text if longest is None or len(text) <= longest else text[: longest - 1] + "…"
