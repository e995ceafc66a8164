"""Checks the whole toolchain, one line a check, and says how to mend what is missing.

``kforge_nb.doctor()`` (or ``%kforge doctor``) looks at Python and torch, the C++ compiler and
OpenMP, the launch op and the runner (both are really built), the sandbox layers, the notebook view,
the store folder, and what CUDA (:mod:`kforge_nb.doctor_cuda`) and language models would need. A
key's presence is reported, never its value.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

from kforge_nb._callable import make_callable
from kforge_nb.checks import Check, Doctor, installed
from kforge_nb.errors import KForgeError, install

__all__ = ["Check", "Doctor", "examine"]


def examine(store: str | Path | None = None) -> Doctor:
    """Runs every check; builds the launch op and the runner (seconds, the first time only)."""
    from kforge_nb.doctor_cuda import cuda_probes

    probes: list[tuple[str, Callable[[], Check]]] = [
        ("Python", _python),
        ("torch", _torch),
        ("C++ compiler", _compiler),
        ("OpenMP", _openmp),
        ("CPU", _cpu),
        ("launch op", _launch_op),
        ("runner", _runner),
        ("sandbox", _sandbox),
        ("account", _account),
        ("notebook view", _view),
        ("store", lambda: _store(store)),
        *cuda_probes(),
        ("language model", _language_model),
    ]
    return Doctor(tuple(_guarded(name, probe) for name, probe in probes))


def _guarded(name: str, probe: Callable[[], Check]) -> Check:
    """A probe that fails is a finding, not a crash of the doctor."""
    try:
        return probe()
    except KForgeError as error:
        return Check(name, "missing", str(error))
    except Exception as error:  # noqa: BLE001  the doctor reports whatever is wrong
        return Check(name, "missing", f"{type(error).__name__}: {error}")


def _python() -> Check:
    return Check("Python", "ok", f"{platform.python_version()} ({sys.executable})")


def _torch() -> Check:
    found = installed("torch")
    if found is None:
        return Check("torch", "missing", "not installed", "pip install 'torch>=2.11'")
    import torch

    numbers = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if numbers < (2, 11):
        return Check("torch", "missing", torch.__version__, "pip install -U 'torch>=2.11'")
    return Check("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads")


def _compiler() -> Check:
    from kforge_nb.compilers.cpp import find_compiler

    compiler = find_compiler()
    return Check("C++ compiler", "ok", f"{compiler.version} ({compiler.path})")


def _openmp() -> Check:
    from kforge_nb.compilers import cpp
    from kforge_nb.settings import cache_dir

    source = (
        "#include <cstdint>\n#include <omp.h>\n"
        'extern "C" void probe(int64_t* out0, int32_t nthreads) {\n'
        "  int64_t sum = 0;\n"
        "#pragma omp parallel for num_threads(nthreads) reduction(+ : sum)\n"
        "  for (int i = 0; i < 4; ++i) sum += i;\n  out0[0] = sum;\n}\n"
    )
    built = cpp.build(source, "probe", cache=cache_dir() / "doctor")
    if isinstance(built, cpp.CompileFailed):
        return Check("OpenMP", "missing", built.distilled, "install the compiler's OpenMP library")
    return Check("OpenMP", "ok", f"a parallel loop compiles ({built.seconds:.1f} s)")


def _cpu() -> Check:
    from kforge_nb.profile.device import facts

    known = facts()
    isa = known.get("isa")
    parts = [str(known.get("name", platform.processor())), f"{known.get('threads')} threads"]
    parts.append(isa if isinstance(isa, str) else ", ".join(isa or ()))
    return Check("CPU", "ok", "; ".join(part for part in parts if part))


def _launch_op() -> Check:
    from kforge_nb.guard import launch

    found = launch.implementation()
    words = "torch.ops.kforge.launch builds and loads"
    if found != "c++":
        words += f"; launches go through {found}, which costs the host two to three times as much"
        return Check("launch op", "ok", words, "a C++ compiler makes them faster")
    return Check("launch op", "ok", f"{words}; launches are {found}")


def _runner() -> Check:
    from kforge_nb.judge.binary import runner_binary

    return Check("runner", "ok", f"builds: {runner_binary()}")


def _sandbox() -> Check:
    from kforge_nb.judge.sandbox import detect

    facts = detect()
    layers = [name for name, held in facts.items() if held is True or (name == "landlock" and held)]
    if not layers:
        return Check("sandbox", "optional", f"process limits only; {facts['statement']}")
    return Check("sandbox", "ok", f"{', '.join(layers)}; {facts['statement']}")


def _account() -> Check:
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        found = "this runs as root, and so do candidates"
        return Check("account", "optional", found, "use an ordinary account where you can")
    return Check("account", "ok", "not root, so candidates are not either")


def _view() -> Check:
    missing = [p for p in ("ipywidgets", "anywidget") if installed(p) is None]
    if missing:
        return Check("notebook view", "optional", "text only", f"pip install {' '.join(missing)}")
    from kforge_nb.view.live import why_no_widget

    cure = why_no_widget()
    if cure is not None:
        return Check("notebook view", "optional", "static pages instead of the live view", cure)
    return Check("notebook view", "ok", f"live, with anywidget {installed('anywidget')}")


def _store(store: str | Path | None) -> Check:
    from kforge_nb.run.record import store_folder

    folder = store_folder(store)
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".probe-{os.getpid()}"
    probe.write_text("kforge")
    probe.unlink()
    return Check("store", "ok", f"{folder} can be written")


def _language_model() -> Check:
    client = installed("openai")
    key = "OPENAI_API_KEY is set" if os.environ.get("OPENAI_API_KEY") else "no OPENAI_API_KEY"
    if client is None:
        return Check(
            "language model",
            "optional",
            f"{key}, openai is not installed",
            f"only for openai runs: {install('openai')}",
        )
    return Check("language model", "optional", f"{key}, openai {client}")


make_callable(__name__, "kforge_nb.api", "doctor")
