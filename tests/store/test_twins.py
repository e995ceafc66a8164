"""Broken documents that Python and the JupyterLab extension refuse alike (see read.test.ts)."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path

import pytest

from kforge_nb.errors import DocumentError
from kforge_nb.store.document import validate

HERE = Path(__file__).parent
CASES = json.loads((HERE / "broken.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_broken_document_is_refused_with_the_place_and_the_reason(case):
    """The same edits as in the extension's test, with the same place and the same words."""
    document = json.loads((HERE / "fixtures" / "example.kforge.json").read_text())
    *way, last = case["path"]
    value = case.get("value")
    if "repeat" in case:
        text, times = case["repeat"]
        value = text * times
    if "copy" in case:
        value = reduce(lambda found, key: found[key], case["copy"], document)
    reduce(lambda found, key: found[key], way, document)[last] = value

    with pytest.raises(DocumentError) as caught:
        validate(document)
    assert case["says"] in str(caught.value)
    assert case.get("why", "") in str(caught.value)
