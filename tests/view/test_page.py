"""The stand-alone page: the whole run, and nothing that a stranger's run could bring along."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

from kforge_nb.view import PAGE, page
from kforge_nb.view.page import page_of

SCRIPT = re.compile(r"<script([^>]*)>(.*?)</script>", re.DOTALL)


@pytest.fixture
def built():
    """Skips where the view was not built."""
    if not PAGE.is_file():
        pytest.skip("the view is not built; run `make view`")


def test_the_run_stands_in_the_page_unchanged(document, built):
    """What the view reads is the document, to the last character."""
    document["state_reason"] = "{{script}} </script> <!-- \u2028 é"
    scripts = SCRIPT.findall(page_of(document))

    assert [attributes.strip() for attributes, _ in scripts] == [
        'type="application/json" id="kforge-document"',
        "",
    ]
    assert json.loads(scripts[0][1]) == document


def test_the_policy_lets_only_the_views_own_script_run(hostile, built):
    """The hash is that of the one script, and nothing may be fetched from anywhere."""
    text = page_of(hostile)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    script = SCRIPT.findall(text)[-1][1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()

    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "connect-src" not in policy


def test_markup_of_a_strangers_run_opens_no_tag(hostile, built):
    """Title, summary and JSON of a run full of markup hold not one tag of it."""
    text = page_of(hostile)

    assert len(SCRIPT.findall(text)) == 2
    assert "<img" not in text.lower()


def test_half_a_character_does_not_keep_the_page_from_being_written(document, built):
    """A stranger's JSON may hold a lone surrogate, which no file can."""
    document["state_reason"] = "\ud800!"

    assert "?!" in page_of(document).encode("utf-8").decode()


def test_readers_without_script_find_the_summary(document, built):
    """Below the view stands what a notebook keeps."""
    assert "over the untouched eager model" in SCRIPT.sub("", page_of(document))


def test_without_the_built_view_the_summary_is_the_page(document, monkeypatch, tmp_path):
    """An installation that skipped the view still writes a page that can be read."""
    monkeypatch.setattr(page, "PAGE", tmp_path / "none.html")
    text = page_of(document)

    assert "{{" not in text
    assert "over the untouched eager model" in text
    assert "<title>kforge run minilm</title>" in text
