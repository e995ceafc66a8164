"""The magics in a plain IPython shell: what they parse, call and show."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from types import SimpleNamespace

import pandas as pd
import pytest

from kforge_nb import api
from kforge_nb.errors import StoreError


class Calls(list):
    """Records the calls of a function and answers with ``result``."""

    result: object = "the result"

    def __call__(self, *args, **kwargs):
        self.append((args, kwargs))
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.fixture
def profile(monkeypatch):
    """``api.profile`` replaced by a recorder."""
    calls = Calls()
    monkeypatch.setattr(api, "profile", calls)
    return calls


def run_cell(shell, capsys, text):
    """Runs a cell; what it printed, and whether it succeeded."""
    done = shell.run_cell(text)
    captured = capsys.readouterr()
    return captured.out, captured.err, done.success


@pytest.mark.parametrize(
    "expression", ["model(x)", "model(x, mode='it is')", 'f("don\'t", -1)', "f(a) if b else g(--c)"]
)
def test_an_expression_reaches_the_workload_untouched(shell, profile, expression):
    """Options come first; the rest of the line is Python, which no shell quoting may change."""
    shell.run_line_magic("kforge", f"profile --granularity op {expression}")

    (workload,), options = profile[0]
    assert workload.source == expression
    assert options == {"granularity": "op"}


def test_dollars_and_braces_are_not_expanded(shell, profile):
    """IPython's variable expansion must not rewrite dictionaries or dollar signs of the line."""
    shell.user_ns["x"] = 5
    shell.run_cell("%kforge profile f({x}, '$x')")

    assert profile[0][0][0].source == "f({x}, '$x')"


def test_as_binds_the_result_and_displays_it(shell, profile, capsys):
    """``--as`` puts the result under a name and still shows it."""
    out, _, _ = run_cell(shell, capsys, "%%kforge profile --as prof\nmodel(x)")

    assert shell.user_ns["prof"] == "the result"
    assert "the result" in out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model", "model, which holds a SimpleNamespace and no result of kforge"),
        ("print", "would hide Python's own print"),
        ("class", "needs a Python name"),
        ("get_ipython", "holds a method"),
    ],
)
def test_as_takes_no_variable_away(shell, profile, capsys, name, words):
    """A name that holds something else is refused before the cell runs, and keeps its value."""
    shell.user_ns["model"] = model = SimpleNamespace()
    _, err, success = run_cell(shell, capsys, f"%%kforge profile --as {name}\nmodel(x)")

    assert not success
    assert words in err
    assert not profile
    assert shell.user_ns["model"] is model


def test_as_takes_over_the_name_of_an_earlier_result(shell, profile, capsys):
    """The same cell may run again: its own result of before is replaced."""
    from kforge_nb.run.dry import DryRun

    profile.result = DryRun((), 0, 0.0)
    for _ in range(2):
        assert run_cell(shell, capsys, "%%kforge profile --as found\nmodel(x)")[2]
    assert shell.user_ns["found"] is profile.result


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "needs a command: profile, optimize"),
        ("optimise x", "(did you mean 'optimize'?)"),
        ("profile --granularty op f()", "(did you mean '--granularity'?)"),
        ("status one two", "unknown argument two"),
        ("profile --as 1x f()", "--as needs a Python name"),
        ("status 'open", "No closing quotation"),
        ("kernel", "say which target"),
        ("kernel --target 1 --backend cupyraw", "(did you mean 'cupy_raw'?)"),
        ("profile", "nothing to run"),
        ("judge", "arguments are required: path (%kforge judge --help lists all)"),
        ("optimize --budget", "--budget: expected one argument (%kforge optimize --help"),
        ("export tr out.docx", "NAME.kforge.json or as a page NAME.html, not as 'out.docx'"),
    ],
)
def test_a_wrong_line_is_one_message(shell, capsys, line, words):
    """Every wrong line is one UsageError that helps, without a traceback."""
    _, err, success = run_cell(shell, capsys, f"%kforge {line}")

    assert err.startswith("UsageError: ")
    assert words in err
    assert "Traceback" not in err
    assert not success


