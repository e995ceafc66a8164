"""An OpenAI-compatible server on loopback, over real HTTP, that does as a script says.

Each request takes the next step of the script; when it is used up, ``otherwise`` answers. A step
is a function of an :class:`Exchange`: the functions of this module make the usual ones, honest
answers and faults. What was asked is kept in ``requests``. Nothing here waits for time to pass: a
step that never answers waits until its client is gone, or the server is closed.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = [
    "CERTIFICATE",
    "Exchange",
    "Loopback",
    "answer",
    "as_json",
    "cut",
    "garbled",
    "held",
    "no_choices",
    "silent",
    "status",
]

CERTIFICATE = Path(__file__).parent / "certificates" / "loopback.pem"
KEY = CERTIFICATE.with_suffix(".key")

Step = Callable[["Exchange"], None]
USAGE = {"prompt_tokens": 1000, "completion_tokens": 200}


@dataclass(slots=True)
class Exchange:
    """One request with the means to answer it."""

    handler: BaseHTTPRequestHandler
    body: dict[str, Any]
    server: Loopback
    headers: dict[str, str] = field(default_factory=dict)

    def begin(self, kind: str = "text/event-stream", code: int = 200, **headers: str) -> None:
        """Status and headers; the connection ends with the answer."""
        self.handler.send_response(code)
        self.handler.send_header("content-type", kind)
        self.handler.send_header("connection", "close")
        for name, value in headers.items():
            self.handler.send_header(name.replace("_", "-"), value)
        self.handler.end_headers()
        self.handler.close_connection = True

    def event(self, data: Any) -> None:
        """One event of the stream."""
        text = data if isinstance(data, str) else json.dumps(data)
        self.handler.wfile.write(f"data: {text}\n\n".encode())
        self.handler.wfile.flush()

    def piece(self, content: str, **more: Any) -> None:
        """One piece of the answer."""
        delta = {"content": content, **more}
        self.event({"model": "loopback-1", "choices": [{"index": 0, "delta": delta}]})

    def finish(self, reason: str = "stop", usage: dict[str, Any] | None = USAGE) -> None:
        """Why it ended, the usage, and the end."""
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if usage is not None:
            self.event({"choices": [], "usage": usage})
        self.event("[DONE]")

    def wait_until_gone(self) -> None:
        """Returns when the client has hung up or the server is closed."""
        with self.server.lock:
            self.server.waiting.append(self.handler.connection)
        try:
            self.handler.connection.recv(1)
        except OSError:
            pass
        finally:
            self.server.hung_up.set()


class Loopback:
    """The server; a context manager.

    Args:
        script: steps for the first requests, in order.
        otherwise: the step for all further ones.
        tls: speak HTTPS with the tests' own certificate.

    A ``CONNECT`` makes it the proxy that opens up TLS with that certificate, and answers itself.
    """

    def __init__(
        self, script: Iterable[Step] = (), *, otherwise: Step | None = None, tls: bool = False
    ) -> None:
        self.lock = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.arrived = threading.Event()
        self.hung_up = threading.Event()
        self.connects = 0
        self.waiting: list[socket.socket] = []
        self._script = list(script)
        self._otherwise = otherwise or status(500, "the script has no more steps")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(CERTIFICATE, KEY)
        self._http = _Server(("127.0.0.1", 0), _handler_of(self))
        if tls:
            self._http.socket = self._context.wrap_socket(self._http.socket, server_side=True)
        self._scheme = "https" if tls else "http"
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """What goes into ``OPENAI_BASE_URL``."""
        return f"{self._scheme}://127.0.0.1:{self.port}/v1"

    def step(self) -> Step:
        """The next step."""
        with self.lock:
            return self._script.pop(0) if self._script else self._otherwise

    def close(self) -> None:
        """Ends it, and whatever still waits for its client."""
        with self.lock:
            waiting, self.waiting = self.waiting, []
        for connection in waiting:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are what these tests are about."""


def _handler_of(server: Loopback) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            Exchange(self, {}, server).begin("application/json")
            self.wfile.write(b'{"object": "list", "data": [{"id": "loopback-1"}]}')

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            headers = {name.lower(): value for name, value in self.headers.items()}
            with server.lock:
                server.requests.append(body)
                server.headers.append(headers)
            server.arrived.set()
            try:
                server.step()(Exchange(self, body, server, headers))
            except OSError:
                server.hung_up.set()  # the client is gone while it is written to
                self.close_connection = True

        def do_CONNECT(self) -> None:
            with server.lock:
                server.connects += 1
            self.send_response(200, "go on")
            self.end_headers()
            self.connection = server._context.wrap_socket(self.connection, server_side=True)
            self.rfile = self.connection.makefile("rb")
            self.wfile = self.connection.makefile("wb")
            self.close_connection = False

    return Handler


# -- honest answers ------------------------------------------------------------------------------


def answer(
    text: str,
    *,
    finish: str = "stop",
    usage: dict[str, Any] | None = USAGE,
    thought: str = "",
    size: int = 24,
) -> Step:
    """Streams a text in pieces of ``size`` characters, after reasoning if there is any."""

    def step(exchange: Exchange) -> None:
        exchange.begin()
        if thought:
            exchange.piece("", reasoning_content=thought)
        for at in range(0, len(text), size):
            exchange.piece(text[at : at + size])
        exchange.finish(finish, usage)

    return step


def as_json(text: str) -> Step:
    """One JSON document, as servers answer that do not stream."""

    def step(exchange: Exchange) -> None:
        choice = {"message": {"content": text}, "finish_reason": "stop"}
        body = json.dumps({"model": "loopback-1", "choices": [choice], "usage": USAGE}).encode()
        exchange.begin("application/json", content_length=str(len(body)))
        exchange.handler.wfile.write(body)

    return step


# -- faults --------------------------------------------------------------------------------------


def status(code: int, message: str = "no", /, *, headers: dict[str, str] | None = None,
           **error: Any) -> Step:  # fmt: skip
    """An HTTP error with a body as OpenAI's."""

    def step(exchange: Exchange) -> None:
        body = json.dumps({"error": {"message": message, **error}}).encode()
        named = {k.replace("-", "_"): v for k, v in (headers or {}).items()}
        exchange.begin("application/json", code, content_length=str(len(body)), **named)
        exchange.handler.wfile.write(body)

    return step


def cut(text: str) -> Step:
    """Part of an answer, then the connection is gone in the middle of a chunk."""

    def step(exchange: Exchange) -> None:
        handler = exchange.handler
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        event = {"choices": [{"index": 0, "delta": {"content": text}}]}
        data = f"data: {json.dumps(event)}\n\n".encode()
        handler.wfile.write(b"%x\r\n%s\r\nfff\r\n" % (len(data), data))
        handler.wfile.flush()
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    return step


def silent(exchange: Exchange) -> None:
    """Never answers."""
    exchange.wait_until_gone()


def held(text: str) -> Step:
    """Streams a text and then nothing more."""

    def step(exchange: Exchange) -> None:
        exchange.begin()
        exchange.piece(text)
        exchange.wait_until_gone()

    return step


def no_choices(exchange: Exchange) -> None:
    """A stream whose choices are empty from beginning to end."""
    exchange.begin()
    exchange.event({"choices": []})
    exchange.event({"choices": [], "usage": USAGE})
    exchange.event("[DONE]")


def garbled(exchange: Exchange) -> None:
    """What is no JSON."""
    exchange.begin()
    exchange.event("{not json")
