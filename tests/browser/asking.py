"""Runs that ask for their kernels, begun in a notebook of a test: a chat window, an endpoint.

Proposer, prompts, money, store and view are the real ones; the judge accepts whatever it is given.
"""

from __future__ import annotations

import os
from pathlib import Path

from kforge_nb.options import OptimizeOptions
from kforge_nb.run.conductor import Tools
from kforge_nb.run.handle import Run
from kforge_nb.run.source import StoreSource
from kforge_nb.run.writers import make_writer
from tests.run.conftest import Stage

__all__ = ["ask_at", "ask_by_hand"]


def ask_by_hand(name):
    """A run that shows two prompts at once and ends with their answers."""
    return _begun(name, {"proposer": "paste", "parallel": 2, "budget": 2})


def ask_at(url, name):
    """A run that makes one call at an endpoint of the tests."""
    os.environ |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-test", "NO_PROXY": "127.0.0.1"}
    paid = {"proposer": "openai", "model": "loopback-1", "price_in": 1.0, "price_out": 4.0}
    return _begun(name, {**paid, "parallel": 1, "budget": 1})


def _begun(name, options):
    stage = Stage(Path(name))
    writer = make_writer(OptimizeOptions.of(options))
    stage.tools = lambda: Tools(
        stage.judge.session,
        writer.proposer,
        stage.guard,
        {"name": "test", "threads": 2},
        writer.parallel,
        writer.opened,
    )
    conductor = stage.conductor(name, **options)
    conductor.start()
    run = Run(StoreSource(conductor.record))
    run.show()
    return run
