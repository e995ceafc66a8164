"""What the long-lived worker is given of the notebook's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from kforge_nb.judge.baseline import BaselineWorker
from kforge_nb.settings import open_environment


@pytest.fixture
def secrets(monkeypatch):
    """Variables of both kinds; the values of those that are secret."""
    hidden = {
        "OPENAI_API_KEY": "sk-hidden-1",
        "HF_TOKEN": "hidden-2",
        "aws_secret_access": "hidden-3",
        "MY_PASSWORD": "hidden-4",
    }
    for name, value in {**hidden, "KEYBOARD": "qwerty", "MONKEYS": "many"}.items():
        monkeypatch.setenv(name, value)
    return list(hidden.values())


def test_names_that_say_secret_are_left_out(secrets):
    """Whole words count: a keyboard is no key."""
    found = open_environment()
    assert not set(secrets) & set(found.values())
    assert (found["KEYBOARD"], found["MONKEYS"]) == ("qwerty", "many")


def test_the_worker_has_no_secret_and_a_compiler_cache_of_its_own(secrets, monkeypatch, tmp_path):
    """Its environment can be read by whoever may read its process."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/the/users/own")
    worker = BaselineWorker(tmp_path, 1)
    try:
        worker.ping()  # just after exec the system may still show an empty environment
        found = Path(f"/proc/{worker.child.pid}/environ").read_text().split("\0")
    finally:
        worker.close()
    values = [entry.partition("=")[2] for entry in found]
    assert "many" in values
    assert not set(secrets) & set(values)
    assert f"TORCHINDUCTOR_CACHE_DIR={tmp_path / 'inductor'}" in found
