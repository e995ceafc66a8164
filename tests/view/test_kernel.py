"""The view in a real Jupyter kernel: what a front end receives, and what its buttons do."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

from kforge_nb.view import BUNDLE

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not BUNDLE.is_file(), reason="the view is not built"),
]

EXAMPLE = Path(__file__).parents[1] / "store" / "fixtures" / "example.kforge.json"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

SETUP = f"""
import json, threading
from kforge_nb.view.live import open_view
document = json.load(open({str(EXAMPLE)!r}))
stopped = threading.Event()
view = open_view(document["details"].get, lambda asked: asked["name"] == "stop" and stopped.set())
view.display()
"""


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all tests here."""
    manager, client = start_new_kernel()
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(client, code):
    """Executes a cell; all its IOPub messages up to idle."""
    asked = client.execute(code)
    messages = []
    while True:
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") == asked:
            assert message["msg_type"] != "error", "\n".join(message["content"]["traceback"])
            if message["content"].get("execution_state") == "idle":
                return messages
        messages.append(message)


def gather(client, wanted, timeout=20.0):
    """Messages until ``wanted(messages)``; fails after ``timeout`` seconds."""
    messages, deadline = [], time.monotonic() + timeout
    while not wanted(messages):
        assert time.monotonic() < deadline, "the kernel sent nothing more"
        messages.append(client.get_iopub_msg(timeout=timeout))
    return messages


def of(messages, kind):
    return [m["content"] for m in messages if m["msg_type"] == kind]


def trait_updates(messages, name):
    """Values that the front end was sent for one trait, in order."""
    sent = [m["data"] for m in of(messages, "comm_msg")]
    return [d["state"][name] for d in sent if name in d.get("state", {})]


def comm_of(messages):
    """Id of the comm of the run widget."""
    opened = of(messages, "comm_open")
    return next(m["comm_id"] for m in opened if "doc" in m["data"]["state"])


def test_the_widget_is_shown_and_fed_while_a_cell_runs(kernel):
    """Traits travel from the run's thread even while the main thread never yields."""
    shown = run(kernel, SETUP)
    assert WIDGET_VIEW in of(shown, "display_data")[-1]["data"]

    busy = run(
        kernel,
        "import time\n"
        "def work():\n"
        "    for n in range(400):\n"
        "        document['progress'] = {**document['progress'], 'judged': n}\n"
        "        view.publish(dict(document)); time.sleep(0.005)\n"
        "thread = threading.Thread(target=work); thread.start()\n"
        "end = time.monotonic() + 2.2\n"
        "while time.monotonic() < end: pass\n"
        "thread.join()",
    )
    told = [m.get("set", m.get("doc")) for m in trait_updates(busy, "changes")]
    judged = [now["progress"]["judged"] for now in told]

    sent = [m["header"]["date"] for m in busy if trait_updates([m], "changes")]
    gaps = [(b - a).total_seconds() for a, b in pairwise(sent)]

    assert len(judged) >= 3
    assert judged == sorted(set(judged))
    assert min(gaps) >= 0.24  # four a second at most


def test_stop_and_details_reach_the_kernel_after_the_cell_has_returned(kernel):
    """The two things a page may ask for, sent as a front end sends them."""
    comm = comm_of(run(kernel, SETUP))

    def press(**state):
        data = {"method": "update", "state": state, "buffer_paths": []}
        content = {"comm_id": comm, "data": data}
        kernel.shell_channel.send(kernel.session.msg("comm_msg", content))

    press(detail_request={"id": "0.0", "n": 1})
    answer = gather(kernel, lambda got: "0.0" in (trait_updates(got, "detail") or [{}])[-1])
    details = json.loads(EXAMPLE.read_text())["details"]["0.0"]
    assert trait_updates(answer, "detail")[-1]["0.0"] == {"n": ["1"], "details": details}

    press(command={"name": "stop", "n": 2})
    printed = run(kernel, "print(stopped.wait(10))")
    assert [m["text"] for m in of(printed, "stream")] == ["True\n"]


def test_the_end_leaves_the_saved_view_in_the_launching_cell(kernel):
    """The widget is replaced, from a thread, by exactly the three types that a file should hold."""
    shown = run(kernel, SETUP)
    display_id = of(shown, "display_data")[-1]["transient"]["display_id"]

    got = run(
        kernel,
        "t = threading.Thread(target=view.finish, args=(document,)); t.start(); t.join()",
    )
    last = of(got, "update_display_data")[-1]

    assert last["transient"]["display_id"] == display_id
    assert set(last["data"]) == {
        "application/vnd.kforge.run+json",
        "text/html",
        "text/plain",
    }
    whole = [m["doc"] for m in trait_updates(got, "changes") if "doc" in m]
    assert whole[-1]["state"] == "done"


def test_without_anywidget_the_view_is_static_and_says_why(kernel):
    """One line with the cure, and the HTML still follows the run."""
    shown = run(
        kernel,
        "import sys; kept = sys.modules['anywidget']; sys.modules['anywidget'] = None\n"
        f"{SETUP}\nsys.modules['anywidget'] = kept\nview.publish(document)",
    )
    line = of(shown, "display_data")[-1]["data"]["text/plain"]
    assert "pip install anywidget" in line
    assert "\n" not in line

    renewed = of(shown, "update_display_data") or of(
        gather(kernel, lambda got: of(got, "update_display_data")), "update_display_data"
    )
    assert set(renewed[-1]["data"]) == {"text/html", "text/plain"}
    final = of(run(kernel, "view.finish(document)"), "update_display_data")[-1]["data"]
    assert "application/vnd.kforge.run+json" in final


def test_a_plain_python_process_has_no_view():
    """Scripts run the whole search without IPython; nothing is shown and nothing fails."""
    from kforge_nb.view.live import NoView, open_view

    view = open_view(lambda _id: None, lambda _name: None)
    assert isinstance(view, NoView)
    view.display()
    view.publish({})
    view.finish({})
