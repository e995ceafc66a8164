"""What a page shows of prompts to paste and of an answer that streams in, in a real JupyterLab."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import nbformat
import pytest

from tests.proposers.loopback import Loopback
from tests.proposers.talk import good

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
WAIT_MS = 60_000


def kernel(number):
    """A good answer, another one for each number."""
    return good(f"out0[i] = std::exp(in0[i]) + {number};", f"kernel {number}")


class Typing:
    """An endpoint that says a piece of its answer whenever it is told to."""

    def __init__(self, text):
        middle = len(text) // 2
        self._parts = [text[:middle], text[middle:]]
        self.go_on, self.end = threading.Event(), threading.Event()

    def __call__(self, exchange):
        exchange.begin()
        for part, gate in zip(self._parts, (self.go_on, self.end), strict=True):
            for at in range(0, len(part), 8):
                exchange.piece(part[at : at + 8])
            assert gate.wait(WAIT_MS / 1000)
        exchange.finish()


@pytest.fixture
def typing():
    """The endpoint's one answer, with its server's address."""
    step = Typing(kernel(7))
    with Loopback([step]) as server:
        step.url = server.url
        yield step
        step.go_on.set()
        step.end.set()


@pytest.fixture
def opened(page, lab, typing):
    """A notebook with both runs under way, and the clipboard within reach."""
    folder = Path(tempfile.mkdtemp(dir=lab[1]))
    cell = (
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.browser.asking import ask_at, ask_by_hand\n"
        f"byhand = ask_by_hand('byhand')\nstreamed = ask_at({typing.url!r}, 'streamed')"
    )
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    made.metadata["kernelspec"] = KERNEL
    nbformat.write(made, folder / "asking.ipynb")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.set_viewport_size({"width": 1300, "height": 2400})
    page.goto(f"{lab[0]}lab/tree/{folder.name}/asking.ipynb?reset")
    at = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
    page.wait_for_function(f"{at}?.status === 'idle'", timeout=WAIT_MS)
    page.evaluate("void jupyterapp.commands.execute('notebook:run-all-cells')")
    yield page
    page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")


def test_prompts_are_copied_and_answers_join_the_tree_while_tokens_stream_in(
    opened, typing, eventually
):
    """Two prompts wait at once; pasted answers and a streamed one each become a node."""
    page = opened
    by_hand = page.get_by_role("region", name="Run byhand", exact=True)
    streamed = page.get_by_role("region", name="Run streamed", exact=True)

    by_hand.get_by_text("2 prompts to paste into a chat window").wait_for(timeout=WAIT_MS)
    by_hand.get_by_role("button", name="Copy prompt 0.1").click()
    by_hand.get_by_text("copied", exact=True).wait_for()
    prompt = by_hand.locator(".kforge-prompt").filter(has_text="0.1 draft").locator("pre")
    assert page.evaluate("navigator.clipboard.readText()") == prompt.text_content()
    assert 'extern "C"' in prompt.text_content()

    paste(by_hand, "0.1", kernel(1))
    node(by_hand, "0.1").click()
    assert "+ 1;" in by_hand.get_by_label("source", exact=True).inner_text()
    by_hand.get_by_text("1 prompt to paste into a chat window").wait_for()
    paste(by_hand, "0.0", "I would rather not.")
    by_hand.get_by_text("The last answer cannot be read").wait_for()
    paste(by_hand, "0.0", kernel(2))
    node(by_hand, "0.0").wait_for()
    eventually(lambda: by_hand.locator(".kforge-state").first.inner_text().startswith("done"))

    before = eventually(lambda: arrived(streamed))
    typing.go_on.set()
    eventually(lambda: arrived(streamed) > before)
    assert node(streamed, "0.0").count() == 0
    typing.end.set()
    node(streamed, "0.0").click()
    assert "+ 7;" in streamed.get_by_label("source", exact=True).inner_text()


def paste(view, prompt, text):
    """An answer into its box, and sent."""
    box = view.get_by_label(f"Answer to prompt {prompt}")
    send = view.get_by_role("button", name=f"Send answer {prompt}")
    assert send.is_disabled()
    box.fill(text)
    send.click()


def node(view, name):
    """A node of the tree."""
    return view.locator(f'[role="treeitem"][data-id="{name}"]')


def arrived(view):
    """Tokens of the answer under way, as the page counts them."""
    line = view.locator(".kforge-calls li")
    words = line.first.inner_text() if line.count() else ""
    count = words.partition(" tokens")[0].rpartition(" ")[2]
    return int(count) if count.isdigit() else 0
