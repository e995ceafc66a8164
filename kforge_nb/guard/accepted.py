"""An accepted kernel: what the judge let through, in the form that the guard installs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kforge_nb.guard import launch

if TYPE_CHECKING:
    from pathlib import Path

    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.channels_last import Layout
    from kforge_nb.targets.target import Granularity, Target, TensorSpec

__all__ = ["Accepted"]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A judged candidate with its target.

    ``graph_document`` is the target's graph as plain JSON (see ``targets.document``); ``inputs``
    and ``outputs`` are the variant; ``library`` is the candidate, compiled on this machine: a
    shared library, or the cubin of a CUDA candidate, which is for the architecture ``arch`` (empty
    if not known). ``evidence`` is the evaluation as plain JSON. ``granularity`` says how graphs
    must be cut to meet the target again, ``name`` is for people. ``layout`` is how the graphs lie
    that the target is cut from: ``keep``, or ``channels_last``, as ``guard.laid_out`` lays them.
    """

    target_fingerprint: str
    graph_document: dict[str, Any]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    candidate: Candidate
    library: Path
    evidence: dict[str, Any] = field(default_factory=dict)
    granularity: Granularity = "region"
    name: str = ""
    arch: str = ""
    layout: Layout = "keep"

    @classmethod
    def of_target(
        cls,
        target: Target,
        candidate: Candidate,
        library: Path,
        evidence: dict[str, Any] | None = None,
        layout: Layout = "keep",
    ) -> Accepted:
        """The accepted kernel of a target of this process."""
        from kforge_nb.targets.document import graph_to_document

        return cls(
            target.fingerprint,
            graph_to_document(target.graph),
            target.inputs,
            target.outputs,
            candidate,
            library,
            dict(evidence or {}),
            target.granularity,
            target.name,
            layout=layout,
        )

    @property
    def digest(self) -> str:
        """Content address of the candidate."""
        return self.candidate.digest

    def register(self, shadow: int = launch.SHADOW_CALLS) -> int:
        """Its handle in the launch op; the same kernel keeps its handle.

        Raises:
            ContractBreach: the plan does not fit, the graph document is not allowed, or the library
                lacks the entry.
            MissingTool: there is no C++ compiler, or no CUDA driver.
        """
        from kforge_nb.targets.document import graph_from_document

        return launch.register(
            self.candidate,
            self.library,
            graph_from_document(self.graph_document),
            self.inputs,
            self.outputs,
            fingerprint=self.target_fingerprint,
            name=self.name or self.candidate.title,
            shadow=shadow,
        )
