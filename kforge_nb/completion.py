"""Completion of ``%kforge`` lines in every front end, on the kernel's side.

What may come next is read off the same parsers and the same options table that the magics use:
sub-commands, options that were not given yet, the choices of an option, names of runs, indices and
names of targets. Where Python stands (an expression, the name of a variable) its names are
offered, and where a path stands IPython completes as ever.
"""

from __future__ import annotations

import re
import sys
from argparse import Action
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher

from kforge_nb._magic_line import Command
from kforge_nb.errors import KForgeError
from kforge_nb.options import option_specs

__all__ = ["Offer", "install", "offer", "uninstall"]

IDENTIFIER = "kforge"
_LINE = re.compile(r"^(?:\s*|\s*[\w., ]+=\s*)%kforge\s(?P<rest>.*)$")
_CELL = re.compile(r"^%%kforge\s(?P<rest>.*)$")
_NAME = re.compile(r"[A-Za-z_][\w.]*$")
_MOST = 500

Commands = Callable[[], Mapping[str, Command]]


@dataclass(frozen=True, slots=True)
class Offer:
    """What may stand where the cursor is: words, what they are, and the text they replace."""

    words: tuple[str, ...]
    kind: str
    fragment: str


def install(shell: Any, commands: Commands) -> None:
    """Completes ``%kforge`` lines in this shell from now on."""
    uninstall(shell)

    def match(context: CompletionContext) -> dict[str, Any]:
        line = context.text_until_cursor
        found = (_CELL.match(line) if context.cursor_line == 0 else None) or _LINE.match(line)
        if found is None:
            return {"completions": []}
        made = offer(found["rest"], commands(), shell.user_ns) or _python(shell, line)
        return {
            "completions": [SimpleCompletion(text=word, type=made.kind) for word in made.words],
            "matched_fragment": made.fragment,
            "suppress": made.kind != "python",
            "ordered": True,
        }

    shell.Completer.custom_matchers.insert(0, context_matcher(identifier=IDENTIFIER)(match))


def _python(shell: Any, line: str) -> Offer:
    """Names and attributes, which IPython does not complete behind a magic by itself."""
    found = _NAME.search(line)
    fragment = found[0] if found else ""
    completer = shell.Completer
    matches = completer.attr_matches if "." in fragment else completer.global_matches
    return Offer(tuple(matches(fragment))[:_MOST] if fragment else (), "python", fragment)


def uninstall(shell: Any) -> None:
    """Takes the completion away again."""
    matchers = shell.Completer.custom_matchers
    matchers[:] = [m for m in matchers if getattr(m, "matcher_identifier", "") != IDENTIFIER]


def offer(rest: str, commands: Mapping[str, Command], names: Mapping[str, Any]) -> Offer | None:
    """What may come next after ``%kforge``; None where it is not for kforge to say.

    Args:
        rest: The line after ``%kforge`` up to the cursor.
        commands: The sub-commands by name.
        names: The user's namespace, in which runs and profiles are found.
    """
    words = rest.split()
    fragment = words.pop() if words and not rest[-1].isspace() else ""
    if not words:
        return _fitting(commands, "command", fragment)
    command = commands.get(words[0])
    return None if command is None else _Line(command, words[1:], fragment, names).offer()


def _fitting(words: Iterable[str], kind: str, fragment: str) -> Offer:
    fitting = (word for word in words if word.startswith(fragment))
    return Offer(tuple(fitting)[:_MOST], kind, fragment)


