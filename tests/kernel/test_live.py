"""A live view through everything that happens to pages, kernels and notebooks."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import nbformat
import pytest

from kforge_nb.view import BUNDLE

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not BUNDLE.is_file(), reason="the view is not built"),
]

LIGHT = "from tests.kernel.light_run import begin"
WIDGET = "application/vnd.jupyter.widget-view+json"
SAVED = {"application/vnd.kforge.run+json", "text/html", "text/plain"}


@pytest.fixture(scope="module")
def live(module_kernel):
    """One kernel in which light runs can be begun."""
    assert module_kernel.run(LIGHT).status == "ok"
    return module_kernel


def begin(kernel, name, **options):
    """Begins a run in a cell; the reply, and the id of its widget's comm."""
    given = "".join(f", {k}={v!r}" for k, v in options.items())
    reply = kernel.run(f"{name} = begin({name!r}{given})")
    assert reply.status == "ok", reply
    return reply, kernel.comms()[-1]


def states(kernel, comm, since=0):
    """States that were sent on a comm, with the time of each message."""
    return [
        (m["header"]["date"], m["content"]["data"]["state"])
        for m in kernel.seen[since:]
        if m["msg_type"] == "comm_msg"
        and m["content"]["comm_id"] == comm
        and "state" in m["content"]["data"]
    ]


def saved_views(kernel, since=0):
    """Saved bundles by the display id of the output that they replaced."""
    updates = [m["content"] for m in kernel.seen[since:] if m["msg_type"] == "update_display_data"]
    return {u["transient"]["display_id"]: u["data"] for u in updates}


def shows(kernel, comm, state):
    """Whether a page that is opened, and asks for all of the widget, soon shows this state."""
    for _ in range(40):
        heard = len(kernel.seen)
        kernel.send(comm, {"method": "request_state"})
        kernel.listen(lambda _, h=heard: [s for _, s in states(kernel, comm, h) if "doc" in s])
        found = [s["doc"] for _, s in states(kernel, comm, heard) if "doc" in s][-1]
        if f'"state": "{state}"' in json.dumps(found):
            return True
        time.sleep(0.05)
    return False


def test_the_cell_returns_at_once_and_updates_come_four_times_a_second_at_most(live):
    """A search that judges a hundred candidates a second floods no page."""
    reply, comm = begin(live, "fast", seconds=0.005)
    assert reply.seconds < 3
    heard = len(live.seen)
    live.run("import time; time.sleep(2)")
    live.run("fast.stop()")

    sent = [date for date, _ in states(live, comm, heard)]
    assert len(sent) >= 3
    assert min((b - a).total_seconds() for a, b in pairwise(sent[:-1])) >= 0.2
    assert int(live.run("len(fast.nodes)").text) > 50


def test_two_views_of_one_run_show_the_same_and_end_the_same(live):
    """Shown twice, a run has two widgets; Stop in the second ends it, and both become saved."""
    first, one = begin(live, "twice")
    second = live.run("%kforge show twice")
    two = live.comms()[-1]
    assert one != two
    ids = {r.displays[-1] for r in (first, second)}
    heard = len(live.seen)
    live.press(two, command={"name": "stop", "n": "a.1"})

    live.listen(lambda _: ids <= set(saved_views(live, heard)))
    views = [saved_views(live, heard)[i] for i in ids]
    assert [set(v) for v in views] == [SAVED, SAVED]
    assert views[0]["text/html"] == views[1]["text/html"]
    assert "stopped by the button" in views[0]["text/html"]
    live.run("twice.wait()")
    for comm in (one, two):
        assert shows(live, comm, "stopped")


def test_pause_and_stop_of_one_target_by_the_view(live):
    """Buttons of a target hold and end that target; the run goes on with the other."""
    _, comm = begin(live, "held")
    live.press(comm, command={"name": "pause", "target": 0, "n": "a.1"})
    live.press(comm, command={"name": "stop", "target": 1, "n": "a.2"})
    row = "held.document['targets'][{}]"
    code = f"import time\nwhile {row.format(1)}['state'] != 'done': time.sleep(0.01)\n"
    code += f"print({row.format(0)}['paused'], {row.format(1)}['state_reason'], held.state)"
    assert live.run(code, 20).stdout == "True stopped by the button searching\n"
    assert "target 0 paused" in live.run("%kforge status held").stdout
    live.run("%kforge stop held --target 0")
    assert "held: done" in live.run("%kforge wait held", 20).stdout


def test_a_page_that_is_opened_again_gets_the_run_as_it_is_now(live):
    """While it goes on, when it is stopped, and long after its end."""
    _, comm = begin(live, "again")
    assert shows(live, comm, "searching")
    live.run("again.stop()")
    assert shows(live, comm, "stopped")
    assert shows(live, comm, "stopped")


def test_a_page_that_was_closed_at_the_end_is_sent_the_saved_view(live):
    """An update that no page was there to take comes once more when one asks for the widget."""
    reply, comm = begin(live, "late", budget=4)
    live.run("late.wait(20)")
    shown = reply.displays[-1]
    live.listen(lambda _: saved_views(live).get(shown))
    heard = len(live.seen)
    live.send(comm, {"method": "request_state"})

    view = live.listen(lambda _: saved_views(live, heard).get(shown))
    assert set(view) == SAVED
    assert view["application/vnd.kforge.run+json"]["state"] == "done"


