"""Compiles ahead, side by side, what the GPU table will run: cubins of recipes, Inductor's kernels.

A compiler keeps one core busy, a table of operators needs thousands of kernels, and a GPU host has
many cores. So children compile everything before anything is timed; the process that measures then
finds cubins and Triton binaries in the caches. Inductor's choice between its variants is never
taken from a child, which measured it on a busy device: it is made again where it is quiet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["caches", "compile_ahead", "quiet_choice"]

MOST_CHILDREN = 14


def caches(folder: Path) -> dict[str, str]:
    """Environment of every process that compiles: where Inductor and Triton keep what they made."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


def quiet_choice() -> None:
    """Let Inductor choose between its variants by itself, in this process, each time."""
    from torch._inductor import config

    config.autotune_local_cache = False
    config.fx_graph_cache = False


def compile_ahead(
    names: Sequence[str], request: Mapping[str, Any], folder: Path, limit: float
) -> float:
    """Compile for these cases in child processes; seconds that it took, at most ``limit``.

    What is not done by then is stopped, and compiled when it is met.
    """
    start = time.monotonic()
    claims = folder / "claims"
    claims.mkdir(exist_ok=True)
    path = folder / "ahead.json"
    path.write_text(json.dumps({**request, "cases": list(names), "claims": str(claims)}))
    count = max(1, min(MOST_CHILDREN, (os.cpu_count() or 2) - 1, len(names)))
    environment = {**os.environ, **caches(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.gpu_ops_ahead", str(path)]
    with (folder / "ahead.log").open("w") as log:
        children = [
            subprocess.Popen(command, stdout=log, stderr=log, env=environment) for _ in range(count)
        ]
        for child in children:
            try:
                child.wait(max(0.1, limit - (time.monotonic() - start)))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
    return time.monotonic() - start


def _claimed(claims: Path, number: int) -> bool:
    """Whether this process is the first to take case ``number``."""
    try:
        (claims / str(number)).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def main() -> int:
    """``python -m benchmarks.gpu_ops_ahead REQUEST.json``: takes cases until none is left."""
    import torch

    from benchmarks.gpu_op_added import ALL
    from benchmarks.gpu_ops_worker import Options, compiled, prepare

    request = json.loads(Path(sys.argv[1]).read_text())
    options = Options(Path(request["cache"]), request["compile"], request["tries"], 0)
    known = {case.name: case for case in ALL}
    quiet_choice()
    with torch.inference_mode():
        for number, name in enumerate(request["cases"]):
            if not _claimed(Path(request["claims"]), number):
                continue
            with suppress(Exception):  # it is met again, and named, where it is measured
                inputs = known[name].build("cuda")
                if options.compile:
                    compiled(known[name], inputs)
                prepare(known[name], options)
                del inputs
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
