"""What ``--backend`` accepts, where, and what is said instead."""

from __future__ import annotations

import pytest

from kforge_nb.backends import BACKENDS, check_backend, language_of, unfit
from kforge_nb.errors import BadInput, MissingTool
from kforge_nb.options import OptimizeOptions


def test_auto_follows_the_device():
    """Without a choice the target's device decides."""
    assert language_of("auto", "cpu") == "cpp"
    assert language_of("auto", "cuda:1") == "cuda"


@pytest.mark.parametrize(
    ("backend", "device", "language"),
    [
        ("cpp", "cpu", "cpp"),
        ("cupy_raw", "cuda:0", "cuda"),
        ("cuda_extension", "cuda:0", "cuda_extension"),
        ("cuda_extension", "cpu", "cuda_extension"),
    ],
)
def test_each_backend_has_its_language(backend, device, language):
    """A backend that fits the device gives the language of its candidates."""
    assert language_of(backend, device) == language
    check_backend(backend, gpu=True, allow_host_code=True, devices={device})


def test_a_backend_of_the_other_device_says_what_would_work():
    """Neither cpp for a GPU nor cupy_raw for the CPU begins anything; both name the way."""
    with pytest.raises(BadInput, match=r"lives on cuda:0: use --backend cupy_raw"):
        check_backend("cpp", gpu=True, devices={"cuda:0"})
    with pytest.raises(BadInput, match=r"lives on the CPU.*--backend cpp"):
        check_backend("cupy_raw", gpu=True, devices={"cpu"})
    with pytest.raises(BadInput, match="cupy_raw"):
        language_of("cpp", "cuda:0")


def test_one_target_that_fits_is_enough():
    """A model on two devices is searched where the backend fits; the rest is told target by target.

    The reasons are those of ``unfit``.
    """
    check_backend("cpp", gpu=True, devices={"cpu", "cuda:0"})
    assert unfit("cpp", "cpu") is None
    assert "cuda:0" in (unfit("cpp", "cuda:0") or "")


def test_no_gpu_is_a_missing_tool():
    """cupy_raw without a GPU says so before anything is run."""
    with pytest.raises(MissingTool, match=r"torch sees none.*--backend cpp"):
        check_backend("cupy_raw", gpu=False)


def test_host_code_needs_its_word():
    """A torch extension is only taken with the opt-in, and never from a proposer without any."""
    with pytest.raises(BadInput, match="--allow-host-code"):
        check_backend("cuda_extension", gpu=True)
    with pytest.raises(BadInput, match=r"--proposer recipes writes kernels with a launch plan"):
        check_backend("cuda_extension", gpu=True, allow_host_code=True, proposer="recipes")
    check_backend("cuda_extension", gpu=True, allow_host_code=True)


def test_the_option_has_these_choices():
    """The options table knows every backend and suggests the nearest for a misspelled one."""
    for name in ("auto", *BACKENDS):
        assert OptimizeOptions.of({"backend": name}).backend == name
    assert OptimizeOptions.of({}).allow_host_code is False
    with pytest.raises(BadInput, match="did you mean 'cupy_raw'"):
        OptimizeOptions.of({"backend": "cupyraw"})
