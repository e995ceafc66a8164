"""The CUDA branch of the compiled launch op, over a fake driver that runs kernels on the host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kforge_nb.compilers.toolchain import clean_environment, find_compiler

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What each scene of ``fake_cuda.py`` saw."""
    library = tmp_path_factory.mktemp("fake") / "libfake_cuda.so"
    compiler = find_compiler()
    subprocess.run(
        [*compiler.command, "-std=c++17", "-O1", "-fPIC", "-shared",
         str(HERE / "fake_cuda.cpp"), "-o", str(library)],
        env=clean_environment(compiler.path),
        check=True,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tests.guard.fake_cuda", str(library)],
        capture_output=True, text=True, timeout=250, cwd=HERE.parents[1], check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_machine_without_a_driver_is_told_so(seen):
    """Adding a CUDA kernel without CUDA is a MissingTool in words; nothing is half loaded."""
    kind, words = seen["no_driver"]
    assert kind == "MissingTool"
    assert "no CUDA driver" in words


def test_a_launch_gives_the_kernels_result(seen):
    """Code is loaded when the kernel is added, relaxed about captures; a call only launches."""
    loaded, good, log, counters = seen["values"]
    assert loaded == ["load context 256 mode 2"]
    assert good
    assert log == ["launch add_relu grid 2 block 256 shared 0 stream 4096"]
    assert counters == {"launches": 1, "copies": 0, "shadowed": 0, "fallbacks": {}}


def test_sixteen_bytes_is_what_inputs_are_aligned_to(seen):
    """A view 16 bytes off is taken as it is; 4 bytes off, or transposed, it is copied."""
    assert seen["layouts"] == {
        "4 bytes off": [True, 1], "16 bytes off": [True, 0], "transposed": [True, 1],
    }  # fmt: skip


def test_scratch_is_zeroed_and_kernels_run_in_order(seen):
    """One memset of what has to be zero, then the kernels, on the device's current stream."""
    good, log = seen["order_and_scratch"]
    assert good == [True, True, True]
    assert log == [
        "zero 256 stream 4096",
        "launch gather grid 1 block 1 shared 0 stream 4096",
        "launch spread grid 2 block 256 shared 0 stream 4096",
    ]


def test_large_shared_memory_is_allowed_once(seen):
    """Beyond 48 KB a function is allowed more, never less than another plan needs of it."""
    allowed, fallbacks, (kind, words) = seen["shared"]
    assert allowed == [f"allow {100 << 10}"]
    assert fallbacks == [{}, {}, {}]
    assert kind == "BadInput"
    assert "kernel spread" in words


def test_another_device_gets_its_own_context_and_gives_it_back(seen):
    """A kernel of cuda:1 is loaded and launched there; the caller's context is current after."""
    loaded, good, log, current = seen["other_device"]
    assert loaded == ["load context 257 mode 2"]
    assert good
    assert log == ["launch add_relu grid 2 block 256 shared 0 stream 4097"]
    assert current == 256


def test_one_image_is_loaded_once_a_device(seen):
    """Handles of the same cubin share a module."""
    assert seen["one_module"] == ["load", "load"]


def test_what_cannot_be_loaded_is_refused(seen):
    """A damaged cubin, a missing kernel, a missing device and a missing file, each in words."""
    kinds = [kind for kind, _ in seen["refused"]]
    assert kinds == ["ContractBreach", "ContractBreach", "BadInput", "BadInput"]
    assert "kernel absent" in seen["refused"][1][1]
    assert "device 7" in seen["refused"][2][1]


def test_a_failing_launch_runs_the_original_for_good(seen):
    """The result is eager's, the kernel is off with the driver's words, and that is said once."""
    good, words, fallbacks, note = seen["failing"]
    assert good == [True, True]
    assert len(words) == 1
    assert "switched off" in words[0]
    assert fallbacks == {
        "a launch that failed": 1, "switched off after a mismatch or an error": 1,
    }  # fmt: skip
    assert note == "launch 0 failed on cuda:0 (CUDA_ERROR_FAKE: as the test asked for)"


def test_a_broken_context_is_an_error_in_words(seen):
    """No fallback is tried where nothing can run any more; the error says what to do."""
    words, fallbacks = seen["sticky"]
    assert "context of cuda:0 is broken (CUDA_ERROR_ILLEGAL_ADDRESS" in words
    assert "Restart" in words
    assert fallbacks == {}


def test_a_broken_capture_is_not_held_against_the_kernel(seen):
    """The call runs its original and the next one launches again."""
    first, second, counters = seen["broken_capture"]
    assert first
    assert second
    assert counters["launches"] == 1
    assert counters["fallbacks"] == {"a broken CUDA-graph capture": 1}


def test_a_shadow_check_waits_for_the_end_of_a_capture(seen):
    """Comparing reads values, so it is put off, not lost."""
    assert seen["shadow_waits"] == [0, 1]


def test_gradients_and_the_kill_switch_work_as_on_the_cpu(seen):
    """Both run the original; gradients flow through it."""
    good, counters = seen["switched"]
    assert good
    assert counters["launches"] == 0
    assert counters["fallbacks"] == {"a gradient is needed": 1, "the kill switch is on": 1}
