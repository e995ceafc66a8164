"""One stage of one model in a process of its own: a model that fails or hangs costs only itself."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.gpu_models_cases import CASES, size_for
from benchmarks.gpu_models_profile import profile_stage

__all__ = ["main"]


def main() -> int:
    """Run the stage; its results are in the state folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", choices=list(CASES))
    parser.add_argument("stage")
    parser.add_argument("--device", required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--limit", type=float, required=True, help="seconds for this stage")
    options = parser.parse_args()
    size = size_for(options.device)
    if options.stage == "profile":
        profile_stage(options.model, size, options.device, options.state)
    return 0


if __name__ == "__main__":
    sys.exit(main())
