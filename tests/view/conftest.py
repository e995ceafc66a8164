"""The example run as views get it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[1] / "store" / "fixtures" / "example.kforge.json"


@pytest.fixture
def document() -> dict[str, Any]:
    """A fresh copy of the invented run that stores and views share."""
    return json.loads(EXAMPLE.read_text())


@pytest.fixture
def hostile(document) -> dict[str, Any]:
    """The same run with markup wherever a user's model or a stranger's file can put text."""
    evil = '<script>alert("x")</script><img src=x onerror=alert(1)>'
    document["name"] = document["state_reason"] = evil
    document["workload"]["notes"] = [evil]
    document["recommendation"]["reason"] = evil
    for target in document["targets"]:
        target.update(name=evil, variant=evil, state_reason=evil)
    for node in document["nodes"]:
        node.update(title=evil, reason=evil)
    for decision in document["decisions"]:
        decision["reason"] = evil
    return document
