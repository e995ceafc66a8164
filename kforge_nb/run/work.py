"""One target as the search sees it: its tree, its candidates, and where it stands."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kforge_nb.judge.evaluation import Verdict
from kforge_nb.proposers.protocol import Attempt

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.run.record import Record
    from kforge_nb.search.tree import Tree
    from kforge_nb.targets.target import Target

__all__ = ["Work"]

OPEN = frozenset({"waiting", "searching", "stopped"})


@dataclass(slots=True)
class Work:
    """A target that a run works on. ``state`` is that of the run document.

    ``candidates`` holds those judged in this process; older ones are read back from the store.
    ``headroom`` is None where the roofline is not known or does not bind; ``rough`` says that it
    was calibrated on a busy machine, so that there may be more. ``confirmed`` is the node whose
    speed-up was confirmed on fresh samples; ``closing`` says that the target only waits for
    candidates under way. ``paused`` and ``ending`` (why the user ends it) are set from any thread,
    under ``lock``, which a change of state takes too.
    """

    index: int
    target: Target
    tree: Tree
    record: Record
    share: float = 0.0
    headroom: float | None = None
    rough: bool = False
    mean_us: float | None = None
    roofline_us: float | None = None
    state: str = "waiting"
    reason: str = ""
    confirmed: str | None = None
    closing: bool = False
    paused: bool = False
    ending: str = ""
    asked: int = 0
    candidates: dict[str, Candidate] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def open(self) -> bool:
        """Whether more candidates may be tried."""
        return self.state in OPEN

    def set(self, state: str, reason: str = "", **fields: Any) -> None:
        """A state transition, stored first; with the end of a target, wishes for it end too."""
        with self.lock:
            wishes = {} if state in OPEN else {"paused": False, "stopping": False}
            self.record.set_target(self.index, state=state, state_reason=reason, **wishes, **fields)
            self.state, self.reason = state, reason
            self.paused = self.paused and state in OPEN

    def accepted(self, node_id: str) -> bool:
        """Whether the judge's last word on a node is ``accepted``."""
        found = self.tree[node_id].evaluation
        return found is not None and found.verdict is Verdict.ACCEPTED

    def speedup(self, node_id: str) -> float:
        """Speed-up of a node over eager; 0 where it was not timed."""
        found = self.tree[node_id].evaluation
        return (found.speedup or 0.0) if found is not None else 0.0

    def low(self, node_id: str) -> float:
        """Lower bound of a node's speed-up over eager; 0 where it was not timed."""
        found = self.tree[node_id].evaluation
        lows = (t.low for t in found.timings if t.against == "eager") if found else ()
        return next(iter(lows), 0.0)

    def timed_against(self, node_id: str, baseline: str) -> bool:
        """Whether a node has a comparison with a baseline."""
        found = self.tree[node_id].evaluation
        return found is not None and any(t.against == baseline for t in found.timings)

    def candidate(self, node_id: str) -> Candidate:
        """The candidate of a node."""
        if node_id not in self.candidates:
            self.candidates[node_id] = self.record.candidate(node_id)
        return self.candidates[node_id]

    def attempt(self, node_id: str) -> Attempt:
        """A judged node as proposers see it."""
        evaluation = self.tree[node_id].evaluation
        if evaluation is None:
            raise KeyError(f"node {node_id} has not been judged")
        return Attempt(self.candidate(node_id), evaluation)

    def children(self, parent: str | None) -> tuple[Attempt, ...]:
        """Judged children of a node; the drafts where there is no parent."""
        above = self.tree.root if parent is None else self.tree[parent]
        judged = [child for child in self.tree.children(above) if not child.waiting]
        return tuple(self.attempt(child.id) for child in judged)
