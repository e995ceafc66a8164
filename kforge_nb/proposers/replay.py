"""Proposes what a recorded run tried, node by node: for teaching, and for tests without luck.

The candidates of a run document are offered in their recorded order: roots as drafts, children
under the same parent. What came out when they were judged then is not carried over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.plan import plan_from_document
from kforge_nb.errors import ContractBreach
from kforge_nb.proposers.protocol import Refusal, Request

if TYPE_CHECKING:
    from kforge_nb.targets.target import Target

__all__ = ["ReplayProposer"]


class ReplayProposer:
    """Proposes the candidates of a run document.

    Args:
        document: a run document (version 1) as plain data, not redacted.

    Raises:
        ContractBreach: a recorded plan breaks the contract.
    """

    name = "replay"

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._children: dict[tuple[str, str | None], list[Candidate]] = {}
        fingerprints = {t["index"]: t["fingerprint"] for t in document.get("targets", [])}
        digests: dict[str, str] = {}
        details = document.get("details", {})
        for node in document.get("nodes", []):
            candidate = _candidate(node, details.get(node["id"], {}))
            if candidate is None:
                continue
            digests[node["id"]] = candidate.digest
            parent = digests.get(node["parent"]) if node["parent"] is not None else None
            key = (fingerprints.get(node["target"], ""), parent)
            self._children.setdefault(key, []).append(candidate)

    def supports(self, target: Target) -> str | None:
        """None if the recorded run has candidates for the target, else why not."""
        if any(fingerprint == target.fingerprint for fingerprint, _ in self._children):
            return None
        return "the recorded run has no candidate with source for this target"

    def propose(self, request: Request) -> Candidate | Refusal:
        """The next recorded child of the parent (or root) that is not among the siblings."""
        parent = request.parent.candidate.digest if request.parent is not None else None
        tried = {*request.tried, *(attempt.candidate.digest for attempt in request.siblings)}
        for candidate in self._children.get((request.target.fingerprint, parent), ()):
            if candidate.digest not in tried:
                return candidate
        return Refusal("the recorded run tried nothing more here")


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
        source=detail["source"],
        plan=plan,
        title=node.get("title", ""),
        origin={"proposer": "replay", "node": node["id"], "of": node.get("origin")},
    )
