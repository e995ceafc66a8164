"""A real IPython kernel in a process of its own, and what its cells answer."""

from __future__ import annotations

import os
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
    updates: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The text of the last result or display."""
        return self.outputs[-1].get("text/plain", "") if self.outputs else ""


class Kernel:
    """One kernel: ``run`` executes a cell and waits for its end."""

    def __init__(self, folder: Path, home: Path) -> None:
        environment = {
            **os.environ,
            "KFORGE_HOME": str(home),
            "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
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
            message = self.client.get_iopub_msg(timeout=deadline - time.monotonic())
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
            message = self.client.get_iopub_msg(timeout=left)
            if self._take(message, message_id, reply):
                break
        reply.status = self._shell_status(message_id, timeout)
        reply.seconds = time.monotonic() - begun
        return reply

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
