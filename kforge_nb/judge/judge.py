"""The judge of one run: the runner's binary, the baseline worker, and a bench for each target."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import TYPE_CHECKING

from kforge_nb.errors import KForgeError
from kforge_nb.judge.baseline import BaselineWorker
from kforge_nb.judge.bench import Bench
from kforge_nb.judge.binary import library_folder, runner_binary
from kforge_nb.profile.calibration import calibrate
from kforge_nb.settings import Settings, cache_dir

if TYPE_CHECKING:
    from kforge_nb.targets.target import Target

__all__ = ["Judge"]


class Judge:
    """Judges candidates; a context manager. After ``close`` no process, file or memory is left.

    Args:
        settings: ``threads`` is how many threads candidates and baselines use (0: one a core).
        folder: for temporary files; made if missing.

    Raises:
        MissingTool: there is no C++ compiler.
    """

    call_seconds = 3.0

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.binary = runner_binary()
        self.library_folder = library_folder()
        self.threads = settings.threads or len(os.sched_getaffinity(0))
        self.builds = cache_dir() / "cpp"
        self.calibration = calibrate("cpu")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = Path(mkdtemp(prefix="judge-", dir=folder))
        self.benches: set[Bench] = set()
        try:
            self.worker = BaselineWorker(self.folder, self.threads)
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def open(self, target: Target) -> Bench:
        """Put a target on a bench: expected values, weak-task check, baseline worker warm.

        Raises:
            BadInput: the target has no captured inputs, or is not on the CPU.
            MissingTool: the baseline worker died.
        """
        bench = Bench(self, target)
        self.benches.add(bench)
        return bench

    def forget(self, key: str) -> None:
        """Have the worker drop a target, if it still runs."""
        if self.worker.child.alive():
            with suppress(KForgeError):
                self.worker.forget(key)

    def close(self) -> None:
        """End every process and give back everything. Safe to call twice."""
        self.worker.close()
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