def test_a_kernel_is_handed_on_with_its_backend(shell, capsys, monkeypatch):
    """The cell, the backend and the opt-in for host code reach the run as they were written."""
    from kforge_nb import api

    asked = []

    class Run:
        def judge_kernel(self, *args, **more):
            asked.append((args, more))

    monkeypatch.setattr(api, "find_run", lambda *_, **__: Run())
    line = "kernel --target 2 --backend cuda_extension --allow-host-code"
    run_cell(shell, capsys, f"%%kforge {line}\nforward")
    run_cell(shell, capsys, "%%kforge kernel --target 3\nkernel")

    opted = {"backend": "cuda_extension", "allow_host_code": True}
    assert asked == [((2, "forward\n"), opted), ((3, "kernel\n"), {})]


def test_a_kernel_has_a_parent_and_a_language(shell, capsys, monkeypatch):
    """``--parent`` and ``--language`` reach the run; a language and a backend are one too many."""
    from kforge_nb import api

    asked = []

    class Run:
        def judge_kernel(self, *args, **more):
            asked.append(more)

    monkeypatch.setattr(api, "find_run", lambda *_, **__: Run())
    run_cell(shell, capsys, "%%kforge kernel --target 2 --parent 2.0 --language cuda\nk")
    assert asked == [{"backend": "cupy_raw", "parent": "2.0"}]
    for line in ("--language rust", "--language cpp --backend cpp"):
        _, err, _ = run_cell(shell, capsys, f"%%kforge kernel --target 2 {line}\nk")
        assert "--language is one of cpp, cuda, cuda_extension" in err


def test_an_answer_is_brought_back_from_a_cell(shell, capsys, monkeypatch):
    """The cell under ``%%kforge answer`` reaches the prompt it names, and the words come back."""
    from kforge_nb import api

    class Run:
        prompts = ("a prompt",)

        def answer(self, prompt_id, text):
            return f"{prompt_id}: {text.strip()}"

    found = []
    monkeypatch.setattr(api, "find_run", lambda *given, **__: found.append(given) or Run())
    out, _, _ = run_cell(shell, capsys, "%%kforge answer 3.1 --run r\nthe text")
    assert out == "3.1: the text\n"
    assert found == [("r",)]
    run_cell(shell, capsys, "%kforge prompts r")
    assert shell.user_ns["_"] == ("a prompt",)


def test_errors_of_kforge_lose_their_traceback(shell, profile, capsys):
    """What kforge raises on purpose reaches the user as its message alone."""
    profile.result = StoreError("the store is locked; try again")

    _, err, _ = run_cell(shell, capsys, "%kforge profile f()")

    assert err == "UsageError: the store is locked; try again\n"


def test_bugs_keep_their_traceback(shell, profile, capsys):
    """An unexpected error is not dressed up: its traceback is needed to report it."""
    profile.result = RuntimeError("a bug")

    out, err, _ = run_cell(shell, capsys, "%kforge profile f()")

    assert "Traceback" in out + err


def test_help_is_made_from_the_options(shell, capsys):
    """``--help`` prints every option of the shared table with its text."""
    out, _, _ = run_cell(shell, capsys, "%kforge optimize --help")

    for words in ("--budget", "--max-cost", "at most so many candidates are judged", "--as"):
        assert words in out
    out, err, _ = run_cell(shell, capsys, "%kforge judge --help")  # without the file it needs
    assert "--claim" in out
    assert err == ""


@pytest.mark.parametrize("line", ["--help", "-h", "help"])
def test_help_without_a_command_lists_the_commands(shell, capsys, line):
    """Whoever does not know the commands yet asks for help without one."""
    out, _, success = run_cell(shell, capsys, f"%kforge {line}")

    assert success
    assert "  stop      end a run" in out
    assert "%kforge COMMAND --help" in out


def test_a_comment_may_follow_a_line_magic(shell, capsys, monkeypatch):
    """The README's first session has comments after its magics, and is there to be pasted."""
    found = Calls()
    found.result = StoreError("asked for")
    monkeypatch.setattr(api, "find_run", found)
    _, err, _ = run_cell(shell, capsys, "%kforge guard run   # what was replaced, and why")

    assert "asked for" in err
    assert found[0][0] == ("run",)


def test_config_changes_defaults_and_refuses_nonsense(shell, capsys):
    """``%config KForge`` feeds the options, checks values, and keeps the old one on nonsense."""
    run_cell(shell, capsys, "%config KForge.budget = 7")
    _out, _err, _ = run_cell(shell, capsys, "%config KForge.rest = 'inducter'")

    from kforge_nb.options import OptimizeOptions

    assert OptimizeOptions.of({}).budget == 7
    assert OptimizeOptions.of({}).rest == "auto"
    shell.run_line_magic("unload_ext", "kforge_nb")
    assert OptimizeOptions.of({}).budget == 60
    shell.run_line_magic("load_ext", "kforge_nb")


