"""Arithmetic over shapes, for launch plans: parsed and walked here, never handed to ``eval``.

A plan comes from outside (a language model, a file), so its expressions may do arithmetic and
nothing else::

    expr   := term (("+" | "-") term)*
    term   := unary (("*" | "/" | "//" | "%") unary)*
    unary  := ("-" | "+") unary | atom
    atom   := NUMBER | NAME | NAME ".ndim" | NAME ".shape" "[" expr "]"
            | NAME ".stride" "(" expr ")" | FUNCTION "(" expr ("," expr)* ")"
            | "numel" "(" NAME ")" | "(" expr ")"

Functions are ``min``, ``max`` and ``ceil_div``. Integers follow Python (``//`` and ``%`` round
towards minus infinity) but must fit 64 bits; ``/`` gives a float; floats must stay finite. What
breaks a rule is a :class:`~kforge_nb.errors.ContractBreach` that quotes the expression.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from kforge_nb.errors import ContractBreach

__all__ = [
    "INT_LIMIT",
    "MAX_DEPTH",
    "MAX_LENGTH",
    "RESERVED",
    "TensorLike",
    "Value",
    "evaluate",
    "names",
]

MAX_LENGTH = 300
MAX_DEPTH = 24
INT_LIMIT = 2**63

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<op>//|[-+*/%(),.\[\]]))",
    re.ASCII,
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "ceil_div": lambda a, b: -(-a // b),
}
RESERVED = frozenset({*_FUNCTIONS, "numel", "nthreads"})
"""Names that no tensor, symbol or scratch buffer may take."""


class TensorLike(Protocol):
    """What an expression may ask of a tensor (``TensorSpec`` fits)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""

    @property
    def stride(self) -> tuple[int, ...]:
        """Strides in elements."""


Value = int | float | TensorLike


@dataclass(frozen=True, slots=True)
class _Node:
    """One parsed operation: ``kind`` is a number, name, operator, function or tensor question."""

    kind: str
    value: Any = None
    parts: tuple[_Node, ...] = ()


def evaluate(text: str, env: Mapping[str, Value]) -> int | float:
    """The value of an expression.

    Args:
        text: the expression, at most 300 characters.
        env: integers, floats, and tensors (anything with ``shape`` and ``stride`` tuples) by name.

    Returns:
        An int where all parts are integers and no ``/`` is used, else a float.

    Raises:
        ContractBreach: not in the grammar, unknown name, division by zero, an index out of range,
            an integer beyond 64 bits, or a float that is not finite.
    """
    return _walk(_parse(text), env, text)


def names(text: str) -> frozenset[str]:
    """All names that the expression refers to; raises ContractBreach if it is malformed."""
    found: set[str] = set()
    waiting = [_parse(text)]
    while waiting:
        node = waiting.pop()
        if node.kind in {"name", "numel", "ndim", "shape", "stride"}:
            found.add(node.value)
        waiting.extend(node.parts)
    return frozenset(found)


def _breach(text: str, why: str) -> ContractBreach:
    return ContractBreach(f"expression {text[:MAX_LENGTH]!r}: {why}")


def _parse(text: str) -> _Node:
    if not isinstance(text, str):
        raise ContractBreach(f"an expression must be a string, not {type(text).__name__}")
    return _parse_text(text)


@lru_cache(maxsize=4096)
def _parse_text(text: str) -> _Node:
    if len(text) > MAX_LENGTH:
        raise _breach(text, f"{len(text)} characters long; at most {MAX_LENGTH} are allowed")
    parser = _Parser(text)
    node = parser.sum(0)
    if parser.kind != "end":
        raise _breach(text, f"{parser.word!r} is not expected here")
    return node


