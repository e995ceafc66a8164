"""%kforge and %%kforge: parse, call the Python API, display. Nothing else happens here.

Everything a magic does can be done from Python: ``kforge_nb.profile``, ``optimize``, ``resume``,
``load_run``, ``runs``, ``doctor`` and the methods of ``Run``. Every error that kforge raises on
purpose is shown as one line, without a traceback.
"""

from __future__ import annotations

import builtins
import functools
import keyword
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.display import display
from traitlets import Any as AnyTrait
from traitlets import TraitError
from traitlets.config import Configurable

from kforge_nb._magic_line import Command, add_option, overview, split_command
from kforge_nb.errors import BadInput, KForgeError
from kforge_nb.options import clear_defaults, option_specs, set_default
from kforge_nb.store.records import ACTIVE

__all__ = ["KForge", "KForgeMagics", "load", "unload"]

LANGUAGES = {"cpp": "cpp", "cuda": "cupy_raw", "cuda_extension": "cuda_extension"}
"""What a kernel in a cell may be written in, and the backend that compiles it."""

_LATEST = "default: the latest of this process, else of the store"
_AS_FILE = "; if it is to be a file: one is written as NAME.kforge.json or as a page NAME.html"

_log = logging.getLogger("kforge_nb")


def _commands() -> dict[str, Command]:
    """All sub-commands with their parsers."""
    summaries = {
        "profile": "run a cell or an expression and show what may be made faster",
        "optimize": "search for faster kernels in the background; "
        "the cell calls the model under torch.inference_mode()",
        "status": "what a run is doing",
        "stop": "end a run; what it has found so far stays",
        "pause": "hold a run after the candidate it is judging",
        "resume": "go on with a paused, stopped or interrupted run; "
        "as %%kforge resume NAME the cell is its workload",
        "wait": "block until a run has ended (an interrupt ends only the waiting)",
        "show": "display a run",
        "guard": "what was installed in the model and what was not, with the evidence",
        "export": "write a run as one file: NAME.kforge.json, or .html",
        "doctor": "check the whole toolchain",
        "judge": "judge a kernel in a file of somebody else's against a reference",
        "kernel": "judge the kernel in this cell like any candidate of a run",
        "prompts": "show the prompts of a run that wait for an answer from a chat window",
        "answer": "bring the answer to a prompt back: %%kforge answer ID over a cell with it",
        "runs": "list the runs of the store",
    }
    found = {
        name: Command(name, text, expression=name in {"profile", "optimize"})
        for name, text in summaries.items()
    }
    specs = {spec.name: spec for spec in option_specs()}
    for name in ("granularity", "layout"):
        add_option(found["profile"].parser, specs[name])
    for spec in specs.values():
        add_option(found["optimize"].parser, spec)
    for name in ("profile", "optimize", "resume"):
        found[name].parser.add_argument("--as", dest="bind", help="bind the result to this name")
    for name in ("status", "stop", "pause", "resume", "wait", "show", "guard", "export", "prompts"):
        found[name].parser.add_argument("run", nargs="?", help=f"name of the run ({_LATEST})")
    for name, what in {"stop": "end", "pause": "hold", "resume": "go on with"}.items():
        found[name].parser.add_argument(
            "--target",
            metavar="N/NAME",
            action="append",
            help=f"{what} only this target (index or name) of a run that is at work; may be given "
            "again",
        )
    found["export"].parser.add_argument("path", nargs="?", help="file to write")
    found["export"].parser.add_argument(
        "--redact", action="store_true", help="leave out sources, names and values of your code"
    )
    _judge_arguments(found["judge"].parser, specs["allow_host_code"])
    _kernel_arguments(found["kernel"].parser, [specs["backend"], specs["allow_host_code"]])
    found["answer"].parser.add_argument("id", metavar="ID", help="id of the prompt")
    found["answer"].parser.add_argument("--run", help=f"name of the run ({_LATEST})")
    for name, command in found.items():
        if name not in {"optimize", "profile", "judge"}:
            add_option(command.parser, specs["store"])
    return found


