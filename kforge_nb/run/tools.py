"""The real rooms behind a conductor: judge, proposer, guard and device facts."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from kforge_nb.run.conductor import Tools

if TYPE_CHECKING:
    from kforge_nb.judge.judge import Judge
    from kforge_nb.options import OptimizeOptions
    from kforge_nb.run.record import Record

__all__ = ["make_tools"]


def make_tools(options: OptimizeOptions) -> Tools:
    """What the options ask for, on this machine.

    Raises MissingTool where there is no C++ compiler, so that a run does not begin in vain.
    """
    from kforge_nb.compilers.cpp import find_compiler
    from kforge_nb.proposers.recipes import RecipeProposer
    from kforge_nb.run.guarding import guard_stage

    find_compiler()
    return Tools(_judge(options), RecipeProposer(), guard_stage, _device())


def _judge(options: OptimizeOptions) -> Any:
    def opened(record: Record) -> Judge:
        import torch

        from kforge_nb.judge.judge import Judge
        from kforge_nb.settings import Settings

        settings = Settings(
            granularity=options.granularity,
            seed=options.seed,
            threads=torch.get_num_threads(),
            patience=options.patience,
        )
        folder = record.folder / "judge"
        shutil.rmtree(folder, ignore_errors=True)  # what a killed session left behind
        return Judge(settings, folder)

    return opened


def _device() -> dict[str, Any]:
    """Plain facts with the calibrated bandwidth, as proposers and readers need them."""
    from kforge_nb.profile.calibration import calibrate
    from kforge_nb.profile.device import facts

    return {**facts(), "bandwidth_gbs": calibrate().bandwidth_gbs}
