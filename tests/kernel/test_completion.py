"""TAB in a real kernel: what a front end is answered when it asks to complete a %kforge line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kforge_nb.run.record import open_store

EXAMPLE = Path(__file__).parents[1] / "store" / "fixtures" / "example.kforge.json"
TARGETS = [0, 1, 2, 3, "gelu", "dropout_add_layer_norm", "mean_pool", "linear"]


@pytest.fixture(scope="module")
def told(module_kernel):
    """A kernel whose folder has a store with one run; returns the offered lines for a text."""
    folder = Path(module_kernel.run("import os; print(os.getcwd())").stdout.strip())
    document = json.loads(EXAMPLE.read_text())
    with open_store(folder / ".kforge") as store:
        keys = ("options", "device", "versions", "workload")
        made = store.create_run("bert", **{key: document[key] for key in keys})
        for target in document["targets"]:
            store.add_target(made, target["index"], target)

    def ask(text):
        reply = module_kernel.client.complete(text, len(text), reply=True, timeout=60)["content"]
        assert reply["status"] == "ok"
        head, tail = text[: reply["cursor_start"]], text[reply["cursor_end"] :]
        return [head + match + tail for match in reply["matches"]]

    return ask


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("%kforge sho", ["%kforge show"]),
        ("%%kforge optimize --max-", ["%%kforge optimize --max-tokens", "... --max-cost"]),
        ("%%kforge optimize --rest e", ["%%kforge optimize --rest eager"]),
        ("%kforge show b", ["%kforge show bert"]),
        ("%%kforge kernel --target ", [f"%%kforge kernel --target {word}" for word in TARGETS]),
    ],
)
def test_a_front_end_is_offered_what_may_come_next(told, text, wanted):
    """Commands, options, choices, runs of the store, targets of the newest run: over the wire."""
    full = [line.replace("...", text.rpartition(" ")[0]) for line in wanted]

    assert told(text) == full
    assert told(text + "zzz") == []