def _kernel_arguments(parser: Any, shared: Sequence[Any]) -> None:
    """The options of ``%%kforge kernel``; ``shared`` are those that a run has too."""
    parser.add_argument(
        "--target", metavar="N/NAME", help="the target it computes, by index or name"
    )
    parser.add_argument("--parent", metavar="ID", help="node that the kernel was made from")
    parser.add_argument(
        "--language",
        metavar="|".join(LANGUAGES),
        help="what the kernel is written in (default: what fits the target's device)",
    )
    parser.add_argument("--run", help=f"name of the run ({_LATEST})")
    for spec in shared:
        add_option(parser, spec)


def _judge_arguments(parser: Any, allow_host_code: Any) -> None:
    """The options of ``%kforge judge``."""
    parser.add_argument("path", help="the file: .py, .cpp or .cu")
    parser.add_argument(
        "--reference",
        help="a KernelBench file, or the name of a module or function of yours, such as F.silu",
    )
    parser.add_argument("--inputs", help="name of the arguments of such a module or function")
    parser.add_argument("--device", help="cpu or cuda:N (default: what the file is written for)")
    parser.add_argument("--claim", help="what is claimed, as in '3.2x over eager'")
    parser.add_argument("--baseline", help="eager, or compile for both (default)")
    parser.add_argument("--as", dest="bind", help="bind the result to this name")
    add_option(parser, allow_host_code)


def _undecided(run: Any) -> str:
    """Why there is nothing to show of the guard, and how to come to it."""
    if run.state in ACTIVE:
        return (
            f"run {run.name} goes on, and the guard decides at its end ({run.status()}); "
            f"%kforge wait {run.name} waits for that, then ask again"
        )
    yet = "" if run.state == "done" else " yet"
    return f"run {run.name} has no decisions{yet}: {run.status()}"


