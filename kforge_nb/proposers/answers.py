"""Reading an answer: from whatever a language model wrote to a candidate, or why there is none.

An answer is hostile input. It is searched for blocks of text and parsed as JSON within limits;
nothing of it is ever evaluated, and its plan is checked against the target before anything else
sees it. What people's chat windows and models put around an answer (prose, reasoning in tags,
several blocks, a block that holds everything) is put up with; what is left out is not guessed.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.candidate import Candidate, Language, LaunchPlan
from kforge_nb.candidates.plan import plan_from_document, validate
from kforge_nb.errors import ContractBreach
from kforge_nb.proposers.derive import derive_cuda_plan, derive_plan
from kforge_nb.proposers.describe import clean
from kforge_nb.proposers.prompting import format_repair
from kforge_nb.proposers.stream import paired

if TYPE_CHECKING:
    from kforge_nb.targets.target import Target

__all__ = ["MAX_ANSWER", "MAX_SOURCE", "Answer", "BadAnswer", "format_repair", "idea_of", "parse"]

MAX_ANSWER = 400_000
"""Characters of an answer that are looked at; a longer one is refused unread."""

MAX_SOURCE = 200_000
MAX_PLAN = 60_000
_MAX_BLOCKS = 64
_MAX_TITLE = 120

_log = logging.getLogger(__name__)

# No pattern goes back over what it has read: an answer may be made to be slow to read.
_FENCE = re.compile(r"[ \t]{0,6}(`{3,}|~{3,})[ \t]*([\w+#.-]*)")
_THOUGHT = re.compile(
    r"^[ \t]*<(think|thinking|reasoning|thought)>.*?(?:</\1>|\Z)", re.DOTALL | re.MULTILINE
)
_THOUGHT_END = re.compile(r"</(?:think|thinking|reasoning|thought)>")
_IDEA = re.compile(r"[>*#`-]*\s*IDEA\**\s*:(.+)", re.IGNORECASE)
_SOURCE_WORDS = frozenset({"cpp", "c++", "cc", "cxx", "c", "cuda", "cu", "cuda-cpp", "hpp", "h"})
_JSON_WORDS = frozenset({"json", "jsonc", "json5", "javascript", "js"})
_SOURCE_KEYS = ("source", "code", "cpp", "cuda", "kernel_source")
_ENTRY = re.compile(r'extern\s*"C"')
_BEGIN = re.compile(
    r'^(?:#\s*(?:include|define|pragma)|extern\s*"C"|template|namespace|//|static|using|typedef)',
    re.MULTILINE,
)
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_JSON_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*+"?|//[^\n]*|,(?=\s*[}\]])')
_PLAN_BEGIN = re.compile(r'\{\s*"(?:kernels|symbols|scratch)"\s*:')


@dataclass(frozen=True, slots=True)
class Answer:
    """A candidate whose plan fits the target; its title is the idea that was named."""

    candidate: Candidate


@dataclass(frozen=True, slots=True)
class BadAnswer:
    """There is no candidate in it, and why. ``repairable``: its form may be mended."""

    reason: str
    repairable: bool


@dataclass(frozen=True, slots=True)
class _Block:
    """A fenced block: its word, its text, and whether its end was there."""

    word: str
    text: str
    closed: bool


class _Bad(Exception):
    """Ends the reading of an answer."""

    def __init__(self, reason: str, repairable: bool = True) -> None:
        super().__init__(reason)
        self.bad = BadAnswer(clean(reason, 1000), repairable)


def parse(text: str, target: Target, language: str) -> Answer | BadAnswer:
    """The candidate that an answer holds.

    Args:
        text: the whole answer, untrusted.
        target: what the candidate claims to compute; the plan must fit it.
        language: ``cpp`` or ``cuda``.
    """
    text = paired(text)
    try:
        return Answer(_candidate(text, target, "cuda" if language == "cuda" else "cpp"))
    except _Bad as found:
        return found.bad
    except ContractBreach as breach:
        return BadAnswer(clean(f"the launch plan breaks the contract: {breach}", 1000), True)
    except Exception as problem:  # noqa: BLE001  a search must not end by what is in one answer
        _log.debug("an answer cannot be read", exc_info=problem)
        words = paired(f"reading the answer failed: {type(problem).__name__}: {problem}")
        return BadAnswer(clean(words, 1000), False)


def idea_of(text: str) -> str:
    """The one line that an answer gives to its idea; empty where it has none."""
    for line in _without_thoughts(paired(text[:MAX_ANSWER])).splitlines():
        found = _IDEA.match(line.strip()[: 4 * _MAX_TITLE])
        if found:
            return clean(found[1].strip(" *`"), 4 * _MAX_TITLE)[:_MAX_TITLE]
    return ""


def _candidate(text: str, target: Target, language: Language) -> Candidate:
    if len(text) > MAX_ANSWER:
        raise _Bad(
            f"the answer has {len(text)} characters; at most {MAX_ANSWER} are read",
            repairable=False,
        )
    said = _without_thoughts(text)
    if not said.strip():
        empty = "the answer is empty" if not text.strip() else "the answer is all reasoning"
        raise _Bad(f"{empty}: no source, no plan", repairable=False)
    blocks = list(_blocks(said))
    plans = [plan for plan in (_plan_in(b) for b in blocks) if plan is not None]
    sources = [b.text for b in blocks if _is_source(b)]
    whole = _whole(said, blocks)
    if whole is not None:
        sources.append(whole[0])
        plans.append(whole[1])
    if not blocks and whole is None:
        sources, plans = _unfenced(said)
    if not sources:
        raise _Bad(_no_source(said, blocks))
    source, plan = _pair(sources, plans, target, language, blocks)
    validate(plan, language, target.inputs, target.outputs)
    return Candidate(language, source, plan, title=idea_of(text))


def _without_thoughts(text: str) -> str:
    """Without reasoning in tags; also where only its end is there (its start was in the prompt)."""
    bare = _THOUGHT.sub("", text)
    ends = list(_THOUGHT_END.finditer(bare))
    return bare[ends[-1].end() :] if ends else bare


def _blocks(text: str) -> Iterator[_Block]:
    fence, word, count = "", "", 0
    lines: list[str] = []
    for line in text.splitlines():
        match = _FENCE.match(line)
        if match and "`" in line[match.end() :]:
            match = None  # code within a line
        if not fence:
            if match:
                fence, word, lines = match[1], match[2].lower(), []
        elif match and match[1].startswith(fence) and not match[2]:
            yield _Block(word, "\n".join(lines), True)
            fence, count = "", count + 1
            if count >= _MAX_BLOCKS:
                return
        else:
            lines.append(line)
    if fence:
        yield _Block(word, "\n".join(lines), False)


def _is_source(block: _Block) -> bool:
    plain = block.word in _SOURCE_WORDS or block.word not in _JSON_WORDS
    return block.closed and plain and _ENTRY.search(block.text) is not None


def _plan_in(block: _Block) -> Any:
    """The plan that a block holds; None if it holds none."""
    body = block.text.strip()
    if not body.startswith("{") or not (block.word in _JSON_WORDS or block.word in ("", "text")):
        return None
    if not block.closed:
        return None
    return _plan_of(_json(body))


def _plan_of(document: Any) -> Any:
    if not isinstance(document, dict):
        return None
    inner = document.get("plan", document.get("launch_plan"))
    if isinstance(inner, dict):
        return inner
    return document if "kernels" in document else None


def _whole(said: str, blocks: Iterable[_Block]) -> tuple[str, Any] | None:
    """Source and plan where one JSON object holds both."""
    bodies = [b.text.strip() for b in blocks if b.closed] or [said.strip()]
    for body in bodies:
        if not body.startswith("{") or not any(f'"{key}"' in body for key in _SOURCE_KEYS):
            continue
        document = _json(body)
        plan = _plan_of(document)
        source = next((document[k] for k in _SOURCE_KEYS if isinstance(document.get(k), str)), None)
        if source is not None and plan is not None:
            plain = {k: v for k, v in plan.items() if k not in _SOURCE_KEYS}
            return source, plain if plan is document else plan
    return None


def _json(body: str) -> Any:
    """A JSON document; comments and commas too many are taken out on a second try."""
    if len(body) > MAX_PLAN + MAX_SOURCE:
        raise _Bad(f"a JSON block has {len(body)} characters; a plan is far shorter")
    readings: tuple[Callable[[str], str], ...] = (str, _relaxed)
    reason = ""
    for reading in readings:
        try:
            return _mended(json.loads(reading(body), parse_constant=_no_constant), body)
        except RecursionError:
            raise _Bad("the launch plan is nested too deeply") from None
        except ValueError as problem:
            reason = str(problem)
    raise _Bad(f"the launch plan is no valid JSON: {reason}")


def _mended(document: Any, body: str) -> Any:
    """Without halves of characters, which escapes in the JSON text can make."""
    if _HALF.search(body) is None:
        return document
    return json.loads(paired(json.dumps(document, ensure_ascii=False)))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _relaxed(body: str) -> str:
    """Without ``//`` comments and without commas before a closing bracket, strings left alone."""
    return _JSON_TOKEN.sub(lambda m: m[0] if m[0].startswith('"') else "", body)


