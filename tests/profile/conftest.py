"""A cache folder of the test's own, with a calibration that costs no time."""

from __future__ import annotations

import pytest

from kforge_nb.profile import calibration, numbering
from kforge_nb.profile.calibration import Calibration


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(calibration, "_MEASURED", {})
    numbering.forget()
    return tmp_path / "home"


@pytest.fixture
def limits():
    """A device with round numbers: 10 GB/s from memory, 100 GB/s from caches, 100 GFLOP/s."""
    return Calibration(
        "cpu", "id", 10.0, {1000: 100.0, 100_000: 50.0, 10_000_000: 10.0}, {"float32": 100.0}, 1.0
    )


@pytest.fixture
def calibrated(monkeypatch, limits):
    """profile() sees those limits."""
    monkeypatch.setattr("kforge_nb.profile.profile.calibrate", lambda device: limits)
    return limits
