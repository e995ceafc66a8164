"""Python of somebody else's as a tree that everything here can walk, or a SyntaxError.

The parser and ``ast.unparse`` call themselves for each level of a tree, so text that is nested
deeply enough ends either of them, in ways that depend on the version of Python.
"""

from __future__ import annotations

import ast

__all__ = ["parsed"]

_DEEPEST = 100


def parsed(text: str, filename: str = "<file>") -> ast.Module:
    """The tree of a text; SyntaxError or ValueError where it is no Python, or nested too deeply."""
    try:
        tree = ast.parse(text, filename)
    except (RecursionError, MemoryError):
        raise SyntaxError(_WORDS) from None
    level: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in _children(node)]
        if not level:
            return tree
    raise SyntaxError(_WORDS)


_WORDS = f"it is nested deeper than {_DEEPEST} levels"


def _children(node: ast.AST) -> list[ast.AST]:
    """What is one level below; an elif is on the level of its if."""
    found: list[ast.AST] = []
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        child = waiting.pop()
        if isinstance(child, ast.If) and isinstance(node, ast.If) and child in node.orelse:
            node = child
            waiting += ast.iter_child_nodes(child)
        else:
            found.append(child)
    return found
