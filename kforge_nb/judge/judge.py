"""The judge of one run: a place for each device that targets live on, a bench for each target."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import TYPE_CHECKING

from kforge_nb.compilers.toolchain import find_compiler
from kforge_nb.errors import BadInput
from kforge_nb.judge.bench import Bench
from kforge_nb.judge.place import Place
from kforge_nb.judge.waste import without_waste
from kforge_nb.profile.device import kind_of
from kforge_nb.settings import Settings

if TYPE_CHECKING:
    from kforge_nb.targets.target import Target

__all__ = ["Judge"]


class Judge:
    """Judges candidates; a context manager. After ``close`` no process, file or memory is left.

    What a device needs (a baseline worker, a runner, a calibration) is made when the first target
    that lives there is opened.

    Args:
        settings: ``threads`` is how many threads candidates and baselines use (0: one a core);
            ``allow_host_code`` whether torch extensions are judged or refused.
        folder: for temporary files; made if missing.

    Raises:
        MissingTool: there is no C++ compiler.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        find_compiler()
        self.threads = settings.threads or len(os.sched_getaffinity(0))
        self.allow_host_code = settings.allow_host_code
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = Path(mkdtemp(prefix="judge-", dir=folder))
        self.benches: set[Bench] = set()
        self._places: dict[str, Place] = {}
        self._making = threading.Lock()

    def place(self, device: str) -> Place:
        """The place for a torch device string; raises BadInput for a kind nobody knows here."""
        with self._making:
            if device not in self._places:
                self._places[device] = self._make_place(device)
            return self._places[device]

    def _make_place(self, device: str) -> Place:
        kind = kind_of(device)
        if kind == "cpu":
            from kforge_nb.judge.host import HostPlace

            return HostPlace(self.folder, self.threads)
        if kind == "cuda":
            from kforge_nb.judge.cuda.place import CudaPlace

            return CudaPlace(self.folder, self.threads, device)
        raise BadInput(f"nothing can be judged on {device}; targets live on cpu or cuda devices")

    def open(self, target: Target) -> Bench:
        """Put a target on a bench: expected values, weak-task check, baseline worker warm.

        Raises:
            BadInput: the target has no captured inputs, is spread over several devices, or its
                device has no room for it.
            MissingTool: the baseline worker died, or the device's driver or compiler is missing.
        """
        bench = Bench(self, self.place(target.device), without_waste(target))
        self.benches.add(bench)
        return bench

    def close(self) -> None:
        """End every process and give back everything. Safe to call twice."""
        for place in self._places.values():
            place.close()
        for bench in list(self.benches):
            bench.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Judge:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