class _Parser:
    """Recursive descent with one word of look-ahead and a depth limit."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.kind = self.word = ""
        self.advance()

    def advance(self) -> None:
        """Read the next word into ``kind`` and ``word``."""
        found = _TOKEN.match(self.text, self.position)
        if found is not None:
            self.position = found.end()
            self.kind, self.word = str(found.lastgroup), found.group(str(found.lastgroup))
        elif self.text[self.position :].strip():
            wrong = self.text[self.position :].strip()[:1]
            raise _breach(self.text, f"the character {wrong!r} is not allowed")
        else:
            self.kind, self.word = "end", "the end"

    def take(self, word: str) -> None:
        """Consume ``word`` or complain."""
        if self.word != word or self.kind != "op":
            raise _breach(self.text, f"expected {word!r}, found {self.word!r}")
        self.advance()

    def binary(self, ops: frozenset[str], below: Callable[[int], _Node], depth: int) -> _Node:
        """A left-associative chain; its length counts as depth, as the tree leans left."""
        node, length = below(depth), depth
        while self.kind == "op" and self.word in ops:
            length += 1
            self.guard(length)
            op = self.word
            self.advance()
            node = _Node("op", op, (node, below(depth)))
        return node

    def guard(self, depth: int) -> None:
        """Refuse nesting beyond the limit."""
        if depth > MAX_DEPTH:
            raise _breach(self.text, f"nested deeper than {MAX_DEPTH}")

    def sum(self, depth: int) -> _Node:
        """Lowest precedence: + and -."""
        self.guard(depth)
        return self.binary(frozenset("+-"), self.product, depth)

    def product(self, depth: int) -> _Node:
        """Then * / // and %."""
        return self.binary(frozenset({"*", "/", "//", "%"}), self.unary, depth)

    def unary(self, depth: int) -> _Node:
        """Signs."""
        self.guard(depth)
        if self.kind == "op" and self.word in "+-":
            sign = self.word
            self.advance()
            return _Node("sign", sign, (self.unary(depth + 1),))
        return self.atom(depth)

    def atom(self, depth: int) -> _Node:
        """Numbers, names with their questions, calls, parentheses."""
        kind, word = self.kind, self.word
        if kind == "number":
            self.advance()
            return _Node("number", _number(word, self.text))
        if kind == "op" and word == "(":
            self.advance()
            node = self.sum(depth + 1)
            self.take(")")
            return node
        if kind != "name":
            raise _breach(self.text, f"expected a number or a name, found {word!r}")
        self.advance()
        if self.kind == "op" and self.word == "(":
            return self.call(word, depth)
        if self.kind == "op" and self.word == ".":
            return self.question(word, depth)
        return _Node("name", word)

    def call(self, name: str, depth: int) -> _Node:
        """``numel(x)``, ``min(...)``, ``max(...)``, ``ceil_div(a, b)``."""
        self.take("(")
        if name == "numel":
            tensor = self.word
            if self.kind != "name":
                raise _breach(self.text, "numel takes the name of a tensor")
            self.advance()
            self.take(")")
            return _Node("numel", tensor)
        if name not in _FUNCTIONS:
            known = ", ".join(sorted([*_FUNCTIONS, "numel"]))
            raise _breach(self.text, f"there is no function {name!r}; known are {known}")
        parts = [self.sum(depth + 1)]
        while self.word == "," and self.kind == "op":
            self.advance()
            parts.append(self.sum(depth + 1))
        self.take(")")
        if len(parts) < 2 or (name == "ceil_div" and len(parts) != 2):
            raise _breach(self.text, f"{name} got {len(parts)} argument(s)")
        return _Node("call", name, tuple(parts))

    def question(self, tensor: str, depth: int) -> _Node:
        """``x.ndim``, ``x.shape[i]`` and ``x.stride(i)``."""
        self.take(".")
        what = self.word
        self.advance()
        if what == "ndim":
            return _Node("ndim", tensor)
        brackets = {"shape": "[]", "stride": "()"}.get(what)
        if brackets is None:
            raise _breach(self.text, f"a tensor has shape, stride and ndim, not {what!r}")
        self.take(brackets[0])
        index = self.sum(depth + 1)
        self.take(brackets[1])
        return _Node(what, tensor, (index,))


def _number(word: str, text: str) -> int | float:
    if word.isdigit():
        return _checked(int(word), text)
    return _checked(float(word), text)


def _checked(value: int | float, text: str) -> int | float:
    if isinstance(value, int):
        if not -INT_LIMIT <= value < INT_LIMIT:
            raise _breach(text, "an integer does not fit into 64 bits")
    elif not math.isfinite(value):
        raise _breach(text, f"a value is not finite ({value})")
    return value


def _walk(node: _Node, env: Mapping[str, Value], text: str) -> int | float:
    if node.kind == "number":
        return node.value
    if node.kind == "name":
        return _scalar(node.value, env, text)
    if node.kind in {"numel", "ndim", "shape", "stride"}:
        return _ask(node, env, text)
    parts = [_walk(part, env, text) for part in node.parts]
    if node.kind == "sign":
        return _checked(-parts[0] if node.value == "-" else parts[0], text)
    try:
        return _checked(_apply(node, parts), text)
    except ZeroDivisionError:
        raise _breach(text, "division by zero") from None
    except OverflowError:
        raise _breach(text, "a value is too large for a float") from None


def _apply(node: _Node, parts: list[int | float]) -> int | float:
    if node.kind == "call":
        return _FUNCTIONS[node.value](*parts)
    left, right = parts
    match node.value:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case "//":
            return left // right
    return left % right


def _scalar(name: str, env: Mapping[str, Value], text: str) -> int | float:
    value = env.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        if value is None:
            raise _breach(text, f"there is no symbol {name!r}; known are {_known(env)}")
        raise _breach(text, f"{name!r} is a tensor; ask for {name}.shape[i] or numel({name})")
    return _checked(value, text)


def _ask(node: _Node, env: Mapping[str, Value], text: str) -> int:
    tensor = env.get(node.value)
    if tensor is None or isinstance(tensor, int | float):
        raise _breach(text, f"there is no tensor {node.value!r}; known are {_known(env)}")
    if node.kind == "numel":
        return int(_checked(math.prod(tensor.shape), text))
    if node.kind == "ndim":
        return len(tensor.shape)
    index = _walk(node.parts[0], env, text)
    values = tensor.shape if node.kind == "shape" else tensor.stride
    if not isinstance(index, int) or not -len(values) <= index < len(values):
        raise _breach(
            text, f"{node.value}.{node.kind} has no index {index} ({len(values)} dimensions)"
        )
    return int(_checked(int(values[index]), text))


def _known(env: Mapping[str, Value]) -> str:
    return ", ".join(sorted(env)) or "none"