@pytest.mark.parametrize("verb", ["stop", "pause", "resume"])
def test_targets_are_held_and_ended_one_by_one(shell, monkeypatch, capsys, verb):
    """``--target`` may be given several times; without it the whole run is meant."""
    asked = []

    class Run:
        name = "r"

        def __getattr__(self, name):
            return lambda target=None: asked.append((name, target)) or "as it stands"

    monkeypatch.setattr(api, "find_run", lambda *a, **k: Run())
    out, _, _ = run_cell(shell, capsys, f"%kforge {verb} r --target 2 --target 5")
    assert asked == [(verb, 2), (verb, 5), ("status", None)]
    assert out == "as it stands\n"
    run_cell(shell, capsys, f"%kforge {verb} r --target gelu")
    assert asked[-2] == (verb, "gelu")
    if verb != "resume":
        run_cell(shell, capsys, f"%kforge {verb} r")
        assert asked[-2] == (verb, None)


def test_a_cell_is_not_dropped_where_a_target_goes_on(shell, monkeypatch, capsys):
    """``%%kforge resume --target`` would not run the cell, and says so instead of nothing."""
    monkeypatch.setattr(api, "find_run", lambda *a, **k: pytest.fail("the run was touched"))
    _, err, _ = run_cell(shell, capsys, "%%kforge resume r --target 2\nx = 1")
    assert "resume --target takes no cell" in err


def test_status_without_a_name_tells_of_other_runs_too(shell, monkeypatch, capsys):
    """The newest run is meant, and one that was paused before it is not forgotten."""
    from kforge_nb.run import live

    class Run:
        id = "2"

        def status(self):
            return "as it stands"

    monkeypatch.setattr(api, "find_run", lambda *a, **k: Run())
    monkeypatch.setattr(live, "beside", lambda run_id: f"others than {run_id}")
    assert run_cell(shell, capsys, "%kforge status")[0] == "as it stands\nothers than 2\n"
    assert run_cell(shell, capsys, "%kforge status r")[0] == "as it stands\n"


def test_a_second_run_tells_of_the_first(shell, monkeypatch, capsys):
    """Starting a run while another one is alive says so before anything is shown."""
    from kforge_nb.run import live
    from kforge_nb.run.handle import Run

    class Begun(Run):
        id = "2"

        def __init__(self):
            pass

        def show(self):
            print("the view")

    monkeypatch.setattr(api, "optimize", lambda *a, **k: Begun())
    monkeypatch.setattr(live, "beside", lambda run_id: f"others than {run_id}")
    assert run_cell(shell, capsys, "%%kforge optimize\n1")[0] == "others than 2\nthe view\n"


@pytest.mark.parametrize("state", ["profiling", "searching", "guarding"])
def test_the_guard_of_a_run_at_work_says_how_to_wait(shell, monkeypatch, capsys, state):
    """With Run All the guard is asked too early; the answer is what to write before it."""

    class Run:
        name = "r"
        decisions = SimpleNamespace(empty=True)

        def status(self):
            return "as it stands"

    monkeypatch.setattr(api, "find_run", lambda *a, **k: Run())
    Run.state = state
    out, _, _ = run_cell(shell, capsys, "%kforge guard r")
    assert "r goes on" in out
    assert "%kforge wait r" in out
    Run.state = "stopped"
    out, _, _ = run_cell(shell, capsys, "%kforge guard r")
    assert out == "run r has no decisions yet: as it stands\n"


def test_an_interrupt_ends_only_the_waiting(shell, monkeypatch, capsys):
    """Ctrl-C in ``%kforge wait`` says that the run goes on, and how to stop it."""

    class Run:
        name = "r"

        def wait(self, timeout=None):
            raise KeyboardInterrupt

    monkeypatch.setattr(api, "find_run", lambda *a, **k: Run())

    _, err, _ = run_cell(shell, capsys, "%kforge wait r")

    assert "run r goes on" in err
    assert "Traceback" not in err


def test_a_damaged_store_is_one_message_and_left_alone(shell, capsys, tmp_path):
    """A store that is no store gives one line, and the file stays as it was for rescue."""
    file = tmp_path / ".kforge" / "runs.db"
    file.parent.mkdir()
    file.write_bytes(b"this is no database at all" * 99)

    _, err, _ = run_cell(shell, capsys, "%kforge runs")

    assert err.startswith("UsageError: ")
    assert "Traceback" not in err
    assert file.read_bytes() == b"this is no database at all" * 99


