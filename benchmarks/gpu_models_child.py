"""One stage of one model in a process of its own: a model that fails or hangs costs only itself."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from benchmarks.gpu_models_cases import CASES, size_for
from benchmarks.gpu_models_fidelity import fidelity_stage
from benchmarks.gpu_models_ops import ops_stage
from benchmarks.gpu_models_profile import profile_stage
from benchmarks.gpu_models_search import Budget, search_stage
from benchmarks.gpu_models_state import Places
from benchmarks.gpu_models_time import ahead_stage, time_stage

__all__ = ["main"]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", choices=list(CASES))
    parser.add_argument("stage")
    parser.add_argument("--device", required=True)
    parser.add_argument("--size", default="")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--limit", type=float, required=True, help="seconds for this stage")
    parser.add_argument(
        "--ends", type=float, default=math.inf, help="end of the whole call, monotonic clock"
    )
    parser.add_argument("--search-time", type=float, default=240.0)
    parser.add_argument("--guard-time", type=float, default=240.0)
    parser.add_argument("--rest", default="auto")
    parser.add_argument("--baseline", default="compile")
    parser.add_argument("--candidates", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--need-ahead", action="store_true")
    parser.add_argument("--sides", nargs="*", default=[])
    return parser.parse_args()


def main() -> int:
    """Run the stage; its results are in the state folder."""
    options = _options()
    name, device = options.model, options.device
    size, places = size_for(device, options.size), Places(options.state, options.work)
    stage, _, side = options.stage.partition(".")
    if stage == "profile":
        profile_stage(name, size, device, places)
    elif stage == "search":
        budget = Budget(
            options.search_time,
            options.guard_time,
            options.rest,
            options.baseline,
            options.candidates,
        )
        search_stage(name, size, device, places, budget, options.limit)
    elif stage == "ahead":
        ahead_stage(name, side, size, device, places)
    elif stage == "time":
        time_stage(
            name,
            size,
            device,
            places,
            limit=options.limit,
            seconds=options.seconds,
            only=options.sides,
            need_ahead=options.need_ahead,
            ends=options.ends,
        )
    elif stage == "ops":
        ops_stage(name, size, device, places, options.limit)
    else:
        fidelity_stage(name, size, device, places, options.limit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