def test_messages_after_the_end_change_nothing_and_details_still_come(live):
    """A page that was left open may click; the ended run stays, and its sources can be read."""
    _, comm = begin(live, "over", budget=4)
    live.run("over.wait(20)")
    before = live.run("over.status()").text
    for n, name in enumerate(("stop", "pause", "resume", "answer")):
        live.press(comm, command={"name": name, "n": f"b.{n}"})
    heard = len(live.seen)
    live.press(comm, detail_request={"id": "0.0", "n": "b.9"})

    details = live.listen(lambda _: [s for _, s in states(live, comm, heard) if "detail" in s])
    assert details[-1]["detail"]["0.0"]["details"]["source"].startswith("//")
    assert live.run("over.status()").text == before


RUBBISH = [
    None, 7, "stop", [], {}, {"method": "update"}, {"method": "update", "state": None},
    {"method": "update", "state": [1], "buffer_paths": []}, {"method": "explode"},
    {"method": "custom", "content": {"a": [1] * 100}}, {"method": ["update"], "state": {}},
]  # fmt: skip
RUBBISH_STATES = [
    {"command": None}, {"command": "stop"}, {"command": ["stop"]}, {"command": {"name": ["stop"]}},
    {"command": {"name": "stop", "target": {"a": 1}}}, {"command": {"name": "x" * 100_000}},
    {"command": {"name": "pause", "target": -1}}, {"detail_request": 3},
    {"detail_request": {"id": "../../etc/passwd"}}, {"detail_request": {"id": {"a": 1}}},
    {"doc": {"schema": "evil"}}, {"changes": {"seq": 1e9}}, {"prompts": "x"},
    {"detail": {"0.0": 1}}, {"_esm": "alert(1)"}, {"whole_request": [1]}, {"no_such_trait": 1},
]  # fmt: skip


def test_rubbish_from_a_front_end_ends_nothing_and_reaches_no_other_page(live):
    """Whatever a page sends, the run goes on, nothing of it is passed on, and Stop still works."""
    _, comm = begin(live, "tough")
    assert shows(live, comm, "searching")
    heard = len(live.seen)
    for data in RUBBISH:
        live.send(comm, data)
    for state in RUBBISH_STATES:
        live.press(comm, **state)
    live.press("no-such-comm", command={"name": "stop", "n": 1})
    checked = live.run("tough.state, tough._live.control.paused, tough.status().count('paused')")

    assert checked.text == "('searching', False, 0)"
    passed_on = json.dumps([state for _, state in states(live, comm, heard)])
    for word in ("evil", "alert(1)", "xxx"):
        assert word not in passed_on
    errors = [m["content"] for m in live.seen[heard:] if m["msg_type"] == "error"]
    assert errors == []
    assert shows(live, comm, "searching")
    live.press(comm, command={"name": "stop", "n": "c.1"})
    assert "tough: stopped by the button" in live.run("print(tough.wait(20).status())").stdout


def test_a_notebook_saved_in_the_middle_can_be_read_without_a_kernel(live):
    """Beside the widget the output holds HTML that says what it is, for pages without widgets."""
    reply, _ = begin(live, "middle")
    live.run("middle.stop()")
    (data,) = reply.outputs
    assert set(data) == {WIDGET, *SAVED}
    assert "<script" not in data["text/html"]
    assert "%kforge show middle shows it now" in data["text/html"]
    assert data["text/plain"].startswith("run middle: ")
    output = nbformat.v4.new_output("display_data", data)
    cell = nbformat.v4.new_code_cell("begin()", outputs=[output])
    nbformat.validate(nbformat.v4.new_notebook(cells=[cell]))


@pytest.fixture
def two_kernels(start_kernel):
    """Two notebooks in one folder."""
    made = [start_kernel() for _ in range(2)]
    for kernel in made:
        assert kernel.run(f"%load_ext kforge_nb\n{LIGHT}").status == "ok"
    return made


def test_two_notebooks_on_two_runs_and_a_restart(two_kernels, start_kernel):
    """Each ends its own run only; after a kill a new kernel shows what is left."""
    one, other = two_kernels
    _, comm = begin(one, "left")
    begin(other, "right")
    refused = other.run("%kforge stop left")
    assert "it can only be stopped there" in refused.stderr
    foreign = other.run("%kforge show left").outputs[-1]
    assert set(foreign) == SAVED
    one.press(comm, command={"name": "pause", "n": 1})
    assert "right: searching" in other.run("%kforge status right").stdout
    assert "(paused)" in one.run("%kforge status left").stdout
    judged = int(one.run("len(left.nodes)").text)

    one.kill()

    fresh = start_kernel()
    fresh.run("%load_ext kforge_nb")
    shown = fresh.run("%kforge show left").outputs[-1]
    assert set(shown) == SAVED
    document = shown["application/vnd.kforge.run+json"]
    assert document["state"] == "interrupted"
    assert len(document["nodes"]) >= judged
    assert "right: searching" in other.run("%kforge status right").stdout
    assert "right: stopped" in other.run("%kforge stop right").stdout
