"""A real IPython kernel in a process of its own, and what its cells answer."""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

REPOSITORY = Path(__file__).parents[2]


@dataclass
class Reply:
    """Everything one cell produced."""

    status: str = "aborted"
    stdout: str = ""
    stderr: str = ""
    outputs: list[dict[str, Any]] = field(default_factory=list)
    displays: list[str] = field(default_factory=list)
    updates: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The text of the last result or display."""
        return self.outputs[-1].get("text/plain", "") if self.outputs else ""


class Kernel:
    """One kernel: ``run`` executes a cell and waits for its end.

    ``packages`` is a folder that comes first on the kernel's path, such as another ipykernel.
    ``seen`` holds every message that was read on IOPub.
    """

    def __init__(self, folder: Path, home: Path, packages: Path | None = None) -> None:
        self.seen: list[dict[str, Any]] = []
        first = [str(packages)] if packages is not None else []
        path = [*first, str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "KFORGE_HOME": str(home),
            "PYTHONPATH": os.pathsep.join(path),
            "IPYTHONDIR": str(folder / ".ipython"),
            "OMP_NUM_THREADS": "2",
        }
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder), env=environment)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.pid: int = int(self.run("import os; os.getpid()").text)

    def run(self, code: str, timeout: float = 120.0) -> Reply:
        """Executes a cell; AssertionError when it takes longer than ``timeout`` seconds."""
        begun = time.monotonic()
        return self.answer(self.client.execute(code), timeout, begun)

    def start(self, code: str) -> str:
        """Sends a cell without waiting; ``answer`` collects it."""
        return self.client.execute(code)

    def await_output(self, message_id: str, text: str, timeout: float = 120.0) -> None:
        """Waits until a cell that was started has printed ``text``, so it is surely running."""
        deadline = time.monotonic() + timeout
        while True:
            message = self._heard(deadline - time.monotonic())
            mine = message["parent_header"].get("msg_id") == message_id
            if mine and message["msg_type"] == "stream" and text in message["content"]["text"]:
                return

    def answer(self, message_id: str, timeout: float = 120.0, begun: float | None = None) -> Reply:
        """What the cell with this message id produced."""
        begun = time.monotonic() if begun is None else begun
        reply = Reply()
        while True:
            left = timeout - (time.monotonic() - begun)
            assert left > 0, f"the cell did not end within {timeout} s: {reply}"
            message = self._heard(left)
            if self._take(message, message_id, reply):
                break
        reply.status = self._shell_status(message_id, timeout)
        reply.seconds = time.monotonic() - begun
        return reply

    def _heard(self, timeout: float) -> dict[str, Any]:
        """The next message on IOPub."""
        self.seen.append(self.client.get_iopub_msg(timeout=timeout))
        return self.seen[-1]

    def listen(self, wanted: Callable[[list[dict[str, Any]]], Any], timeout: float = 20.0) -> Any:
        """Reads on until what was heard, from now or before, is what is wanted; returns that."""
        deadline = time.monotonic() + timeout
        while not (found := wanted(self.seen)):
            left = deadline - time.monotonic()
            assert left > 0, f"waited {timeout} s; the last messages were {self.seen[-5:]}"
            with contextlib.suppress(queue.Empty):
                self._heard(min(left, 0.5))
        return found

    def comms(self) -> list[str]:
        """Ids of the comms of run widgets, in the order in which they were opened."""
        opened = [m["content"] for m in self.seen if m["msg_type"] == "comm_open"]
        return [m["comm_id"] for m in opened if "command" in m["data"].get("state", {})]

    def press(self, comm: str, subshell: str | None = None, **state: Any) -> None:
        """What a front end sends when a page changes a trait, over a subshell if so wished."""
        self.send(comm, {"method": "update", "state": state, "buffer_paths": []}, subshell)

    def send(self, comm: str, data: Any, subshell: str | None = None) -> None:
        """A comm message on the shell channel."""
        message = self.client.session.msg("comm_msg", {"comm_id": comm, "data": data})
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)

    def subshell(self, timeout: float = 20.0) -> str | None:
        """A new subshell, as JupyterLab makes one for comms; None where the kernel has none."""
        info = self.client.kernel_info(reply=True, timeout=timeout)
        if "kernel subshells" not in info["content"].get("supported_features", []):
            return None
        return str(self._control("create_subshell_request", {}, timeout)["subshell_id"])

    def end_subshell(self, subshell: str, timeout: float = 20.0) -> None:
        """Deletes a subshell, as JupyterLab does with the last comm that used it."""
        self._control("delete_subshell_request", {"subshell_id": subshell}, timeout)

    def _control(self, kind: str, content: dict[str, Any], timeout: float) -> dict[str, Any]:
        """What the kernel answers a request on the control channel."""
        asked = self.client.session.msg(kind, content)
        self.client.control_channel.send(asked)
        while True:
            reply = self.client.get_control_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") == asked["header"]["msg_id"]:
                assert reply["content"]["status"] == "ok", reply
                return dict(reply["content"])

    def _take(self, message: dict[str, Any], message_id: str, reply: Reply) -> bool:
        """Adds a message to the reply; True when the cell has ended."""
        kind, content = message["msg_type"], message["content"]
        if kind == "update_display_data":
            reply.updates.append(content)
        if message["parent_header"].get("msg_id") != message_id:
            return False
        if kind == "stream":
            name = content["name"]
            setattr(reply, name, getattr(reply, name) + content["text"])
        elif kind in {"execute_result", "display_data"}:
            reply.outputs.append(content["data"])
            reply.displays.append(content.get("transient", {}).get("display_id", ""))
        elif kind == "error":
            reply.error = f"{content['ename']}: {content['evalue']}"
        return kind == "status" and content["execution_state"] == "idle"

    def _shell_status(self, message_id: str, timeout: float) -> str:
        while True:
            message = self.client.get_shell_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") == message_id:
                return str(message["content"]["status"])

    def interrupt(self) -> None:
        """What the Interrupt button does: SIGINT to the kernel's process group."""
        self.manager.interrupt_kernel()

    def kill(self) -> None:
        """Kill -9: the kernel gets no chance to tidy up."""
        self.manager.shutdown_kernel(now=True)

    def close(self) -> None:
        """Ends the kernel and its channels."""
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Caches and registry of all test kernels, apart from those of the user."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def kernel_class() -> type[Kernel]:
    """For tests that start kernels in their own way."""
    return Kernel


@pytest.fixture
def start_kernel(tmp_path: Path, home: Path) -> Iterator[Callable[[], Kernel]]:
    """Starts kernels in one empty folder; they end with the test."""
    kernels: list[Kernel] = []

    def start() -> Kernel:
        kernels.append(Kernel(tmp_path, home))
        return kernels[-1]

    yield start
    for kernel in kernels:
        kernel.close()


@pytest.fixture(scope="module")
def module_kernel(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Kernel]:
    """One kernel with the extension loaded, for all tests of a file."""
    made = Kernel(tmp_path_factory.mktemp("kernel"), home)
    assert made.run("%load_ext kforge_nb").status == "ok"
    yield made
    made.close()


@pytest.fixture
def kernel(start_kernel: Callable[[], Kernel]) -> Kernel:
    """One kernel with the extension loaded."""
    made = start_kernel()
    assert made.run("%load_ext kforge_nb").status == "ok"
    return made


@pytest.fixture
def wait_for() -> Callable[..., Any]:
    """Polls a condition until it holds; AssertionError names what never came."""
    return _wait_for


def _wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Polls a condition until it holds; AssertionError names what never came."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.1)
    return found
