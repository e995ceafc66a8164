"""The one thread that writes what the kernel shows."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest

from kforge_nb.view.outbox import Outbox


class Sent:
    """A receiver that remembers what came and when."""

    def __init__(self) -> None:
        self.messages: list[dict] = []
        self.times: list[float] = []
        self.threads: set[str] = set()
        self.arrived = threading.Event()

    def __call__(self, values) -> None:
        self.messages.append(dict(values))
        self.times.append(time.monotonic())
        self.threads.add(threading.current_thread().name)
        self.arrived.set()


def test_a_storm_of_values_is_coalesced_and_the_last_one_arrives():
    """Thousands of events cost a few messages, never faster than the interval."""
    sent = Sent()
    box = Outbox(sent, interval=0.05)
    end = time.monotonic() + 0.4
    n = 0
    while time.monotonic() < end:
        n += 1
        box.put("doc", n)
    time.sleep(0.06)  # let an interval pass, so that close() has nothing to hurry
    assert box.close()

    gaps = [b - a for a, b in pairwise(sent.times)]
    assert sent.messages[-1] == {"doc": n}
    assert len(sent.messages) <= 0.46 / 0.05 + 2
    assert min(gaps[:-1]) >= 0.049


def test_only_what_changed_is_sent():
    """Equal values cost nothing; other names are left out of the message."""
    sent = Sent()
    box = Outbox(sent, interval=0)
    box.put("doc", {"a": [1]})
    assert box.flush()
    box.put("doc", {"a": [1]})
    box.put("detail", 2)
    assert box.close()

    assert sent.messages == [{"doc": {"a": [1]}}, {"detail": 2}]


def test_large_values_go_out_more_slowly():
    """The rate is bounded in bytes too."""
    sent = Sent()
    box = Outbox(sent, interval=0, bytes_per_s=100_000)
    box.put("doc", "x" * 20_000)
    assert sent.arrived.wait(5)
    box.put("doc", "y" * 20_000)
    deadline = time.monotonic() + 5
    while len(sent.messages) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    box.close()

    assert sent.times[1] - sent.times[0] >= 0.19


def test_one_thread_writes_whoever_puts():
    """Values from many threads are sent from the outbox's own thread only."""
    sent = Sent()
    box = Outbox(sent, interval=0)
    threads = [threading.Thread(target=box.put, args=(f"n{i}", i)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    box.close()

    assert {"kforge-outbox"} == sent.threads
    assert {f"n{i}": i for i in range(20)} == {k: v for m in sent.messages for k, v in m.items()}


def test_functions_are_called_late_and_once():
    """A document is built when it is due, not for each event."""
    calls = []
    started, release = threading.Event(), threading.Event()

    def slow(values):
        started.set()
        assert release.wait(5)

    box = Outbox(slow, interval=0)
    box.put("doc", 0)
    assert started.wait(5)
    for n in range(100):
        box.put("doc", lambda n=n: calls.append(n) or n)
    release.set()
    box.close()

    assert calls == [99]


@pytest.mark.parametrize("broken", ["value", "send"])
def test_an_error_is_logged_and_later_values_still_arrive(broken, caplog):
    """A view that fails never ends the run, nor the view for good."""
    sent = Sent()
    failed = threading.Event()

    def send(values):
        if broken == "send" and not failed.is_set():
            failed.set()
            raise OSError("the browser is gone")
        sent(values)

    def value():
        raise RuntimeError("the store is locked")

    box = Outbox(send, interval=0)
    box.put("doc", value if broken == "value" else 1)
    assert box.flush()
    box.put("doc", 2)
    assert box.close()

    assert sent.messages == [{"doc": 2}]
    assert "the store is locked" in caplog.text or "the browser is gone" in caplog.text


def test_flush_does_not_wait_for_the_interval():
    """The last document of a run is shown at once."""
    sent = Sent()
    box = Outbox(sent, interval=60)
    box.put("doc", 1)
    assert sent.arrived.wait(5)
    box.put("doc", 2)
    started = time.monotonic()
    assert box.flush()

    assert time.monotonic() - started < 5
    assert sent.messages[-1] == {"doc": 2}
    assert box.close()


def test_after_close_nothing_is_sent():
    """A late event of a finished run is dropped, not kept for ever."""
    sent = Sent()
    box = Outbox(sent, interval=0)
    assert box.close()
    box.put("doc", 1)

    assert box.close()
    assert sent.messages == []
