"""Small parts: the lock for the cores, regions, the local engine."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.engines.local import LocalEngine
from kforge_nb.judge.cores import Cores
from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.judge.regions import InputLayout, Region, extent
from kforge_nb.targets.target import TensorSpec

CANDIDATE = Candidate("cpp", "", LaunchPlan((Kernel("k", ("out0",)),)))


def test_a_timing_is_alone():
    """While one thread times, nobody works; work may be shared."""
    cores = Cores()
    inside, seen = [], []

    def work():
        for _ in range(50):
            with cores.work():
                inside.append(1)
                inside.pop()

    def timing():
        for _ in range(50):
            with cores.timing():
                seen.append(len(inside))

    threads = [threading.Thread(target=t) for t in (work, work, timing, timing)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 100
    assert not any(seen)


def test_work_is_shared():
    """Two may work at the same time: both are inside before either leaves."""
    cores = Cores()
    both = threading.Barrier(2, timeout=10)

    def work():
        with cores.work():
            both.wait()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not both.broken


def test_strides_decide_how_much_memory_an_input_takes():
    """Expanded inputs take one row, padded ones their gaps, empty ones nothing."""
    assert extent(TensorSpec((8, 4), (0, 1), "float32")) == 4
    assert extent(TensorSpec((2, 3), (10, 2), "float32")) == 15
    assert extent(TensorSpec((0, 3), (3, 1), "float32")) == 0


def test_buffers_are_aligned_and_apart():
    """64-byte alignment, and a guard zone between any two buffers."""
    layout = InputLayout([TensorSpec((3,), (1,), "uint8"), TensorSpec((5,), (1,), "float64")])
    first, second = layout.buffers
    assert first.offset % 64 == second.offset % 64 == 0
    assert second.offset - (first.offset + first.bytes) >= 1024


def test_a_reader_of_a_region_cannot_map_it_writable():
    """The descriptor that runners get allows reading only, whatever they do with it."""
    import mmap

    region = Region(4096, "test")
    region.array[:4] = [1, 2, 3, 4]
    with mmap.mmap(region.read_only, 4096, prot=mmap.PROT_READ) as mapping:
        assert list(np.frombuffer(mapping[:4], np.uint8)) == [1, 2, 3, 4]
    with pytest.raises(PermissionError):
        mmap.mmap(region.read_only, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    region.close()
    region.close()


class _Bench:
    def __init__(self, gate: threading.Event) -> None:
        self.gate, self.begun = gate, threading.Event()

    def evaluate(self, candidate, stop=None):
        self.begun.set()
        self.gate.wait(10)
        stopped = stop is not None and stop.is_set()
        return Evaluation(Verdict.UNDECIDED if stopped else Verdict.SLOWER, candidate.title)


def test_the_engine_keeps_the_order():
    """Evaluations come back in the order of their candidates."""
    gate = threading.Event()
    gate.set()
    with LocalEngine(2) as engine:
        names = [str(i) for i in range(8)]
        made = [Candidate("cpp", n, CANDIDATE.plan, n) for n in names]
        assert [e.reason for e in engine.map(_Bench(gate), made)] == names


def test_closing_the_engine_stops_what_runs_and_drops_what_waits():
    """Close asks running evaluations to end early and starts no more."""
    gate = threading.Event()
    bench, engine = _Bench(gate), LocalEngine(1)
    running, waiting = engine.submit(bench, CANDIDATE), engine.submit(bench, CANDIDATE)
    bench.begun.wait(10)
    closer = threading.Thread(target=engine.close)
    closer.start()
    engine._stop.wait(10)
    gate.set()
    closer.join()
    assert running.result().verdict is Verdict.UNDECIDED
    with pytest.raises(CancelledError):
        waiting.result()
