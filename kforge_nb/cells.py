"""A notebook cell as a workload: a callable that runs the cell's code, again and again.

The first run happens in the user's namespace, as if the magic were not there: what the cell assigns
stays. Every later run (profiling, guarding) works on a copy of that namespace in which the names
the cell reads have the values of the first run, so that measuring never changes a variable and
keeps working when the user goes on and rebinds ``model`` or ``x``. Objects themselves are shared: a
cell that appends to a list appends again on every run.
"""

from __future__ import annotations

import ast
import traceback
from types import CodeType
from typing import Any

from kforge_nb.errors import BadInput

__all__ = ["CellWorkload"]


class CellWorkload:
    """The code of one cell; calling it runs the cell and returns its last expression's value.

    ``shell`` is the IPython shell, ``source`` the cell body, and ``first_line`` the line of the
    cell on which the body starts, for messages. Raises BadInput when the body is empty or does not
    compile, and when its first run raises (with the line that did it).
    """

    def __init__(self, shell: Any, source: str, first_line: int = 2) -> None:
        if not source.strip():
            raise BadInput("there is nothing to run: put a call such as model(x) under the magic")
        self.source = source
        self._shell = shell
        self._first_line = first_line
        self._ran = False
        self._filename, self._body, self._last = self._compile(source)
        used = _names(self._body) | (_names(self._last) if self._last else set())
        self._pinned = {n: shell.user_ns[n] for n in used if n in shell.user_ns}

    def __call__(self) -> Any:
        """One run of the cell."""
        if self._ran:
            return self._execute({**self._shell.user_ns, **self._pinned})
        try:
            result = self._execute(self._shell.user_ns)
        except Exception as error:
            raise BadInput(self._explain(error)) from error
        self._ran = True
        return result

    def _execute(self, namespace: dict[str, Any]) -> Any:
        exec(self._body, namespace)  # noqa: S102  the user's own cell, run as IPython would
        return eval(self._last, namespace) if self._last else None  # noqa: S307  likewise

    def _compile(self, source: str) -> tuple[str, CodeType, CodeType | None]:
        """File name (known to linecache, so sources are found), body and last expression."""
        plain = self._shell.transform_cell(source)
        filename = self._shell.compile.cache(plain, self._shell.execution_count, raw_code=source)
        try:
            tree = ast.parse(plain, filename)
            last = None
            if tree.body and isinstance(tree.body[-1], ast.Expr):
                expression = ast.Expression(tree.body.pop().value)
                last = compile(expression, filename, "eval", dont_inherit=True)
            return filename, compile(tree, filename, "exec", dont_inherit=True), last
        except SyntaxError as error:
            line = (error.lineno or 1) + self._first_line - 1
            raise BadInput(f"line {line} of the cell does not compile: {error.msg}") from None

    def _explain(self, error: Exception) -> str:
        """One line: what the cell raised, and where."""
        frames = [
            f for f in traceback.extract_tb(error.__traceback__) if f.filename == self._filename
        ]
        text = str(error).strip() or "no message"
        text = text if len(text) <= 300 else text[:300] + " …"
        where = ""
        if frames and frames[-1].lineno:
            where = f" on line {frames[-1].lineno + self._first_line - 1} ({frames[-1].line})"
        return (
            f"the cell raised {type(error).__name__}{where}: {text}. "
            "Run the cell without the magic to see the whole traceback"
        )


def _names(code: CodeType) -> set[str]:
    """Global names that a code object and the functions inside it read."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found