def _unfenced(said: str) -> tuple[list[str], list[Any]]:
    """Source and plan where no block is fenced: what lies before the plan, from its first line."""
    begins = list(_PLAN_BEGIN.finditer(said))
    start = _BEGIN.search(said)
    if start is None or not _ENTRY.search(said):
        return [], []
    if not begins:
        return [said[start.start() :].strip()], []
    at = begins[-1].start()
    try:
        plan, end = json.JSONDecoder().raw_decode(said, at)
        plan = _mended(plan, said[at:end])
    except (ValueError, RecursionError) as problem:
        raise _Bad(f"the launch plan is no valid JSON: {problem}") from None
    return [said[start.start() : at].strip()], [plan]


def _no_source(said: str, blocks: list[_Block]) -> str:
    if blocks and not blocks[-1].closed:
        return "the answer ends inside a block: it was cut off, or its fence is not closed"
    if _ENTRY.search(said):
        return 'the source with its extern "C" entry is not in a fenced block of its own'
    if blocks:
        return 'no block holds a source with an extern "C" entry'
    return "the answer holds no fenced block: neither source nor launch plan"


def _pair(
    sources: list[str], plans: list[Any], target: Target, language: Language, blocks: list[_Block]
) -> tuple[str, LaunchPlan]:
    """The last plan with the last source that defines its kernels."""
    for source in sources:
        if len(source) > MAX_SOURCE or "\0" in source:
            raise _Bad(
                f"a source has {len(source)} characters (at most {MAX_SOURCE}) or holds NUL", False
            )
    if not plans:
        return sources[-1], _derived(sources[-1], target, language, blocks)
    problem = ""
    for document in reversed(plans):
        plan = plan_from_document(_padded(document))
        for source in reversed(sources):
            missing = [
                k.name
                for k in plan.kernels
                if not re.search(rf"\b{re.escape(k.name)}\s*\(", source)
            ]
            if not missing:
                return source, plan
            problem = problem or f"the plan launches {', '.join(missing)}, which no source defines"
    raise _Bad(problem)


def _padded(document: Any) -> Any:
    """Grid and block of fewer than three sizes, filled up with 1: what everybody means by them."""
    if not isinstance(document, dict) or not isinstance(document.get("kernels"), list):
        return document
    kernels = []
    for kernel in document["kernels"]:
        if isinstance(kernel, dict):
            kernel = dict(kernel)
            for what in ("grid", "block"):
                sizes = kernel.get(what)
                if isinstance(sizes, list) and 1 <= len(sizes) < 3:
                    kernel[what] = [*sizes, *["1"] * (3 - len(sizes))]
        kernels.append(kernel)
    return {**document, "kernels": kernels}


def _derived(source: str, target: Target, language: Language, blocks: list[_Block]) -> LaunchPlan:
    """The plan that a source without one describes itself, where it does."""
    derive = derive_cuda_plan if language == "cuda" else derive_plan
    try:
        return derive(source, target)
    except ContractBreach as breach:
        if blocks and not blocks[-1].closed:
            raise _Bad("the answer ends inside its last block: it was cut off") from None
        raise _Bad(f"there is no launch plan, and none can be read off: {breach}") from None
