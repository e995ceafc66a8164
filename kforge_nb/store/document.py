"""The run document: one run as one plain JSON value, for files, notebooks and the view.

::

    data = build(store, run_id)             # everything, sources and logs too
    data = build(store, run_id, details=False)   # compact, for the live view
    save("resnet.kforge.json", data, redact=True)
    data = load("resnet.kforge.json")       # validated: it may come from anybody

Secrets are removed when a document is built and again when it is saved.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import DocumentError, StoreError
from kforge_nb.store.clean import clean, scrubber
from kforge_nb.store.counters import with_counters
from kforge_nb.store.keeping import SAVED_BYTES, bounded
from kforge_nb.store.launching import launch_of
from kforge_nb.store.redact import redacted
from kforge_nb.store.remembered import Remembered
from kforge_nb.store.schema import SCHEMA, fit, schema, validate

if TYPE_CHECKING:
    from sqlite3 import Row

    from kforge_nb.store.store import Store

__all__ = [
    "LARGEST_BYTES",
    "SCHEMA",
    "build",
    "details_of",
    "load",
    "parse",
    "redacted",
    "save",
    "schema",
    "validate",
    "write",
]

LARGEST_BYTES = 256 * 2**20
"""No larger file is read."""


def build(
    store: Store, run: str, *, details: bool = True, memory: Remembered | None = None
) -> dict[str, Any]:
    """The document of a run as the store knows it now; always valid.

    Args:
        store: The store.
        run: Id of the run.
        details: Put in the details (source, plan, log, samples) of every node; otherwise
            ``details`` is empty and :func:`details_of` gives them one by one.
        memory: Rows of nodes and costs that were made before; they are shared, not copied.

    Raises:
        StoreError: No such run, or the store cannot be read.
    """
    scrub = scrubber()
    memory = memory or Remembered()
    memory.begin()
    with store.database.read():  # one consistent view
        record = store.run(run)
        targets = store.targets(run, files=False)
        raw = store.node_rows(run)
        nodes = [store.node_of(r, sources=True) for r in raw] if details else []
        costs, decisions, whole = store.costs(run), store.decisions(run), store.whole(run)
        asked = _asked(store.calls(run)) if details else {}
    rows = [memory.row(("node", r["id"]), r, partial(_read_row, store, r, scrub)) for r in raw]
    of = {t["index"]: t["record"] for t in targets}
    found = {
        "schema": SCHEMA,
        "id": record["id"],
        "name": record["name"],
        "state": record["state"],
        "state_reason": fit(clean(record["state_reason"], scrub), "text"),
        "created": record["created"],
        "updated": record["updated"],
        "versions": fit(clean(record["versions"], scrub), "versions"),
        "device": fit(clean(record["device"], scrub), "facts"),
        "options": fit(clean(record["options"], scrub), "facts"),
        "progress": fit(clean(record["progress"], scrub), "progress"),
        "workload": fit(clean(record["workload"], scrub), "workload"),
        "targets": [_target_row(t, rows, scrub) for t in targets],
        "nodes": rows,
        "details": {n["id"]: _details(n, of[n["target"]], asked, scrub) for n in nodes}
        if details
        else {},
        "costs": [
            memory.row(("cost", i), c, partial(_cost_row, c, scrub)) for i, c in enumerate(costs)
        ],
        "decisions": [_decision_row(d, scrub) for d in decisions],
        "whole": [fit(clean(w, scrub), "wholeRow") for w in whole],
        "fidelity": _optional(_fidelity(record["fidelity"]), "fidelity", scrub),
        "recommendation": _optional(record["recommendation"], "recommendation", scrub),
        "counters": _optional(record["counters"], "facts", scrub),
    }
    return with_counters(found, record["counters"])


def details_of(store: Store, run: str, node: str) -> dict[str, Any]:
    """The details of one node, as in ``details`` of the document.

    Raises:
        StoreError: No such node.
    """
    found = store.node(run, node)
    target = store.target(run, found["target"])["record"]
    return _details(found, target, _asked(store.calls(run, node)), scrubber())


def save(
    path: str | Path, data: Mapping[str, Any], *, redact: bool = False, limit: int = SAVED_BYTES
) -> Path:
    """Write a document, whole or not at all; returns the path.

    Args:
        path: The file; replaced if it is there.
        data: The document.
        redact: Leave out sources, names and values of the user's code, notes and logs.
        limit: Bytes; of a larger one details are left out, as :mod:`kforge_nb.store.keeping` says.

    Raises:
        DocumentError: The data is no valid document.
        StoreError: The file cannot be written.
    """
    found = clean(data)
    found = bounded(validate(redacted(found) if redact else found), limit)
    text = json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return write(Path(path), text + "\n")


def load(path: str | Path) -> dict[str, Any]:
    """Read and validate a document; nothing in the file is trusted.

    Raises:
        DocumentError: The file cannot be read, is too large, is no JSON, or is not valid.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        if size > LARGEST_BYTES:
            raise DocumentError(
                f"{file} has {size} bytes; documents above {LARGEST_BYTES} bytes are not read"
            )
        raw = file.read_bytes()
    except OSError as e:
        raise DocumentError(f"{file} cannot be read: {e.strerror}; check the path") from e
    return parse(raw, str(file))


