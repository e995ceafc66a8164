"""The one table of options: validation, defaults, and that every surface agrees with it."""

from __future__ import annotations

import inspect

import pytest

from kforge_nb import options
from kforge_nb.errors import BadInput
from kforge_nb.options import OptimizeOptions, option_specs


@pytest.fixture(autouse=True)
def _fresh_defaults():
    yield
    options.clear_defaults()


def test_strings_of_a_magic_and_values_of_python_mean_the_same():
    """A flag's text and a Python value give equal options, so the two surfaces cannot differ."""
    from_magic = OptimizeOptions.of(
        {"budget": "5", "max_cost": "1.5", "target": ["1,2", "3"], "ops": ["softmax"]}
    )
    from_python = OptimizeOptions.of(
        {"budget": 5, "max_cost": 1.5, "target": (1, 2, 3), "ops": "softmax"}
    )

    assert from_python == from_magic


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"bugdet": 3}, "did you mean 'budget'"),
        ({"budget": -1}, "at least 0, not -1"),
        ({"budget": "many"}, "--budget takes a whole number, not 'many'"),
        ({"budget": 1.5}, "--budget takes a whole number, not 1.5"),
        ({"rest": "inducter"}, "did you mean 'inductor'"),
        ({"wait": 1}, "--wait takes True or False, not 1"),
        ({"top": 0}, "at least 1"),
        ({"time_limit": "soon"}, "--time-limit takes a number of seconds, not 'soon'"),
    ],
)
def test_a_wrong_option_is_named_with_its_value(values, words):
    """Each kind of wrong option gives one message that names it and says what is right."""
    with pytest.raises(BadInput) as caught:
        OptimizeOptions.of(values)

    assert words in str(caught.value)


def test_a_misspelled_argument_of_optimize_is_suggested():
    """From Python, too, a wrong option is a BadInput with a suggestion, before anything runs."""
    import kforge_nb

    with pytest.raises(BadInput, match="did you mean 'budget'"):
        kforge_nb.optimize(pytest.fail, bugdet=3)


def test_options_survive_the_store():
    """Options read back from their document are equal, so that a resumed run searches on alike."""
    before = OptimizeOptions.of({"target": (4,), "ops": ("gelu", "softmax"), "time_limit": 3})

    assert before == OptimizeOptions.of(before.to_document())


def test_changed_defaults_reach_new_options():
    """A changed default counts where an option is left out; an explicit value still wins."""
    options.set_default("budget", "9")

    assert OptimizeOptions.of({}).budget == 9
    assert OptimizeOptions.of({"budget": None}).budget == 9
    assert OptimizeOptions.of({"budget": 2}).budget == 2


def test_the_signature_of_optimize_is_the_table():
    """``optimize`` has exactly the options of the table, each explained in its docstring."""
    import kforge_nb
    from kforge_nb.api import RunOptions

    parameters = inspect.signature(kforge_nb.optimize).parameters
    keywords = {n for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    table = {spec.name for spec in option_specs()}

    assert table == keywords == set(RunOptions.__annotations__) | {"dry_run"}
    assert parameters["target"].annotation == "int | str | Sequence[int | str] | None"
    for spec in option_specs():
        assert spec.help in (kforge_nb.optimize.__doc__ or "")
