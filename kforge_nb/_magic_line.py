"""Reads the line of a magic: ``COMMAND --options … [names or expression]``.

Splitting is shlex's and parsing is argparse's (IPython's parser, whose errors are UsageErrors);
this module adds the two things they lack: suggestions for misspelled words, and a raw Python
expression at the end of the line, which shell quoting must not touch.
"""

from __future__ import annotations

import argparse
import io
import shlex
from dataclasses import dataclass, field
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from kforge_nb.options import OptionSpec, did_you_mean

__all__ = ["Command", "add_option", "overview", "split_command"]


@dataclass(frozen=True, slots=True)
class Command:
    """One sub-command: its parser, and what may follow the options."""

    name: str
    summary: str
    expression: bool = False
    parser: MagicArgumentParser = field(default_factory=MagicArgumentParser)

    def __post_init__(self) -> None:
        self.parser.prog = f"%kforge {self.name}"
        self.parser.description = self.summary
        self.parser.allow_abbrev = False
        self.parser.add_argument("-h", "--help", action="store_true", help="show this help")

    def parse(self, rest: str) -> tuple[dict[str, Any], str]:
        """Option values that were given, and the raw expression after them (or ``""``)."""
        head, expression = self._split_expression(rest) if self.expression else (rest, "")
        try:
            words = shlex.split(head)
        except ValueError as error:
            raise UsageError(f"{self.parser.prog}: {error} in {head!r}") from None
        comment = next((at for at, word in enumerate(words) if word.startswith("#")), len(words))
        words = words[:comment]
        if {"-h", "--help"}.intersection(words):
            return {"help": True}, expression
        try:
            values, unknown = self.parser.parse_known_intermixed_args(words)
        except UsageError as error:
            raise UsageError(f"{self.parser.prog}: {error}{self._listed}") from None
        if unknown:
            raise UsageError(self._unknown(unknown[0]))
        return {k: v for k, v in vars(values).items() if v is not None}, expression

    def help(self) -> str:
        """The command's help text, made from the same table as its parser."""
        return self.parser.format_help()

    def _unknown(self, word: str) -> str:
        name = word.split("=")[0]
        known = [s for action in self.parser._actions for s in action.option_strings]
        kind = "option" if word.startswith("-") else "argument"
        return f"{self.parser.prog}: unknown {kind} {name}{did_you_mean(name, known)}{self._listed}"

    @property
    def _listed(self) -> str:
        return f" (%kforge {self.name} --help lists all)"

    def _split_expression(self, rest: str) -> tuple[str, str]:
        """Leading options, and everything from the first word that is neither option nor value."""
        actions = {s: a for a in self.parser._actions for s in a.option_strings}
        stream = io.StringIO(rest)
        lexer = shlex.shlex(stream, posix=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        start, value_follows = 0, False
        while True:
            try:
                word = lexer.get_token()
            except ValueError:  # a quote inside the expression: it has begun
                return rest[:start], rest[start:].strip()
            if word is None:
                return rest[:start], rest[start:].strip()
            if not value_follows and not word.startswith("-"):
                return rest[:start], rest[start:].strip()
            if value_follows:
                value_follows = False
            else:
                action = actions.get(word)
                value_follows = action is not None and action.nargs != 0
            start = stream.tell()


def add_option(parser: argparse.ArgumentParser, spec: OptionSpec) -> None:
    """Adds an option of the shared table to a parser; its values stay strings for ``of``."""
    text = spec.help.replace("%", "%%")
    if spec.default not in (None, False, ()):
        text += f" (default: {spec.default})"
    if spec.kind is bool:
        parser.add_argument(spec.flag, dest=spec.name, action="store_true", default=None, help=text)
        return
    value = "N/NAME" if spec.numbers else spec.kind.__name__.upper()
    metavar = "|".join(spec.choices) if spec.choices else value
    parser.add_argument(
        spec.flag,
        dest=spec.name,
        metavar=metavar,
        help=text,
        action="append" if spec.many else "store",
    )


def split_command(line: str, commands: dict[str, Command]) -> tuple[Command, str]:
    """The command named by the first word and the rest of the line; UsageError if there is none."""
    word, _, rest = line.strip().partition(" ")
    word = "" if word.startswith("#") else word
    if word in commands:
        return commands[word], rest.strip()
    listing = ", ".join(commands)
    if not word:
        raise UsageError(f"%kforge needs a command: {listing} (%kforge --help explains them)")
    raise UsageError(
        f"%kforge has no command {word!r}{did_you_mean(word, commands)}; commands: {listing}"
    )


def overview(commands: dict[str, Command]) -> str:
    """What ``%kforge --help`` prints: every command in one line."""
    width = max(map(len, commands))
    lines = [f"  {name:{width}}  {command.summary}" for name, command in commands.items()]
    return "\n".join(
        [
            "%kforge COMMAND [OPTIONS], or %%kforge COMMAND [OPTIONS] over a cell",
            "",
            *lines,
            "",
            "%kforge COMMAND --help explains the options of one.",
        ]
    )
