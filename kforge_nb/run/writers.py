"""Who writes a run's candidates, as ``--proposer`` says, and what the search must know of it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kforge_nb.errors import BadInput, MissingTool, install
from kforge_nb.proposers.protocol import Refusal, Request

if TYPE_CHECKING:
    from kforge_nb.options import OptimizeOptions
    from kforge_nb.proposers.protocol import Proposer
    from kforge_nb.run.conductor import Conductor
    from kforge_nb.targets.target import Target

__all__ = ["Writer", "make_writer"]


@dataclass(frozen=True, slots=True)
class Writer:
    """A proposer as a run takes it; see :class:`kforge_nb.run.conductor.Tools` for the fields.

    ``check`` raises BadInput where something that calls need is not set, such as a key.
    """

    proposer: Proposer
    parallel: int = 0
    opened: Callable[[Conductor], Proposer] | None = None
    check: Callable[[], None] = lambda: None


class Unopened:
    """A proposer before its run exists: it can say which targets it would write for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def supports(self, target: Target) -> str | None:
        """None where a language model can be asked for a kernel of the target."""
        from kforge_nb.proposers.paste import unwritable

        return unwritable(target)

    def propose(self, request: Request) -> Refusal:
        """Never asked by a search, which opens the proposer first."""
        return Refusal(f"target {request.index}: {self.name} answers inside a search only")


def make_writer(options: OptimizeOptions) -> Writer:
    """The writer that the options name.

    Raises BadInput or MissingTool where something that it needs is not said or not here: before
    anything is searched, and for a language model before the first call.
    """
    makers: dict[str, Callable[[OptimizeOptions], Writer]] = {
        "recipes": _recipes,
        "openai": _openai,
        "paste": _paste,
        "replay": _replay,
        "manual": _manual,
    }
    return makers[options.proposer](options)


def _recipes(_options: OptimizeOptions) -> Writer:
    from kforge_nb.proposers.recipes import RecipeProposer

    return Writer(RecipeProposer())


def _manual(_options: OptimizeOptions) -> Writer:
    from kforge_nb.proposers.manual import CellProposer

    return Writer(CellProposer())


def _replay(options: OptimizeOptions) -> Writer:
    from kforge_nb.proposers.replay import ReplayProposer, read_recording

    if options.recording is None:
        raise BadInput(
            "--proposer replay plays a recording: say which by --recording PATH (a run document, "
            "as run.save writes it, or a transcript)"
        )
    return Writer(ReplayProposer(read_recording(options.recording)))


def _paste(options: OptimizeOptions) -> Writer:
    def opened(conductor: Conductor) -> Proposer:
        from kforge_nb.proposers.paste import PasteProposer

        return PasteProposer(
            conductor.book,
            conductor.control.stop,
            conductor.changed,
            conductor.book.earlier_answer,
        )

    return Writer(Unopened("paste"), options.parallel, opened)


def _openai(options: OptimizeOptions) -> Writer:
    from kforge_nb.proposers.cost import price_of

    if options.model is None:
        raise BadInput(
            "--proposer openai asks a language model: say which by --model NAME, as its endpoint "
            "knows it (OPENAI_BASE_URL names the endpoint)"
        )
    price = price_of(options.model, price_in=options.price_in, price_out=options.price_out)
    if importlib.util.find_spec("openai") is None:
        raise MissingTool(f"--proposer openai needs a package: {install('openai')}")

    def opened(conductor: Conductor) -> Proposer:
        from kforge_nb.run.paying import paid_proposer

        return paid_proposer(conductor, price)

    def check() -> None:
        from kforge_nb.proposers.chat import Chat

        Chat(str(options.model)).close()

    return Writer(Unopened("openai"), options.parallel, opened, check)