@magics_class
class KForgeMagics(Magics):
    """The %kforge and %%kforge magics."""

    @no_var_expand
    @line_cell_magic
    def kforge(self, line: str, cell: str | None = None) -> Any:
        """Kernel Forge: %kforge COMMAND [OPTIONS], %%kforge COMMAND [OPTIONS] over a cell.

        Commands: profile, optimize, status, stop, pause, resume, wait, show, guard, export, doctor,
        judge, kernel, prompts, answer, runs. ``%kforge COMMAND --help`` explains one.
        """
        commands = _commands()
        if line.strip() in ("-h", "--help", "help"):
            print(overview(commands))
            return None
        command, rest = split_command(line, commands)
        values, expression = command.parse(rest)
        if values.pop("help", False):
            print(command.help())
            return None
        body = cell if cell is not None else expression
        action: Callable[[dict[str, Any], str], Any] = getattr(self, f"_{command.name}")
        try:
            return action(values, body)
        except KForgeError as error:
            raise UsageError(str(error)) from None

    def _profile(self, values: dict[str, Any], body: str) -> Any:
        from kforge_nb import api

        bind = self._bind_name(values)
        found = api.profile(self._workload(body), **values)
        return self._give(found, bind)

    def _optimize(self, values: dict[str, Any], body: str) -> Any:
        from kforge_nb import api
        from kforge_nb.run.handle import Run

        bind = self._bind_name(values)
        if bind is not None and "name" not in values:
            values["name"] = api.free_name(bind, store=values.get("store"))
        wait = values.pop("wait", False)
        found = api.optimize(self._workload(body), **values)
        if bind is not None:
            self._names[bind] = found
        if not isinstance(found, Run):
            return found
        self._tell_others(found)
        found.show()
        if wait:
            self._wait({"run": found}, "")
        return None

    def _resume(self, values: dict[str, Any], body: str) -> Any:
        from kforge_nb import api

        if "target" in values:
            if body.strip():
                raise BadInput(
                    "resume --target takes no cell, since nothing runs anew when a target goes on; "
                    "write %kforge resume --target N, and run the cell by itself"
                )
            self._hold("resume", values)
            return
        bind = self._bind_name(values)
        name = values.pop("run", None)
        workload = self._workload(body) if body.strip() else None
        run = api.resume(self._named(name), workload, **values)
        if bind is not None:
            self._names[bind] = run
        run.show()

    def _status(self, values: dict[str, Any], _body: str) -> None:
        run = self._run(values)
        print(run.status())
        if "run" not in values:
            self._tell_others(run)

    @staticmethod
    def _tell_others(run: Any) -> None:
        """Runs that nobody looks at, a paused one above all, are easily forgotten."""
        from kforge_nb.run import live

        if others := live.beside(run.id):
            print(others)

    def _stop(self, values: dict[str, Any], _body: str) -> None:
        self._hold("stop", values)

    def _pause(self, values: dict[str, Any], _body: str) -> None:
        self._hold("pause", values)

    def _hold(self, verb: str, values: dict[str, Any]) -> None:
        """Stops, pauses or resumes a run, or the targets of it that are named."""
        run = self._run(values)
        targets: list[int | str | None] = [_target(text) for text in values.get("target") or []]
        for target in targets or [None]:
            getattr(run, verb)(target)
        print(run.status())

    def _wait(self, values: dict[str, Any], _body: str) -> None:
        run = self._run(values)
        from kforge_nb.run.waiting import wait_telling

        try:
            wait_telling(run)
        except KeyboardInterrupt:
            raise UsageError(
                f"stopped waiting; run {run.name} goes on (%kforge stop {run.name} ends it)"
            ) from None
        print(run.status())

    def _show(self, values: dict[str, Any], _body: str) -> None:
        self._run(values).show()

    def _guard(self, values: dict[str, Any], _body: str) -> Any:
        run = self._run(values)
        if run.decisions.empty:
            print(_undecided(run))
            return None
        display(run.guard)
        return None

    def _export(self, values: dict[str, Any], _body: str) -> None:
        run_name, path = values.get("run"), values.get("path")
        if path is None and run_name is not None and run_name.endswith((".json", ".html")):
            run_name, path = None, run_name
        if path is not None and not path.endswith((".json", ".html")):
            raise BadInput(
                f"a run is written as NAME.kforge.json or as a page NAME.html, not as {path!r}"
            )
        try:
            run = self._run({**values, "run": run_name})
        except BadInput as error:
            hint = "" if path or "." not in str(run_name) else _AS_FILE
            raise BadInput(f"{error}{hint}") from None
        path = path or f"{run.name}.kforge.json"
        print(f"wrote run {run.name} to {run.save(path, redact=values.get('redact', False))}")

    def _doctor(self, values: dict[str, Any], _body: str) -> Any:
        from kforge_nb import api

        return api.doctor(**values)

    def _judge(self, values: dict[str, Any], _body: str) -> Any:
        from kforge_nb import api

        bind = self._bind_name(values)
        if "reference" in values:
            values["reference"] = self._look_up(values["reference"], values["reference"])
        if "inputs" in values:
            given = self._look_up(values["inputs"], None)
            if given is None:
                raise BadInput(f"--inputs takes the name of a variable, not {values['inputs']!r}")
            values["inputs"] = given if isinstance(given, list | tuple) else (given,)
        return self._give(api.judge_file(values.pop("path"), **values), bind)

    def _kernel(self, values: dict[str, Any], body: str) -> Any:
        if "target" not in values:
            raise BadInput("say which target the kernel computes: %%kforge kernel --target 3")
        given = _kernel_options(values)
        return self._run(values).judge_kernel(_target(values["target"]), body, **given)

    def _prompts(self, values: dict[str, Any], _body: str) -> Any:
        return self._run(values).prompts

    def _answer(self, values: dict[str, Any], body: str) -> None:
        print(self._run(values).answer(values["id"], body))

    def _runs(self, values: dict[str, Any], _body: str) -> Any:
        from kforge_nb import api

        found = api.runs(**values)
        return found.assign(**{name: found[name].map(_minute) for name in ("created", "updated")})

    @property
    def _names(self) -> dict[str, Any]:
        """The user's namespace."""
        if self.shell is None:
            raise BadInput("the magics need an IPython shell")
        return self.shell.user_ns

    def _workload(self, body: str) -> Callable[[], Any]:
        from kforge_nb.cells import CellWorkload

        return CellWorkload(self.shell, body)

    def _named(self, name: Any) -> Any:
        """A run bound to a variable, or else the name itself."""
        from kforge_nb.run.handle import Run

        if isinstance(name, Run):
            return name
        bound = self._names.get(name) if name else None
        return bound if isinstance(bound, Run) else name

    def _run(self, values: dict[str, Any]) -> Any:
        from kforge_nb import api

        return api.find_run(self._named(values.get("run")), store=values.get("store"))

    def _look_up(self, text: str, otherwise: Any) -> Any:
        """What a variable's name or a dotted name such as ``F.silu`` means; else ``otherwise``."""
        first, *rest = text.split(".")
        if first not in self._names:
            return otherwise
        try:
            return functools.reduce(getattr, rest, self._names[first])
        except AttributeError:
            return otherwise

    def _bind_name(self, values: dict[str, Any]) -> str | None:
        """The name of ``--as``; BadInput, before anything runs, where it would cost a variable."""
        bind: str | None = values.pop("bind", None)
        if bind is None:
            return None
        if not bind.isidentifier() or keyword.iskeyword(bind):
            raise BadInput(f"--as needs a Python name, not {bind!r}")
        held = self._names.get(bind, getattr(builtins, bind, None))
        if held is not None and type(held).__module__.partition(".")[0] != "kforge_nb":
            raise BadInput(
                f"--as {bind} would replace {bind}, which holds a {type(held).__name__} and no "
                f"result of kforge; choose another name, or free this one by `del {bind}`"
                if bind in self._names
                else f"--as {bind} would hide Python's own {bind}; choose another name"
            )
        return bind

    def _give(self, result: Any, bind: str | None) -> Any:
        """Displays a result and binds it, or hands it to IPython's Out."""
        if bind is None:
            return result
        self._names[bind] = result
        display(result)
        return None


