"""The search tree of one target: what was tried, from what, and what came of it.

A tree is plain facts. It knows which node is whose child, the evaluation of each, and which
children are still being judged (*pending*); it draws no conclusions (that is
:mod:`kforge_nb.search.mcts`) and holds no source code (that is the store). Node ids are
``"TARGET.NUMBER"``, so they are unique in a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from kforge_nb.errors import DocumentError
from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.proposers.protocol import Action

__all__ = ["REPAIRABLE", "SCHEMA", "Node", "Tree", "has_host_code"]

SCHEMA = "kforge.tree/1"
ACTIONS: frozenset[str] = frozenset(get_args(Action))

REPAIRABLE = frozenset({Verdict.WRONG, Verdict.COMPILE_FAILED, Verdict.CRASHED, Verdict.TIMED_OUT})
"""Verdicts of honest failures, worth another try. All other failures end their branch."""


@dataclass(slots=True)
class Node:
    """One candidate in the tree; the root is a node without a candidate.

    ``visits`` counts finished evaluations of this node and everything below it, ``pending`` those
    still under way. ``value`` is the best log speed-up over eager found here or below, None while
    nothing correct is known. ``closed`` means that the proposer has nothing more to offer here,
    ``refusals`` counts its refusals in a row.
    """

    id: str
    parent: str | None
    action: Action
    digest: str = ""
    evaluation: Evaluation | None = None
    children: list[str] = field(default_factory=list)
    visits: int = 0
    pending: int = 0
    own_value: float | None = None
    value: float | None = None
    refusals: int = 0
    closed: bool = False

    @property
    def waiting(self) -> bool:
        """Whether the candidate of this node is still being proposed or judged."""
        return self.evaluation is None

    @property
    def repairable(self) -> bool:
        """Whether this is an honest failure."""
        return self.evaluation is not None and self.evaluation.verdict in REPAIRABLE


class Tree:
    """The tree of one target. Not thread-safe: one thread (the run's) owns it."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.root = Node("", None, "draft")
        self._nodes: dict[str, Node] = {}
        self._digests: dict[str, str] = {}
        self._next = 0

    # -- reading ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(not n.waiting for n in self._nodes.values())

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._nodes

    def __getitem__(self, node_id: str) -> Node:
        return self._nodes[node_id]

    def children(self, node: Node) -> list[Node]:
        """Children in the order they were begun, pending ones too."""
        return [self._nodes[c] for c in node.children]

    def parent(self, node: Node) -> Node:
        """The parent; the root for a draft (and for the root itself)."""
        return self.root if node.parent is None else self._nodes[node.parent]

    def path(self, node: Node) -> list[Node]:
        """The node, its parent, and so on up to and including the root."""
        found = [node]
        while found[-1] is not self.root:
            found.append(self.parent(found[-1]))
        return found

    def find(self, digest: str) -> Node | None:
        """The node that already holds this candidate, if any."""
        node_id = self._digests.get(digest)
        return None if node_id is None else self._nodes[node_id]

    @property
    def digests(self) -> frozenset[str]:
        """All candidates judged so far, for proposers that must not write one twice."""
        return frozenset(self._digests)

    def best(self) -> Node | None:
        """The fastest accepted node, else the fastest correct one; the earlier one on a tie.

        Candidates with host code are left out: they are judged and shown, and never installed.
        """
        timed = [n for n in self if n.own_value is not None and not has_host_code(n)]
        accepted = [n for n in timed if n.evaluation and n.evaluation.verdict is Verdict.ACCEPTED]
        return max(accepted or timed, key=lambda n: n.own_value or 0.0, default=None)

    def log_speedups(self) -> list[float]:
        """Log speed-ups of all correct nodes, in the order of the nodes."""
        return [v for v in (n.own_value for n in self) if v is not None]

    # -- growing ---------------------------------------------------------------------------

    def expect(self, parent: str | None, action: Action) -> Node:
        """Begin a child (virtual loss): it counts against its branch until it is recorded.

        Args:
            parent: Id of the node to grow from; None for a draft or restart.
            action: What the proposer is asked to do.

        Returns:
            The pending node, whose id is passed to :meth:`record` or :meth:`refuse`.

        Raises:
            KeyError: No such parent.
        """
        above = self.root if parent is None else self._nodes[parent]
        node = Node(f"{self.target}.{self._next}", parent, action)
        self._next += 1
        self._nodes[node.id] = node
        above.children.append(node.id)
        for n in self.path(node):
            n.pending += 1
        return node

    def record(self, node_id: str, digest: str, evaluation: Evaluation) -> Node:
        """Finish a pending node with what the judge found.

        Raises:
            KeyError: No such node.
            ValueError: The node was recorded before.
        """
        node = self._nodes[node_id]
        if not node.waiting:
            raise ValueError(f"node {node_id} already holds an evaluation")
        node.digest, node.evaluation, node.own_value = digest, evaluation, _value_of(evaluation)
        self._digests.setdefault(digest, node_id)
        self.parent(node).refusals = 0
        value = node.own_value
        for n in self.path(node):
            n.pending -= 1
            n.visits += 1
            if value is not None and (n.value is None or value > n.value):
                n.value = value
        return node

    def replace_evaluation(self, node_id: str, evaluation: Evaluation) -> None:
        """Put a later, better founded evaluation (the winner timed again) in place of the first.

        Values on the way up are worked out anew; visits stay.
        """
        node = self._nodes[node_id]
        if node.waiting:
            raise ValueError(f"node {node_id} has no evaluation to replace")
        node.evaluation, node.own_value = evaluation, _value_of(evaluation)
        for n in self.path(node):
            below = [c.value for c in self.children(n) if c.value is not None]
            own = n.own_value
            n.value = max(below if own is None else [*below, own], default=None)

    def refuse(self, node_id: str, *, exhausted: bool) -> None:
        """Take a pending node back: the proposer had nothing (new) to offer.

        Args:
            node_id: The pending node.
            exhausted: The parent will not be grown again. Otherwise it only counts a refusal.
        """
        node = self._nodes[node_id]
        if not node.waiting:
            raise ValueError(f"node {node_id} already holds an evaluation")
        above = self.parent(node)
        for n in self.path(node):
            n.pending -= 1
        above.children.remove(node_id)
        above.refusals += 1
        above.closed = above.closed or exhausted
        del self._nodes[node_id]

    # -- JSON ------------------------------------------------------------------------------

    def to_document(self) -> dict[str, Any]:
        """Plain data; pending nodes are left out, as nobody will ever record them."""
        done = [n for n in self if not n.waiting]
        return {
            "schema": SCHEMA,
            "target": self.target,
            "next": self._next,
            "root": {"refusals": self.root.refusals, "closed": self.root.closed},
            "nodes": [
                {
                    "id": n.id,
                    "parent": n.parent,
                    "action": n.action,
                    "digest": n.digest,
                    "evaluation": n.evaluation.to_document() if n.evaluation else None,
                    "refusals": n.refusals,
                    "closed": n.closed,
                }
                for n in done
            ],
        }

    @classmethod
    def from_document(cls, data: Mapping[str, Any]) -> Tree:
        """Inverse of :meth:`to_document`.

        Raises:
            DocumentError: Not a tree, or of another schema.
        """
        if data.get("schema") != SCHEMA:
            raise DocumentError(
                f"a search tree must have schema {SCHEMA!r}, this one has {data.get('schema')!r}"
            )
        try:
            tree = cls.restore(int(data["target"]), data["nodes"])
            for row in (data["root"], *data["nodes"]):
                node = tree._nodes[row["id"]] if "id" in row else tree.root
                node.refusals, node.closed = int(row["refusals"]), bool(row["closed"])
            tree._next = max(tree._next, int(data["next"]))
        except (KeyError, TypeError, ValueError) as e:
            raise DocumentError(f"the search tree is malformed: {e!r}") from e
        return tree

    @classmethod
    def restore(cls, target: int, rows: Iterable[Mapping[str, Any]]) -> Tree:
        """Grow a tree again from records of finished nodes, parents before children.

        Args:
            target: Index of the target.
            rows: Mappings with ``id``, ``parent``, ``action``, ``digest`` and ``evaluation``
                (an evaluation's document), as the store keeps them.

        Raises:
            DocumentError: A row is malformed, repeated, or stands before its parent.
        """
        tree = cls(target)
        for row in rows:
            try:
                tree._restore_one(row)
            except (KeyError, TypeError, ValueError, AttributeError) as e:
                raise DocumentError(f"node {row.get('id')!r} of the tree is malformed: {e}") from e
        return tree

    def _restore_one(self, row: Mapping[str, Any]) -> None:
        node_id, action = row["id"], row["action"]
        prefix, _, number = str(node_id).rpartition(".")
        if prefix != str(self.target) or node_id in self._nodes:
            raise ValueError(f"id {node_id!r} is repeated or not of target {self.target}")
        if action not in ACTIONS:
            raise ValueError(f"unknown action {action!r}")
        evaluation = Evaluation.from_document(row["evaluation"])
        after = max(self._next, int(number) + 1)
        self._next = int(number)
        node = self.expect(row["parent"], action)
        if node.id != node_id:
            raise ValueError(f"id {node_id!r} is not in its normal form {node.id!r}")
        self.record(node.id, str(row["digest"]), evaluation)
        self._next = after


def _value_of(found: Evaluation) -> float | None:
    """Log speed-up, None unless it was timed and the candidate is correct."""
    if not found.correct or not found.speedup or found.speedup <= 0:
        return None
    value = math.log(found.speedup)
    return value if math.isfinite(value) else None


def has_host_code(node: Node) -> bool:
    """Whether a node is a torch extension, as the judge marked it."""
    return bool(node.evaluation and node.evaluation.resources.get("host_code"))
