"""Proposes what a recorded run tried, node by node: for teaching, and for tests without luck.

A recording is a run document or a transcript of answers. What it holds is offered in its recorded
order: roots as drafts, children under the same parent, answers without a kernel as the failures
that they were. What came out when it was judged then is not carried over: it is judged anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.plan import plan_from_document
from kforge_nb.errors import BadInput, ContractBreach, DocumentError
from kforge_nb.proposers.failed import failed_candidate, is_failed
from kforge_nb.proposers.protocol import Action, Failure, Refusal, Request
from kforge_nb.proposers.stream import paired

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Language
    from kforge_nb.proposers.transcript import Entry, Transcript
    from kforge_nb.targets.target import Target

__all__ = ["ReplayProposer", "Step", "read_recording"]


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded proposal: its place in the recording, and the digest of its parent."""

    place: int
    action: Action
    parent: str | None
    proposal: Candidate | Failure

    @property
    def digest(self) -> str:
        """Digest of the node that comes of it."""
        return _as_candidate(self.proposal).digest


class ReplayProposer:
    """Proposes the candidates of a run document, or the answers of a transcript.

    Args:
        recording: a run document as plain data, not redacted, or a transcript.

    Raises:
        ContractBreach: a recorded plan breaks the contract.
    """

    name = "replay"

    def __init__(self, recording: Mapping[str, Any] | Transcript) -> None:
        self._steps: dict[str, list[Step]] = {}
        self._entries: dict[str, list[tuple[int, Entry]]] = {}
        if isinstance(recording, Mapping):
            self._steps = _steps_of_document(recording)
            return
        for place, entry in enumerate(recording.entries):
            mine = self._entries.setdefault(entry.fingerprint, [])
            if entry.repaired and mine:
                mine.pop()  # the broken answer that this one mends
            mine.append((place, entry))

    def supports(self, target: Target) -> str | None:
        """None if the recording has something for the target, else why not."""
        if self._steps.get(target.fingerprint) or self._entries.get(target.fingerprint):
            return None
        return "the recorded run has no candidate with source for this target"

    def steps(self, target: Target) -> list[Step]:
        """What was proposed for a target, in the recorded order."""
        entries = self._entries.pop(target.fingerprint, [])
        if entries:
            self._steps[target.fingerprint] = [
                _step_of_entry(place, entry, target) for place, entry in entries
            ]
        return self._steps.get(target.fingerprint, [])

    def propose(self, request: Request) -> Candidate | Refusal | Failure:
        """The next recorded child of the parent (or root) that is not among the siblings."""
        parent = request.parent.candidate.digest if request.parent is not None else None
        tried = {*request.tried, *(attempt.candidate.digest for attempt in request.siblings)}
        for step in self.steps(request.target):
            if step.parent == parent and step.digest not in tried:
                return step.proposal
        return Refusal("the recorded run tried nothing more here")


def read_recording(path: str | Path) -> Mapping[str, Any] | Transcript:
    """A run document or a transcript, as :class:`ReplayProposer` takes it.

    Raises:
        BadInput: there is no such file.
        DocumentError: it is neither, or damaged, or larger than any of them may be.
    """
    from kforge_nb.proposers.transcript import MAX_BYTES, SCHEMA, Transcript
    from kforge_nb.store import document

    file = Path(path).expanduser()
    if not file.is_file():
        raise BadInput(
            f"there is no recording {file.absolute()}; run.save('name.kforge.json') writes one"
        )
    try:
        size = file.stat().st_size
        if size > document.LARGEST_BYTES:
            raise DocumentError(
                f"{file.name} has {size} bytes; recordings above {document.LARGEST_BYTES} bytes "
                "are not read"
            )
        head = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as problem:
        raise DocumentError(f"{file.name} is no recording: {problem}") from None
    if isinstance(head, dict) and head.get("schema") == SCHEMA:
        if size > MAX_BYTES:
            raise DocumentError(f"{file.name} is larger than {MAX_BYTES >> 20} MiB")
        return Transcript.from_document(head)
    return document.load(file)


# -- run documents ---------------------------------------------------------------------------


def _steps_of_document(document: Mapping[str, Any]) -> dict[str, list[Step]]:
    fingerprints = {t["index"]: t["fingerprint"] for t in document.get("targets", [])}
    details = document.get("details", {})
    digests: dict[str, str] = {}
    steps: dict[str, list[Step]] = {}
    nodes = list(document.get("nodes", []))
    places = {n["id"]: place for place, n in enumerate(sorted(nodes, key=_when))}
    for node in nodes:
        candidate = _candidate(node, details.get(node["id"], {}))
        if candidate is None:
            continue
        digests[node["id"]] = candidate.digest
        parent = digests.get(node["parent"]) if node["parent"] is not None else None
        proposal = _failure(node, candidate) if is_failed(candidate) else candidate
        step = Step(places[node["id"]], node.get("action", "draft"), parent, proposal)
        steps.setdefault(fingerprints.get(node["target"], ""), []).append(step)
    return {mine: sorted(found, key=lambda step: step.place) for mine, found in steps.items()}


def _when(node: Mapping[str, Any]) -> str:
    return str(node.get("created", ""))


def _candidate(node: Mapping[str, Any], detail: Mapping[str, Any]) -> Candidate | None:
    """The candidate of a recorded node; None where its source was left out."""
    if not detail.get("source") or not detail.get("plan"):
        return None
    try:
        plan = plan_from_document(detail["plan"])
    except ContractBreach as problem:
        raise ContractBreach(f"node {node['id']} of the recorded run: {problem}") from problem
    return Candidate(
        language=node["language"],
        source=paired(detail["source"]),
        plan=plan,
        title=paired(node.get("title") or ""),
        origin={"proposer": "replay", "node": node["id"], "of": node.get("origin")},
    )


def _failure(node: Mapping[str, Any], candidate: Candidate) -> Failure:
    reason = paired(node.get("reason") or "the recorded answer held no kernel")
    title, origin = candidate.title, candidate.origin
    return Failure(reason, candidate.source, candidate.language, title, origin)


def _as_candidate(proposal: Candidate | Failure) -> Candidate:
    return failed_candidate(proposal) if isinstance(proposal, Failure) else proposal


# -- transcripts -----------------------------------------------------------------------------


def _step_of_entry(place: int, entry: Entry, target: Target) -> Step:
    """The answer read again, by the rules of today."""
    from kforge_nb.proposers.answers import Answer, parse

    found = parse(entry.answer, target, entry.language)
    origin = {"proposer": "replay", "entry": place, "prompt": entry.version}
    proposal: Candidate | Failure
    if isinstance(found, Answer):
        title = found.candidate.title or paired(entry.strategy or entry.action)
        proposal = replace(found.candidate, title=title, origin=origin)
    else:
        language: Language = "cuda" if entry.language == "cuda" else "cpp"
        proposal = Failure(found.reason, paired(entry.answer), language, origin=origin)
    actions: dict[str, Action] = {a: a for a in get_args(Action)}
    return Step(place, actions.get(entry.action, "draft"), entry.parent, proposal)
