"""Lets the tests of this folder import ``make_example``; a store and the example to work with."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def store(tmp_path):
    from kforge_nb.store import Store

    with Store(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
def example():
    from make_example import example as made

    return made()
