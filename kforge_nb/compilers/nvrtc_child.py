"""The process that runs NVRTC: reads ``request.json``, writes ``kernel.cubin`` and ``answer.json``.

It is started by path with ``python -I -S``, so it imports nothing of this package and starts in a
few hundredths of a second. NVRTC is reached through ctypes; neither a driver nor a GPU is needed.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["main"]

_OK = 0


def _log(library: Any, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(max(1, size.value))
    library.nvrtcGetProgramLog(program, text)
    return text.value.decode("utf-8", "replace")


def _archs(library: Any) -> list[int]:
    """What this NVRTC can compile for, as 80, 90, ...; empty where it cannot say."""
    count = ctypes.c_int()
    if library.nvrtcGetNumSupportedArchs(ctypes.byref(count)) != _OK:
        return []
    found = (ctypes.c_int * count.value)()
    library.nvrtcGetSupportedArchs(found)
    return list(found)


def _compile(library: Any, request: dict[str, Any]) -> dict[str, Any]:
    program = ctypes.c_void_p()
    source = request["source"].encode()
    name = request["name"].encode()
    if library.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None) != _OK:
        return {"status": -1, "log": "NVRTC could not take the source"}
    options = [option.encode() for option in request["options"]]
    array = (ctypes.c_char_p * len(options))(*options)
    status = library.nvrtcCompileProgram(program, len(options), array)
    log = _log(library, program)
    if status == _OK:
        size = ctypes.c_size_t()
        status = library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        image = ctypes.create_string_buffer(max(1, size.value))
        if status == _OK and size.value:
            status = library.nvrtcGetCUBIN(program, image)
            Path("kernel.cubin").write_bytes(image.raw[: size.value])
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    message = library.nvrtcGetErrorString(status).decode()
    return {"status": int(status), "message": message, "log": log}


def main() -> int:
    """Serve the one request of the current folder."""
    request = json.loads(Path("request.json").read_text(encoding="utf-8"))
    library = ctypes.CDLL(request["library"])
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    start = time.perf_counter()
    answer = _compile(library, request)
    answer |= {
        "seconds": time.perf_counter() - start,
        "version": f"{major.value}.{minor.value}",
        "archs": _archs(library),
    }
    Path("answer.json").write_text(json.dumps(answer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
