"""The real rooms behind a conductor: judge, proposer, guard and device facts."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from kforge_nb.run.conductor import Tools
from kforge_nb.run.devices import check_tools, facts_for
from kforge_nb.run.writers import make_writer

if TYPE_CHECKING:
    from kforge_nb.judge.judge import Judge
    from kforge_nb.options import OptimizeOptions
    from kforge_nb.run.record import Record

__all__ = ["make_tools"]


def make_tools(options: OptimizeOptions, device: str) -> Tools:
    """What the options ask for, on this machine, for targets on ``device``.

    Raises MissingTool where a compiler, the device or its driver is not here, and BadInput where
    the proposer lacks something, so that a run does not begin in vain.
    """
    from kforge_nb.run.guarding import guard_stage

    check_tools(device)
    writer = make_writer(options)
    if not options.dry_run:
        writer.check()
    return Tools(
        _judge(options),
        writer.proposer,
        guard_stage,
        facts_for(device),
        writer.parallel,
        writer.opened,
    )


def _judge(options: OptimizeOptions) -> Any:
    def opened(record: Record) -> Judge:
        import torch

        from kforge_nb.judge.judge import Judge
        from kforge_nb.settings import Settings

        settings = Settings(
            granularity=options.granularity,
            seed=options.seed,
            threads=torch.get_num_threads(),
            allow_host_code=options.allow_host_code,
        )
        folder = record.folder / "judge"
        shutil.rmtree(folder, ignore_errors=True)  # what a killed session left behind
        return Judge(settings, folder)

    return opened