def test_a_run_is_written_by_its_name_and_only_as_what_can_be_read(shell, capsys, tmp_path):
    """The command says which run it wrote, and what files there are where a name looks like one."""
    from kforge_nb.run.record import open_store

    with open_store(tmp_path / ".kforge") as store:
        store.create_run("tr")
    out, _, _ = run_cell(shell, capsys, "%kforge export unet.html")
    assert out.startswith("wrote run tr to ")
    assert (tmp_path / "unet.html").is_file()
    out, _, _ = run_cell(shell, capsys, "%kforge export tr --redact between.kforge.json")
    assert out.startswith("wrote run tr to ")
    assert (tmp_path / "between.kforge.json").is_file()
    _, err, _ = run_cell(shell, capsys, "%kforge export nosuch.docx")
    assert "no run named 'nosuch.docx'" in err
    assert "NAME.kforge.json or as a page NAME.html" in err


def test_the_list_of_runs_has_times_that_people_read(shell, monkeypatch):
    """JupyterLab's list writes the same minutes; the Python API keeps what is stored."""
    stored = "2026-11-30T16:49:57.123456Z"
    frame = pd.DataFrame([{"name": "mine", "created": stored, "updated": stored}])
    monkeypatch.setattr(api, "runs", lambda **_: frame)
    shell.run_cell("shown = %kforge runs")
    local = datetime(2026, 11, 30, 16, 49, tzinfo=UTC).astimezone()
    assert set(shell.user_ns["shown"]["created"]) == {f"{local:%Y-%m-%d %H:%M}"}
    assert set(frame["created"]) == {stored}


def test_unloading_takes_the_magic_away(shell, capsys):
    """After ``%unload_ext`` nothing of the extension is left in the shell."""
    shell.run_line_magic("unload_ext", "kforge_nb")

    assert "kforge" not in shell.magics_manager.magics["line"]
    assert "KForge" not in [type(c).__name__ for c in shell.configurables]
    shell.run_line_magic("load_ext", "kforge_nb")


HEAVY = ("torch", "cupy", "openai", "ipywidgets", "anywidget", "IPython", "matplotlib", "pandas")


@pytest.mark.parametrize("names", ["", "; kforge_nb.optimize; kforge_nb.Run; kforge_nb.profile"])
def test_importing_kforge_loads_no_heavy_package(names):
    """The package and even its public names cost no torch, no widgets, no pandas."""
    code = (
        f"import sys, kforge_nb{names}; "
        f"print([m for m in {HEAVY!r} if m in sys.modules]); print(sorted(kforge_nb.__all__))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy, public = out.stdout.splitlines()

    assert heavy == "[]"
    assert "optimize" in public


def test_the_public_names_are_these():
    """The public API is the top level and changes only on purpose."""
    import kforge_nb

    assert set(kforge_nb.__all__) == {
        "Run",
        "__version__",
        "doctor",
        "judge_file",
        "load_ipython_extension",
        "load_run",
        "optimize",
        "profile",
        "resume",
        "runs",
        "unload_ipython_extension",
    }
    with pytest.raises(AttributeError):
        kforge_nb.nothing_like_this  # noqa: B018


@pytest.mark.parametrize("first", ["import kforge_nb.profile.table, kforge_nb.doctor", "pass"])
def test_profile_and_doctor_are_rooms_and_functions(first):
    """Importing a room never hides the function of its name, in whichever order."""
    code = (
        f"{first}; import kforge_nb; import inspect; f = kforge_nb.profile; g = kforge_nb.doctor; "
        "print(callable(f), callable(g), 'fn' in inspect.signature(f).parameters); "
        "import kforge_nb.doctor as room; print(room.Doctor.__name__)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.split() == ["True", "True", "True", "Doctor"]


def test_loading_the_extension_loads_no_torch():
    """``%load_ext`` is instant: heavy rooms wait for the first command that needs them."""
    code = (
        "import sys; from IPython.core.interactiveshell import InteractiveShell as S; "
        "s = S.instance(); before = set(sys.modules); s.run_line_magic('load_ext', 'kforge_nb'); "
        "print([m for m in ('torch', 'pandas', 'ipywidgets', 'matplotlib') "
        "if m in set(sys.modules) - before])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == "[]"
