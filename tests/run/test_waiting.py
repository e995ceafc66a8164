"""A wait of minutes is not silent."""

from __future__ import annotations

import pytest

from kforge_nb.run.waiting import EVERY_S, wait_telling


class Run:
    """Ends after so many waits."""

    def __init__(self, waits: int) -> None:
        self.left, self.asked, self.now = waits, [], 0.0

    def wait(self, timeout=None):
        self.asked.append(timeout)
        if self.left == 0:
            return self
        self.left -= 1
        self.now += timeout
        raise TimeoutError("not yet")

    def status(self):
        return f"run r: searching, {len(self.asked)} of 9 candidates judged" + " x" * 200


def test_a_line_now_and_then_tells_how_the_run_stands():
    """One short line every quarter of a minute, with the time; none where the wait is short."""
    run, lines = Run(3), []
    wait_telling(run, lines.append, clock=lambda: run.now)
    assert run.asked == [EVERY_S] * 4
    assert EVERY_S >= 15
    assert [line.partition(" candidates")[0] for line in lines] == [
        f"waiting for {seconds} s: run r: searching, {n} of 9"
        for n, seconds in enumerate((15, 30, 45), 1)
    ]
    assert all(len(line) <= 200 for line in lines)
    lines.clear()
    wait_telling(Run(0), lines.append)
    assert lines == []


def test_what_the_wait_raises_passes_through():
    """An interrupt ends the waiting, whoever tells of it."""
    run = Run(1)
    run.status = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        wait_telling(run, print)


def test_one_displayed_line_is_renewed_in_its_place(monkeypatch):
    """The first line is displayed with an id, later ones update it, as plain text."""
    from IPython import display as shown

    sent = []

    class Handle:
        def update(self, data, **given):
            sent.append(("update", data, given))

    def display(data, **given):
        sent.append(("display", data, given))
        return Handle()

    monkeypatch.setattr(shown, "display", display)
    wait_telling(Run(3))
    assert [name for name, _, _ in sent] == ["display", "update", "update"]
    assert all(set(data) == {"text/plain"} and given["raw"] for _, data, given in sent)
    assert sent[0][2]["display_id"] is True
