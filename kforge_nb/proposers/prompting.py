"""Prompts: from a request to the messages that a language model, or a person's chat window, gets.

What stays the same comes first (the rules of the language, then the target), what changes comes
last, so that a provider can keep the beginning in its cache. Whatever came from outside (the
graph's names, compiler output, a model's earlier answer) is quoted between lines with a number that
depends on the quoted text itself, so that no text can close its own quotation. A prompt holds no
captured values, no recipe's source and nothing of the inputs that decide.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.plan import plan_to_document, scratch_limit
from kforge_nb.errors import BadInput
from kforge_nb.proposers import describe
from kforge_nb.proposers.hints import hints, strategies, strategy_words

if TYPE_CHECKING:
    import jinja2

    from kforge_nb.candidates.candidate import Language, LaunchPlan
    from kforge_nb.proposers.protocol import Attempt, Request

__all__ = [
    "PROMPT_VERSION",
    "STRATEGIES",
    "Prompt",
    "format_repair",
    "language_of",
    "quoted",
    "render",
]

PROMPT_VERSION = "3"
"""Raised with every change of a template or of the hints; kept with each call and each node."""

STRATEGIES: dict[str, tuple[str, ...]] = {
    language: tuple(strategies(language)) for language in ("cpp", "cuda")
}
"""Names of the moves that an ``optimise`` may ask for, by language."""

_MAX_ANSWER = 60_000
_LOG, _SHORT_LOG = 6000, 1200
_SIBLINGS, _FEW_SIBLINGS = 12, 3


@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages (``role`` and ``content``), stable ones first.

    ``shortened`` says in words what was left out to keep within a limit. ``form`` is what
    :func:`format_repair` tells of the form of an answer.
    """

    version: str
    language: str
    messages: tuple[dict[str, str], ...]
    shortened: tuple[str, ...] = ()
    form: str = ""

    def text(self) -> str:
        """All messages as one text, as it is shown and pasted into a chat window."""
        return "\n\n".join(message["content"] for message in self.messages)

    def digest(self) -> str:
        """Content address (sha256 hex) of version, language and messages."""
        body = json.dumps([self.version, self.language, *self.messages], sort_keys=True)
        return hashlib.sha256(body.encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class _Cut:
    """How much is shown of what can be shortened; ``words`` say what is not."""

    words: tuple[str, ...] = ()
    log: int = _LOG
    siblings: int = _SIBLINGS
    mismatches: int = 8
    hints: bool = True


_CUTS = (
    _Cut(),
    _Cut(("most of the earlier attempts", "most of the compiler's output"), _SHORT_LOG,
         _FEW_SIBLINGS, 3),
    _Cut(("the earlier attempts", "most of the compiler's output",
          "what is known about this kind of target"), _SHORT_LOG, 0, 2, False),
)  # fmt: skip


def language_of(request: Request) -> Language:
    """What a target's kernels are written in: ``cuda`` on a GPU, else ``cpp``."""
    return "cuda" if request.target.device.startswith("cuda") else "cpp"


def render(
    request: Request, strategy: str | None = None, *, limit_chars: int | None = None
) -> Prompt:
    """The prompt for a request.

    Args:
        request: what is asked for; a ``repair`` or ``optimise`` has a parent.
        strategy: one of :data:`STRATEGIES` of the language, for ``optimise``.
        limit_chars: at most so many characters in all; what may be left out is, and the prompt
            says so. The rules, the target and the parent's source are never cut.

    Raises:
        BadInput: an unknown strategy, or the limit is too small for what may not be cut.
    """
    language = language_of(request)
    if strategy is not None and strategy not in STRATEGIES[language]:
        known = ", ".join(STRATEGIES[language])
        raise BadInput(f"there is no strategy {strategy!r} for {language}; known are {known}")
    made = None
    for cut in _CUTS:
        made = _render(request, language, strategy, cut)
        size = len(made.text())
        if limit_chars is None or size <= limit_chars:
            return made
    raise BadInput(
        f"the shortest prompt for {request.target.name} has {size} characters and only "
        f"{limit_chars} fit; use a model with a longer context, or a smaller --max-tokens"
    )


def _render(request: Request, language: str, strategy: str | None, cut: _Cut) -> Prompt:
    target = request.target
    limit = f"{scratch_limit(target.inputs, target.outputs) >> 20} MiB"
    rules = _template(f"rules_{language}.j2").render(
        headers=describe.headers(language), flags=describe.flags(language)
    )
    tensors = describe.tensors(target)
    about = _template("target.j2").render(
        graph=describe.graph_code(target),
        places=describe.places(target),
        tensors=tensors,
        machine=describe.machine(request),
        hints=hints(target.family, language) if cut.hints else (),
        scratch_limit=limit,
    )
    step = _template("step.j2").render(
        action=request.action,
        strategy=strategy,
        strategy_words=strategy_words(strategy, language) if strategy else "",
        parent=_parent(request, cut),
        siblings=describe.attempts(request.siblings, cut.siblings),
        shortened=cut.words,
    )
    form = _template("form.j2").render(
        language=language, fence=language, tensors=tensors, scratch_limit=limit
    )
    messages = (
        {"role": "system", "content": rules.strip()},
        {"role": "user", "content": f"{about.strip()}\n\n{step.strip()}"},
    )
    return Prompt(PROMPT_VERSION, language, messages, cut.words, form.strip())


def _parent(request: Request, cut: _Cut) -> dict[str, Any] | None:
    parent: Attempt | None = request.parent
    if parent is None:
        return None
    found = parent.evaluation
    return {
        "source": parent.candidate.source,
        "plan": _plan_text(parent.candidate.plan),
        "verdict": str(found.verdict),
        "reason": describe.clean(found.reason, 2000),
        "log": describe.compiler_output(found, cut.log),
        "mismatches": describe.mismatches(found, cut.mismatches),
        "figures": describe.figures(parent, request),
    }


def _plan_text(plan: LaunchPlan) -> str:
    """A plan with one launch a line."""
    document = plan_to_document(plan)
    kernels = ",\n  ".join(json.dumps(kernel) for kernel in document["kernels"])
    symbols, scratch = (json.dumps(document[name]) for name in ("symbols", "scratch"))
    return f'{{"kernels": [\n  {kernels}],\n "symbols": {symbols},\n "scratch": {scratch}}}'


def format_repair(prompt: Prompt, answer: str, why: str) -> Prompt:
    """A short prompt that asks for a broken answer once more, in the right form.

    It holds the form, the problem and the answer, and not the prompt before: that is what makes it
    cheap.
    """
    shown = describe.clean(answer, _MAX_ANSWER)
    asked = _template("broken.j2").render(why=describe.clean(why, 2000), answer=shown)
    messages = (
        {"role": "system", "content": prompt.form},
        {"role": "user", "content": asked.strip()},
    )
    return replace(prompt, messages=messages, shortened=())


def quoted(text: str, what: str) -> str:
    """A text from outside between two lines that it cannot imitate."""
    body = text.strip("\n")
    number = hashlib.sha256(body.encode(errors="surrogatepass")).hexdigest()[:16]
    lines = body.count("\n") + 1
    return f"<data {what} {number}, {lines} lines>\n{body}\n</data {number}>"


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kforge_nb.proposers", "prompts"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701  text for a model, not HTML; quoted() keeps it apart
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quoted"] = quoted
    return environment


def _template(name: str) -> jinja2.Template:
    return _environment().get_template(name)