class _Line:
    """One line after its command: the words before the cursor and the one at it."""

    def __init__(
        self, command: Command, given: list[str], fragment: str, names: Mapping[str, Any]
    ) -> None:
        self.command = command
        self.given = given
        self.fragment = fragment
        self.names = names
        self.actions = command.parser._actions
        self.options = {s: a for a in self.actions for s in a.option_strings}

    def offer(self) -> Offer | None:
        """What may stand at the cursor."""
        option, equals, value = self.fragment.partition("=")
        if equals and option in self.options:
            return self._values(self.options[option], value)
        last = self.options.get(self.given[-1]) if self.given else None
        if last is not None and last.nargs != 0:
            return self._values(last, self.fragment)
        plain = self._plain()
        if self.command.expression and plain:  # the expression has begun
            return None
        if self.fragment.startswith("-"):
            return _fitting(self._left(), "option", self.fragment)
        places = [a for a in self.actions if not a.option_strings]
        found = None
        if len(plain) < len(places):
            found = self._values(places[len(plain)], self.fragment)
            if found is None or found.words:
                return found
        return None if self.fragment else _fitting(self._left(), "option", "")

    def _plain(self) -> list[str]:
        """The words given so far that are neither options nor values of options."""
        found, value = [], False
        for word in self.given:
            if value:
                value = False
            elif word.startswith("-"):
                action = self.options.get(word)
                value = action is not None and action.nargs != 0
            else:
                found.append(word)
        return found

    def _left(self) -> list[str]:
        """Options that may still be given, in the order of the table."""
        given = {self.options.get(word.partition("=")[0]) for word in self.given}
        return [
            spelling
            for action in self.actions
            if action not in given or type(action).__name__ == "_AppendAction"
            for spelling in action.option_strings
            if spelling.startswith("--")
        ]

    def _values(self, action: Action, typed: str) -> Offer | None:
        """What an option or an argument may be; None where anything may."""
        choices = _choices(action)
        if choices:
            return _fitting(choices, "value", typed)
        if action.dest == "run":
            return _fitting(self._runs(), "run", typed)
        if action.dest == "target":
            return _fitting(self._targets(), "target", typed.rpartition(",")[2])
        if action.dest == "parent":
            return _fitting(self._nodes(), "node", typed)
        if action.dest == "id":
            run = self._run()
            return _fitting([prompt.id for prompt in run.prompts] if run else (), "prompt", typed)
        return None

    def _runs(self) -> list[str]:
        """Variables that hold runs, then the runs of the store, newest first."""
        found = list(_bound(self.names, "kforge_nb.run.handle", "Run"))
        try:
            found += _stored(self._after("--store"))
        except KForgeError:  # a locked or damaged store is told by the command, not while typing
            return found
        return list(dict.fromkeys(found))

    def _targets(self) -> list[str]:
        """Targets of the run that is meant, or of the newest profile: indices, then names."""
        if self.command.name == "optimize":
            profiles = list(_bound(self.names, "kforge_nb.profile.table", "Profile").values())
            rows = profiles[-1].rows if profiles else ()
            return _meaning_one([(row.index, row.name) for row in rows])
        return _meaning_one([(row["index"], row["name"]) for row in self._shown("targets")])

    def _nodes(self) -> list[str]:
        """Ids of the run's nodes, the newest first; of one target where the line names one."""
        target = self._after("--target")
        rows = reversed(self._shown("nodes"))
        return [row["id"] for row in rows if target in (None, str(row["target"]))]

    def _shown(self, rows: str) -> list[Any]:
        """Rows of the document of the run that is meant; none where there is no such run."""
        run = self._run()
        return list(run._source.document(details=False)[rows]) if run else []

    def _run(self) -> Any:
        """The run that the line speaks of, or the newest one; None where there is none."""
        from kforge_nb import api

        places = [a.dest for a in self.actions if not a.option_strings]
        plain = dict(zip(places, self._plain(), strict=False))
        named = self._after("--run") or plain.get("run")
        bound = _bound(self.names, "kforge_nb.run.handle", "Run")
        try:
            return api.find_run(bound.get(named or "", named), store=self._after("--store"))
        except KForgeError:
            return None

    def _after(self, option: str) -> str | None:
        """The value that an option was given, if it was."""
        if option not in self.given[:-1]:
            return None
        return self.given[self.given.index(option) + 1]


def _meaning_one(targets: list[tuple[int, str]]) -> list[str]:
    """Indices, and the names that one target alone has and that stand in a line as one word."""
    often = Counter(name for _, name in targets)
    names = [name for name, times in often.items() if times == 1 and re.fullmatch(r"[^\s,]+", name)]
    return [*(str(index) for index, _ in targets), *names]


def _choices(action: Action) -> tuple[str, ...]:
    spec = next((s for s in option_specs() if s.name == action.dest), None)
    if spec is not None and spec.choices:
        return spec.choices
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return tuple(metavar.split("|")) if "|" in metavar else ()


def _bound(names: Mapping[str, Any], module: str, kind: str) -> dict[str, Any]:
    """Variables that hold a run or a profile; nothing is imported for it."""
    wanted = getattr(sys.modules.get(module), kind, None)
    if wanted is None:
        return {}
    return {n: v for n, v in list(names.items()) if isinstance(v, wanted) and n[:1] != "_"}


def _stored(folder: str | None) -> list[str]:
    from kforge_nb.run.record import open_store, store_folder

    if not store_folder(folder).is_dir():
        return []
    with open_store(folder) as opened:
        return [run["name"] for run in reversed(opened.runs())]
