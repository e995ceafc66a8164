"""The part of a KernelBench file that is its reference, cut out without running anything.

A file that brings a ``Model`` beside its ``ModelNew`` must not be able to slow the one down for the
other's sake: whatever else the file does when it is imported (patches, builds, prints) is not part
of the reference. Taken are ``Model``, ``get_inputs`` and ``get_init_inputs``, what they name at the
top of the file, and the imports.
"""

from __future__ import annotations

import ast

from kforge_nb.errors import BadInput
from kforge_nb.judge.foreign.parsing import parsed

__all__ = ["reference_source"]

ROOTS = ("Model", "get_inputs", "get_init_inputs")
_NEEDED = ("Model", "get_inputs")
_Definition = ast.ClassDef | ast.FunctionDef | ast.Assign | ast.AnnAssign


def reference_source(text: str, name: str) -> str:
    """Python with the reference's definitions alone, in the order of the file.

    Args:
        text: of a KernelBench file; ``ModelNew`` may stand in it or not.
        name: of the file, for messages.

    Raises:
        BadInput: it does not parse, or lacks ``Model`` or ``get_inputs``.
    """
    try:
        tree = parsed(text)
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"the reference {name} is no Python that parses: {error}") from None
    defined: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for target in _targets(statement):
            defined.setdefault(target, []).append(statement)
    missing = [root for root in _NEEDED if root not in defined]
    if missing:
        raise BadInput(
            f"the reference {name} lacks {' and '.join(missing)}; a reference file defines Model, "
            "get_inputs() and, where Model takes arguments, get_init_inputs()"
        )
    wanted = _reachable(defined)
    kept = [s for s in tree.body if _imports(s) or any(s is w for w in wanted)]
    return "\n\n".join(ast.unparse(statement) for statement in kept) + "\n"


def _reachable(defined: dict[str, list[ast.stmt]]) -> list[ast.stmt]:
    """The definitions that the roots need, through everything that they name."""
    found: list[ast.stmt] = []
    seen: set[str] = set()
    waiting = [root for root in ROOTS if root in defined]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for statement in defined.get(name, ()):
            found.append(statement)
            names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
            waiting += [other for other in names if other in defined]
    return found


def _targets(statement: ast.stmt) -> list[str]:
    """The names that a definition at the top of a file binds."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        names = [n for t in statement.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        plain = all(not isinstance(t, ast.Attribute | ast.Subscript) for t in statement.targets)
        return [n.id for n in names] if plain else []
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    return []


def _imports(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)
