"""TAB on a %kforge line, as every front end asks for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from IPython.core.completer import provisionalcompleter

from kforge_nb.options import OptimizeOptions
from kforge_nb.run.handle import Run
from kforge_nb.run.source import FileSource

EXAMPLE = Path(__file__).parents[1] / "store" / "fixtures" / "example.kforge.json"


@pytest.fixture
def tab(shell):
    """What is offered with the cursor at the end of a text, which the shell splits itself."""

    def press(text):
        with provisionalcompleter():
            found = list(shell.Completer.completions(text, len(text)))
        return [text[: c.start] + c.text for c in found]

    return press


@pytest.fixture
def run(shell):
    """A run bound to a variable; its targets are 0 to 3."""
    shell.user_ns["mine"] = Run(FileSource(EXAMPLE))
    return json.loads(EXAMPLE.read_text())


def test_commands(tab):
    """After the magic's name come its sub-commands and nothing else, in line and cell magics."""
    assert tab("%kforge st") == ["%kforge status", "%kforge stop"]
    assert tab("%%kforge opt") == ["%%kforge optimize"]
    assert tab("x = %kforge prof") == ["x = %kforge profile"]
    assert tab("a = 1\n%kforge docto") == ["a = 1\n%kforge doctor"]


def test_every_option_of_the_table_is_offered(tab):
    """What `optimize` takes can be found by TAB, once each."""
    flags = {"--" + name.replace("_", "-") for name in OptimizeOptions.__dataclass_fields__}
    offered = [text.split()[-1] for text in tab("%%kforge optimize --")]

    assert flags <= set(offered)
    assert len(offered) == len(set(offered))


def test_an_option_that_was_given_is_not_offered_again_unless_it_repeats(tab):
    """`--seed` stands once; `--ops` may come again."""
    offered = [text.split()[-1] for text in tab("%%kforge optimize --seed 3 --ops softmax --")]

    assert "--seed" not in offered
    assert "--ops" in offered


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("%%kforge optimize --granularity ", ["op", "module", "region"]),
        ("%%kforge optimize --rest=cuda", ["cudagraphs"]),
        ("%%kforge kernel --language cu", ["cuda", "cuda_extension"]),
        ("%%kforge optimize --proposer re", ["recipes", "replay"]),
    ],
)
def test_choices_of_an_option(tab, line, wanted):
    """Values come from the options table, after a space or an equals sign."""
    head = line.rpartition("=" if "=" in line else " ")[0]

    assert tab(line) == [f"{head}{'=' if '=' in line else ' '}{word}" for word in wanted]


def test_runs_by_variable_and_by_name(tab, shell, run):
    """A run in a variable is offered, and so is what lies in the store, without making one."""
    assert tab("%kforge show mi") == ["%kforge show mine"]
    assert not Path(".kforge").exists()


def test_targets_of_the_run_that_is_meant(tab, run):
    """Indices, then names; none where the run is not there."""
    ends = [str(target["index"]) for target in run["targets"]]
    ends += [target["name"] for target in run["targets"]]

    assert tab("%%kforge kernel --run mine --target ") == [
        f"%%kforge kernel --run mine --target {end}" for end in ends
    ]
    assert tab("%kforge stop mine --target ge") == ["%kforge stop mine --target gelu"]
    offered = tab("%%kforge kernel --run nobody --target ")
    assert not [text for text in offered if text.rpartition(" ")[2].isdigit()]


def test_nodes_to_start_a_kernel_from(tab, run):
    """`--parent` takes a node of the target that the line names, the newest first."""
    wanted = [node["id"] for node in reversed(run["nodes"]) if node["target"] == 1]
    head = "%%kforge kernel --run mine --target 1 --parent "

    assert tab(head) == [head + node for node in wanted]


def test_prompts_that_wait_for_an_answer(tab, shell, run, monkeypatch):
    """`answer` takes the id of a prompt of the run."""
    waiting = [type("Prompt", (), {"id": name}) for name in ("0.1", "0.2")]
    monkeypatch.setattr(Run, "prompts", property(lambda self: waiting))

    assert tab("%%kforge answer --run mine 0.") == [
        "%%kforge answer --run mine 0.1",
        "%%kforge answer --run mine 0.2",
    ]


def test_targets_of_a_profile(tab, shell):
    """`optimize --target` speaks of the profile that was made last; more than one with commas."""
    from kforge_nb.profile.table import Profile

    profile = Profile.__new__(Profile)
    names = {4: "softmax", 5: "gelu", 41: "softmax", 42: "add·layer_norm", 43: "two words"}
    rows = [type("Row", (), {"index": n, "name": name}) for n, name in names.items()]
    object.__setattr__(profile, "rows", rows)
    shell.user_ns["prof"] = profile

    assert tab("%%kforge optimize --target 4") == [
        "%%kforge optimize --target 4",
        "%%kforge optimize --target 41",
        "%%kforge optimize --target 42",
        "%%kforge optimize --target 43",
    ]
    assert tab("%%kforge optimize --target 4,")[0] == "%%kforge optimize --target 4,4"
    assert tab("%%kforge optimize --target 4,g") == ["%%kforge optimize --target 4,gelu"]
    assert tab("%%kforge optimize --target add") == ["%%kforge optimize --target add·layer_norm"]
    assert tab("%%kforge optimize --target so") == []  # two targets have this name
    assert tab("%%kforge optimize --target tw") == []


def test_python_is_completed_where_python_stands(tab, shell):
    """An expression, the name of a variable and the body of a cell hold names and attributes."""
    shell.user_ns["attention_model"] = 1
    assert "%kforge profile f(attention_model.real" in tab("%kforge profile f(attention_model.re")

    assert "%kforge profile attention_model" in tab("%kforge profile attention_m")
    assert "%%kforge profile\nattention_model" in tab("%%kforge profile\nattention_m")
    assert "%kforge judge k.py --reference attention_model" in tab(
        "%kforge judge k.py --reference attention_m"
    )


def test_files_are_completed_where_a_path_stands(tab):
    """`--recording` and `judge` take a file, which IPython finds."""
    Path("talk.kforge.json").write_text("{}")

    assert "%kforge judge talk.kforge.json" in tab("%kforge judge talk")


def test_unloading_takes_it_away(tab, shell):
    """No word of kforge is offered by a shell that has unloaded it, and loading twice adds none."""
    shell.run_line_magic("reload_ext", "kforge_nb")
    assert tab("%kforge st") == ["%kforge status", "%kforge stop"]

    shell.run_line_magic("unload_ext", "kforge_nb")
    assert tab("%kforge sta") == []
    shell.run_line_magic("load_ext", "kforge_nb")