def parse(raw: bytes | str, where: str = "the run document") -> dict[str, Any]:
    """A validated document from JSON text.

    Raises:
        DocumentError: The text is no strict JSON (UTF-8, no duplicate keys, no NaN), or not valid.
    """
    try:
        text = raw.decode("utf-8-sig") if isinstance(raw, bytes) else raw
        data = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except RecursionError as e:
        raise DocumentError(f"{where} is nested too deep; it was not read") from e
    except ValueError as e:
        raise DocumentError(f"{where} is no run document: {e}") from e
    return validate(data, where)


# -- rows ----------------------------------------------------------------------------------


def _optional(record: Any, name: str, scrub: Callable[[str], str]) -> Any:
    return None if record is None else fit(clean(record, scrub), name)


def _fidelity(record: Any) -> Any:
    """The guard's record in the document's words.

    Inputs counted by kind become their number (and ``input_kinds``), a ratio that is not finite
    becomes null with ``infinite`` set, since JSON has no infinity.
    """
    if not isinstance(record, Mapping):
        return None
    found = dict(record)
    kinds = found.get("inputs")
    if isinstance(kinds, Mapping):
        counts = [n for n in kinds.values() if isinstance(n, int)]
        found |= {"inputs": sum(counts), "input_kinds": dict(kinds)}
    ratio = found.get("ratio")
    if isinstance(ratio, str) or (isinstance(ratio, float) and math.isinf(ratio)):
        found |= {"ratio": None, "infinite": True}
    return found


def _decision_row(decision: Mapping[str, Any], scrub: Callable[[str], str]) -> dict[str, Any]:
    record = {**decision, "fidelity": _fidelity(decision.get("fidelity"))}
    return dict(fit(clean(record, scrub), "decision"))


def _target_row(
    target: Mapping[str, Any], rows: list[dict[str, Any]], scrub: Callable[[str], str]
) -> dict[str, Any]:
    record = {"granularity": "region", "state": "waiting", **target["record"]}
    row = fit(clean(record, scrub), "target")
    row["index"] = target["index"]
    if row["best"] is not None and not any(
        r["id"] == row["best"] and r["target"] == row["index"] for r in rows
    ):
        row["best"] = None
    return dict(row)


def _cost_row(cost: Mapping[str, Any], scrub: Callable[[str], str]) -> Any:
    return fit(clean(cost, scrub), "cost")


def _read_row(store: Store, row: Row, scrub: Callable[[str], str]) -> dict[str, Any]:
    return _node_row(store.node_of(row), scrub)


def _node_row(node: Mapping[str, Any], scrub: Callable[[str], str]) -> dict[str, Any]:
    evaluation, candidate = node["evaluation"], node["candidate"]
    timings = {t.get("against"): t for t in evaluation.get("timings") or ()}
    eager, compiled = timings.get("eager", {}), timings.get("compile", {})
    keys = ("id", "target", "parent", "action", "visits", "value", "seconds", "created")
    row = {k: node[k] for k in keys}
    row |= {k: candidate.get(k) for k in ("title", "language", "origin")}
    row |= {k: evaluation.get(k) for k in ("verdict", "reason")}
    row |= {"speedup": eager.get("ratio"), "low": eager.get("low"), "high": eager.get("high")}
    row |= {"ours_us": eager.get("ours_us"), "eager_us": eager.get("against_us")}
    row["compile_us"] = compiled.get("against_us")
    row["language"] = row["language"] or "cpp"
    return dict(fit(clean(row, scrub), "node"))


def _asked(calls: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """What a model was asked for each node, and the last thing that it answered."""
    found: dict[str, dict[str, str]] = {}
    for call in calls:
        entry = found.setdefault(call["node"], {"prompt": call["sent"], "answer": ""})
        entry["answer"] = call["answer"] or entry["answer"]
    return found


def _details(
    node: Mapping[str, Any],
    target: Mapping[str, Any],
    asked: Mapping[str, Any],
    scrub: Callable[[str], str],
) -> dict[str, Any]:
    evaluation, candidate = node["evaluation"], node["candidate"]
    keys = ("log", "errors", "timings", "resources", "mismatches", "seconds")
    found = {k: evaluation.get(k) for k in keys}
    found |= {k: evaluation.get(k) for k in ("bandwidth_gbs", "roofline_share", "repeatable")}
    found |= {k: candidate.get(k) for k in ("source", "plan")}
    found["launch"] = launch_of(candidate.get("plan"), target)
    found |= asked.get(node["id"], {})
    return dict(fit(clean(found, scrub), "details"))


# -- files ---------------------------------------------------------------------------------


def write(path: Path, text: str) -> Path:
    """Write a text file as UTF-8, whole or not at all; returns the path.

    Raises:
        StoreError: The file cannot be written.
    """
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
        temporary = None
    except OSError as e:
        raise StoreError(
            f"{path} cannot be written ({e.strerror}); check the folder and the space on its disk, "
            "or save somewhere else"
        ) from e
    finally:
        if temporary is not None:
            with suppress(OSError):
                Path(temporary).unlink()
    return path


def _umask() -> int:
    """The process's umask without changing it where the system tells (other threads write too)."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except OSError:
        return 0o022
    return 0o022


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")
    return found


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number
