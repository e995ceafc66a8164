"""A store and the example run to work with."""

import pytest


@pytest.fixture
def store(tmp_path):
    from kforge_nb.store import Store

    with Store(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
def example():
    from tests.store.make_example import example as made

    return made()