def _target(text: str) -> int | str:
    """A target as ``--target`` names it: an index, or a word that means one."""
    return int(text) if text.isdigit() else text


def _kernel_options(values: dict[str, Any]) -> dict[str, Any]:
    """What ``%%kforge kernel`` was told beside target and run, as ``judge_kernel`` takes it."""
    specs = {spec.name: spec for spec in option_specs()}
    given = {k: specs[k].check(values[k]) for k in ("backend", "allow_host_code") if k in values}
    language = values.get("language")
    if language is not None and (language not in LANGUAGES or "backend" in given):
        raise BadInput(
            f"--language is one of {', '.join(LANGUAGES)}, not {language!r}; it says the same as "
            "--backend, so only one of them is given"
        )
    if language is not None:
        given["backend"] = LANGUAGES[language]
    return given | ({"parent": values["parent"]} if "parent" in values else {})


class _Defaults(Configurable):
    """Passes every change on to the options table (one way), refusing what it refuses."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in self.trait_names(config=True):
            self._take(name)
        self.observe(self._changed, self.trait_names(config=True))

    def _take(self, name: str) -> None:
        """A value that IPython's configuration holds already (a profile, an earlier load)."""
        default, value = self.trait_defaults(name), getattr(self, name)
        if value == default:
            return
        try:
            self._trait_values[name] = set_default(name, value)
        except BadInput as error:
            self._trait_values[name] = default
            _log.warning("KForge.%s keeps its default: %s", name, error)

    def _changed(self, change: dict[str, Any]) -> None:
        try:
            value = set_default(change["name"], change["new"])
        except BadInput as error:
            self._trait_values[change["name"]] = change["old"]
            raise TraitError(str(error)) from None
        self._trait_values[change["name"]] = value


def _minute(stored: str) -> str:
    """A stored time as people read it, and as the list of runs in JupyterLab writes it."""
    return datetime.fromisoformat(stored).astimezone().strftime("%Y-%m-%d %H:%M")


def _configurable() -> type[_Defaults]:
    """The class of ``%config KForge``, with a trait for each option."""
    of_one_run = {"name", "target", "dry_run", "show_prompt", "wait"}
    traits = {
        spec.name: AnyTrait(spec.default, help=spec.help).tag(config=True)
        for spec in option_specs()
        if spec.name not in of_one_run
    }
    doc = "Defaults of every run, as in ``%config KForge.budget = 100``."
    return type("KForge", (_Defaults,), {**traits, "__doc__": doc, "__module__": __name__})


KForge = _configurable()


def load(shell: Any) -> None:
    """Registers the magics and the configuration with an IPython shell (twice is fine)."""
    from kforge_nb.completion import install

    unload(shell)
    shell.register_magics(KForgeMagics)
    shell.configurables.append(KForge(parent=shell))
    install(shell, _commands)


def unload(shell: Any) -> None:
    """Takes the magics, their completion and the configuration away."""
    from kforge_nb.completion import uninstall

    clear_defaults()
    uninstall(shell)
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("kforge", None)
    shell.configurables[:] = [c for c in shell.configurables if not isinstance(c, KForge)]
