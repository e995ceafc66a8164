"""Cells as workloads: where they run, what later runs may change, and how they fail."""

from __future__ import annotations

import inspect

import pytest

from kforge_nb.cells import CellWorkload
from kforge_nb.errors import BadInput


def test_the_first_run_assigns_and_later_runs_do_not(shell):
    """What a cell assigns stays after its first run and is not touched by measuring again."""
    shell.user_ns["x"] = 1
    cell = CellWorkload(shell, "y = x + 1\ny * 10")

    assert cell() == 20
    assert shell.user_ns["y"] == 2
    shell.user_ns["y"] = "mine"
    assert cell() == 20
    assert shell.user_ns["y"] == "mine"


def test_later_runs_see_the_names_of_the_first(shell):
    """Rebinding a name after the cell has run does not change what is measured."""
    shell.user_ns["model"] = lambda: "first"
    cell = CellWorkload(shell, "model()")
    assert cell() == "first"

    shell.user_ns["model"] = lambda: "second"

    assert cell() == "first"


def test_functions_of_a_cell_keep_their_source(shell):
    """The cell is known to linecache, so that tracers and debuggers find its source."""
    CellWorkload(shell, "def double(v):\n    return 2 * v\n")()

    assert "return 2 * v" in inspect.getsource(shell.user_ns["double"])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("  \n", "nothing to run"),
        ("a = 1\nb = = 2", "line 3 of the cell does not compile"),
        ("a = 1\n1 / 0", "ZeroDivisionError on line 3 (1 / 0): division by zero"),
        ("def f():\n    raise KeyError('k')\nf()", "KeyError on line 3"),
        ("await thing()", "line 2 of the cell does not compile"),
    ],
)
def test_a_bad_cell_is_one_message_with_its_line(shell, source, words):
    """A cell that cannot run is one BadInput naming the line as the notebook counts it."""
    with pytest.raises(BadInput) as caught:
        CellWorkload(shell, source)()

    assert words in str(caught.value)


def test_ipython_syntax_works_in_a_cell(shell):
    """Line magics in the body are transformed as in any cell."""
    cell = CellWorkload(shell, "where = %pwd\nwhere")

    assert isinstance(cell(), str)
