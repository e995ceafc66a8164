"""The process that holds one foreign candidate: an extension's worker that loads a file instead.

Everything that torch's compiler tools need is imported before the rights are given away; the file
is executed after. What the process says of itself (operators called, switches changed) labels an
honest candidate; no verdict that matters rests on it alone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from kforge_nb.judge.extension.ops import ExtensionOp
from kforge_nb.judge.extension.worker import Worker
from kforge_nb.judge.extension.worker import main as serve_with
from kforge_nb.judge.foreign.ops import NOTES, ForeignOp, NeedsBuild, Tampered, pack_notes
from kforge_nb.judge.protocol import Op

__all__ = ["ForeignWorker", "main"]

_CHECKED = (Op.RUN, Op.FETCH, ExtensionOp.PREPARE, ExtensionOp.REPLAY)
"""What is followed by a look at what the candidate changed: all that the judge's clock leaves out.

On the CPU it times BATCH and HOT itself; FETCH comes after them. A replay is timed by the device.
"""


class ForeignWorker(Worker):
    """A worker whose candidate is a file of Python, or a library with a bound ``launch``."""

    def __init__(self, start: dict[str, Any]) -> None:
        super().__init__(start)
        import torch.utils.cpp_extension

        from kforge_nb.judge.foreign import loading, watching

        self._told = start["foreign"]
        self._told["text"] = Path(self._told["source"]).read_text(encoding="utf-8")
        self._loading, self._watching = loading, watching
        self._extensions = loading.Extensions(self._told["libraries"])
        self._extensions.install()
        if self._told["cache"]:
            os.environ["TRITON_CACHE_DIR"] = self._told["cache"]
            from kforge_nb.judge.foreign.triton_probe import probe

            probe(self._memory.device)
        if self._told["report"]:
            with watching.OperatorLog():  # imports what it needs while that may still be done
                torch.zeros(2).add(1)
        self._changed = watching.Watch((ForeignWorker, watching.Watch)).changed
        self._parameters: list[Any] = []
        self._timed_state = False

    def forward(self) -> Any:
        """Execute the file; raises NeedsBuild with what is to be compiled in the notes."""
        device = self._memory.device
        try:
            self._callee, module = self._loading.load_callee(self._told, device, self._extensions)
        except Exception:
            self._say_wanted()
            raise
        self._say_wanted()
        self._check_watch()
        if module is not None:
            named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            wanted = self._told["layout"]["state"]
            if all(name in named for name in wanted):
                self._parameters = [named[name] for name in wanted]
        return self._callee

    def stage_kind(self) -> Any:
        """Without a graph where the judge has seen that none can hold its calls."""
        if self._on_gpu and self._told["streamed"]:
            from kforge_nb.judge.foreign.stage import StreamedStage

            return StreamedStage
        return super().stage_kind()

    def serve(self, op: int, a: int, b: int, payload: bytes) -> tuple[int, int]:
        """One command; weights are set outside of what is timed."""
        if op == ForeignOp.REPORT:
            return self._report(), 0
        if op == Op.RUN:
            self._set_state(self._memory.views(self._memory.inputs))
            self._timed_state = False
        elif op not in (Op.LOAD, Op.BIND) and not self._timed_state:
            self._set_state(self._memory.views(self._memory.timed))
            self._timed_state = True
        answer = super().serve(op, a, b, payload)
        if op in _CHECKED:
            self._check_watch()
        return answer

    def _set_state(self, values: list[Any]) -> None:
        given = self._told["layout"]["given"]
        with self._torch.no_grad():
            for parameter, value in zip(self._parameters, values[given:], strict=False):
                if parameter.shape == value.shape and parameter.dtype == value.dtype:
                    parameter.copy_(value)

    def _say_wanted(self) -> None:
        if self._extensions.wanted:
            self._note({"wanted": self._extensions.wanted})
            raise NeedsBuild("there are extensions to build")

    def _check_watch(self) -> None:
        words = self._changed()
        if words is not None:
            raise Tampered(f"{words}, for all that follows in its process")

    def _report(self) -> int:
        """One call under a log of operators; 1 where the reference's weights can be set."""
        log = self._watching.OperatorLog()
        self._callee.log = log
        try:
            with self._torch.no_grad():
                self._stage.run()
        finally:
            self._callee.log = None
        kernels = [name for _, names in self._extensions.loaded for name in names]
        triton = "triton" in sys.modules and self._told["triton"]
        self._note({"operators": dict(log.counts), "functions": kernels, "triton": triton})
        self._check_watch()
        return int(bool(self._parameters) or not self._told["layout"]["state"])

    def _note(self, notes: dict[str, Any]) -> None:
        data = self._torch.frombuffer(bytearray(pack_notes(notes)), dtype=self._torch.uint8)
        start = self._memory.results.numel() - NOTES
        self._memory.results[start : start + data.numel()].copy_(data)


def main() -> None:
    """Serve until the command pipe closes."""
    serve_with(ForeignWorker)
