"""What a search has freed does not stay with the notebook's process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FREED = """
import ctypes, threading
from kforge_nb.run.heap import give_back_heap

def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 // 2**20

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
held = []

def fill():
    for _ in range(400):  # below glibc's threshold for pages of their own
        held.append(libc.malloc(100_000))
        libc.memset(held[-1], 1, 100_000)
    last = libc.malloc(1000)  # what keeps the heap from shrinking by itself
    for address in held:
        libc.free(address)

thread = threading.Thread(target=fill)
thread.start()
thread.join()
before = resident_mb()
print(give_back_heap(), before - resident_mb())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep no such heap")
def test_what_a_thread_freed_goes_back_to_the_system():
    """Forty megabytes freed under a piece that stays are no longer the process's."""
    done = subprocess.run(
        [sys.executable, "-c", FREED], capture_output=True, text=True, timeout=120, check=True
    )
    called, megabytes = done.stdout.split()
    assert called == "True"
    assert int(megabytes) >= 30
