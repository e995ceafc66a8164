"""The options of a run, said once: the magics, Python and ``%config KForge`` all read this table.

Every field carries its help text and, where it has them, its choices; the magics build their flags
from it, :func:`kforge_nb.optimize` checks its arguments against it, and ``%config KForge`` shows
it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from kforge_nb.backends import BACKENDS
from kforge_nb.errors import BadInput

if TYPE_CHECKING:
    from kforge_nb.targets.target import Granularity

__all__ = [
    "OptimizeOptions",
    "OptionSpec",
    "clear_defaults",
    "did_you_mean",
    "option_specs",
    "set_default",
]

PROPOSERS = ("recipes", "openai", "paste", "replay", "manual")
RESTS = ("auto", "eager", "inductor", "cudagraphs", "inductor-cudagraphs")
LAYOUTS = ("auto", "keep", "channels_last")
PATIENCE = 12
"""Candidates in a row without a new best after which a search that costs nothing gives up."""


def _option(default: Any, help_text: str, kind: type, **extra: Any) -> Any:
    """A dataclass field that knows how it is spelled and explained."""
    return field(default=default, metadata={"help": help_text, "kind": kind, **extra})


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """What one optimize run may do; ``of`` validates and fills in the defaults."""

    name: str | None = _option(None, "name of the run; made up when left out", str)
    granularity: Granularity = _option(  # noqa: RUF009
        "region", "how the graph is cut into targets", str, choices=("op", "module", "region")
    )
    layout: str = _option(
        "auto",
        "how tensors of images lie in the model's graphs: keep, as the model has them; "
        "channels_last, as convolutions in half precision run on them, so kernels are searched and "
        "installed for that; auto times the convolutions both ways and takes what is faster",
        str,
        choices=LAYOUTS,
    )
    target: tuple[int | str, ...] = _option(
        (),
        "only these targets: by index in the profile, name (or its beginning), family, or the "
        "fingerprint's beginning; an index may be another one after the kernel was restarted",
        str,
        many=True,
        numbers=True,
    )
    ops: tuple[str, ...] = _option(
        (), "only targets of these families or names, such as softmax", str, many=True
    )
    top: int | None = _option(None, "at most so many targets, largest gain first", int, low=1)
    proposer: str = _option(
        "recipes",
        "what writes candidates: the built-in recipes, which need no key and cost nothing; openai, "
        "a language model behind any compatible endpoint, which costs money; paste, prompts that "
        "you carry to a chat window; replay, a recorded run or transcript; manual, kernels from "
        "%%kforge kernel cells only",
        str,
        choices=PROPOSERS,
    )
    model: str | None = _option(
        None, "name of the language model, as its endpoint knows it (openai)", str
    )
    temperature: float | None = _option(
        None, "sampling temperature; the endpoint's own where left out (openai)", float, low=0
    )
    max_tokens: int = _option(
        16_000, "at most so many tokens an answer, reasoning included (openai)", int, low=1
    )
    reasoning_effort: str | None = _option(
        None, "how long a reasoning model may think, in the endpoint's words (openai)", str
    )
    price_in: float | None = _option(
        None,
        "US dollars a million tokens in; looked up by the model's name where left out, and 0 for "
        "an endpoint of your own (openai)",
        float,
        low=0,
    )
    price_out: float | None = _option(
        None, "US dollars a million tokens out, see --price-in (openai)", float, low=0
    )
    parallel: int = _option(
        4, "at most so many proposals are awaited at once (openai, paste)", int, low=1
    )
    recording: str | None = _option(
        None, "the run document or transcript that is played again (replay)", str
    )
    backend: str = _option(
        "auto",
        "what compiles candidates: cpp (C++ with a plan, on the CPU), cupy_raw (CUDA with a plan, "
        "on a GPU) or cuda_extension (a torch extension with host code, which needs "
        "--allow-host-code); auto takes the first that fits the model's device",
        str,
        choices=("auto", *BACKENDS),
    )
    allow_host_code: bool = _option(
        False,
        "judge torch extensions too: their host code runs in a confined process, and can do there "
        "what it wants; without it they are refused",
        bool,
    )
    budget: int = _option(60, "at most so many candidates are judged", int, low=0)
    max_cost: float | None = _option(
        None,
        "US dollars that the run may spend at most; a call that could exceed it is not made",
        float,
        low=0,
    )
    time_limit: float | None = _option(
        None,
        "seconds that the search may take; timing its winners again (half as many, at least 30) "
        "and measuring in the model (--guard-time) come after it",
        float,
        low=0,
    )
    patience: int | None = _option(
        None,
        "a target stops after so many candidates without a new best; left out, it is 12, and "
        "there is no such limit where calls cost money: there the worth of the next call decides",
        int,
        low=1,
    )
    baseline: str = _option(
        "compile",
        "what winners are timed against: eager, or compile for eager and torch.compile (at most 8 "
        "winners and about 120 s; further ones against eager only)",
        str,
        choices=("eager", "compile"),
    )
    rest: str = _option(
        "auto", "how the remaining graph runs; auto measures and recommends", str, choices=RESTS
    )
    guard_time: float = _option(
        180.0,
        "seconds, about, that measuring in the model may take; rests with Inductor come last, and "
        "where it was too short for them a note says what would do (about 300 for graphs of "
        "thousands of nodes)",
        float,
        low=0,
    )
    seed: int = _option(0, "makes the search repeatable", int)
    engine: str = _option("local", "where candidates are judged", str, choices=("local",))
    store: str | None = _option(
        None, "folder of the runs; the default is .kforge beside the notebook", str
    )
    wait: bool = _option(False, "block until the run has ended", bool)
    dry_run: bool = _option(
        False, "only say which targets, how many calls and at most what cost", bool
    )
    show_prompt: bool = _option(
        False, "with --dry-run: show exactly what would be sent for each target first", bool
    )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> OptimizeOptions:
        """Options from keyword values; None means the default.

        Raises BadInput for an unknown name, a value of the wrong type or out of range.
        """
        known = {spec.name: spec for spec in option_specs()}
        chosen: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                raise BadInput(f"unknown option {name!r}{did_you_mean(name, known)}")
            if value is None:
                value = known[name].default
            chosen[name] = known[name].check(value)
        for name, spec in known.items():
            chosen.setdefault(name, spec.default)
        found = cls(**chosen)
        if found.patience is None and not found.paid:
            return replace(found, patience=PATIENCE)
        return found

    @property
    def paid(self) -> bool:
        """Whether calls cost money: those of an endpoint that is not one's own."""
        return self.proposer == "openai" and not self.price_in == self.price_out == 0

    def to_document(self) -> dict[str, Any]:
        """Plain JSON for the store; ``of`` reads it back."""
        return {
            spec.name: list(value) if spec.many else value
            for spec in option_specs()
            for value in (getattr(self, spec.name),)
        }


_KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One option as every surface needs it: name, default of now, type, choices and help."""

    name: str
    default: Any
    kind: type
    help: str
    choices: tuple[str, ...] = ()
    many: bool = False
    low: float | None = None
    numbers: bool = False  # whole numbers are taken as such, in digits too

    @property
    def flag(self) -> str:
        """Spelling in a magic."""
        return "--" + self.name.replace("_", "-")

    def check(self, value: Any) -> Any:
        """The value in its canonical type; BadInput says what was wrong."""
        if value is None and self.default is None:
            return None
        if not self.many:
            return self._check_one(value)
        items = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
        parts = [
            p for item in items for p in (item.split(",") if isinstance(item, str) else [item])
        ]
        return tuple(self._check_one(part) for part in parts if part != "")

    def _check_one(self, value: Any) -> Any:
        value = self._convert(value)
        if self.choices and value not in self.choices:
            raise BadInput(
                f"{self.flag} is {value!r}, but must be one of {', '.join(self.choices)}"
                f"{did_you_mean(value, self.choices)}"
            )
        if self.low is not None and not value >= self.low:
            raise BadInput(f"{self.flag} must be at least {self.low:g}, not {value!r}")
        return value

    def _convert(self, value: Any) -> Any:
        """The value as ``kind``, without any guessing (1.5 is no int, 1 no bool)."""
        if self.numbers and type(value) in (int, str) and str(value).strip().isdigit():
            return int(value)
        allowed: dict[type, tuple[type, ...]] = {
            bool: (bool,),
            int: (int, str),
            float: (int, float, str),
            str: (str, PathLike),
        }
        seconds = " of seconds" if self.name in ("time_limit", "guard_time") else ""
        wrong = BadInput(f"{self.flag} takes {_KINDS[self.kind]}{seconds}, not {value!r}")
        if not isinstance(value, allowed[self.kind]) or (
            self.kind is not bool and isinstance(value, bool)
        ):
            raise wrong
        try:
            return self.kind(value)
        except ValueError:
            raise wrong from None


_defaults: dict[str, Any] = {}


def option_specs() -> tuple[OptionSpec, ...]:
    """All options in order, with the defaults as ``%config KForge`` left them."""
    found = []
    for item in fields(OptimizeOptions):
        if item.default is MISSING:
            raise TypeError(f"option {item.name} has no default")
        meta = item.metadata
        found.append(
            OptionSpec(
                item.name,
                _defaults.get(item.name, item.default),
                meta["kind"],
                meta["help"],
                tuple(meta.get("choices", ())),
                bool(meta.get("many", False)),
                meta.get("low"),
                bool(meta.get("numbers", False)),
            )
        )
    return tuple(found)


def set_default(name: str, value: Any) -> Any:
    """Changes the default of an option for this process and returns it in its canonical type."""
    specs = {spec.name: spec for spec in option_specs()}
    if name not in specs:
        raise BadInput(f"unknown option {name!r}{did_you_mean(name, specs)}")
    _defaults[name] = specs[name].check(value)
    return _defaults[name]


def clear_defaults() -> None:
    """Forgets every changed default."""
    _defaults.clear()


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``(did you mean 'x'?)`` after a space, or nothing."""
    close = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
