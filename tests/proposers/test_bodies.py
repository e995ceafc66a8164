"""Bodies of errors and redirections are read only as far as anyone looks at them."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest

from kforge_nb.proposers.bodies import MOST_BYTES
from kforge_nb.proposers.chat import ChatFailed
from kforge_nb.proposers.prompting import Prompt
from tests.proposers.loopback import Exchange, Loopback, Step, status
from tests.proposers.talk import chat_to

pytestmark = pytest.mark.usefixtures("endpoint_environment")

LARGE, PIECE = 50 << 20, 64 << 10
FEW = 6 << 20
PROMPT = Prompt("1", "cpp", ({"role": "user", "content": "hello"},))


def flood(code: int, sent: list[int], start: bytes = b'{"error": {"message": "no', **more: str):
    """50 MB with a status; ``sent`` counts what the client let the server get rid of."""

    def step(exchange: Exchange) -> None:
        length = str(len(start) + LARGE)
        exchange.begin("application/json", code, content_length=length, **more)
        exchange.handler.wfile.write(start)
        for _ in range(LARGE // PIECE):
            exchange.handler.wfile.write(b"o" * PIECE)
            sent.append(PIECE)

    return step


def failure(step: Step) -> tuple[ChatFailed, int]:
    """What a single attempt comes to, and the most memory that it took, in bytes."""
    with Loopback([step]) as server:
        chat = chat_to(server, attempts=1)
        chat._submit(_nothing()).result(10)  # imports and the client are not counted
        tracemalloc.start()
        try:
            with pytest.raises(ChatFailed) as caught:
                chat.complete(PROMPT, max_tokens=100)
            return caught.value, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            chat.close()


async def _nothing() -> None:
    return None


@pytest.mark.parametrize(
    ("code", "kind", "more"),
    [(400, "request", {}), (500, "server", {}), (429, "rate", {}),
     (307, "server", {"location": "/v1/elsewhere"})],
)  # fmt: skip
def test_a_huge_body_of_an_error_is_not_read_whole(code: int, kind: str, more: dict) -> None:
    """50 MB with an error take little memory, the connection is closed, and the kind is known."""
    sent: list[int] = []
    failed, peak = failure(flood(code, sent, **more))
    assert failed.kind == kind, failed
    assert peak < FEW
    assert sum(sent) < LARGE / 2
    assert len(str(failed)) < 2000


def test_a_small_packed_body_of_an_error_is_not_unpacked() -> None:
    """50 KB that hold 50 MB stay 50 KB: the status says enough."""
    packed = gzip.compress(b"o" * LARGE)
    assert len(packed) < MOST_BYTES

    def step(exchange: Exchange) -> None:
        length = str(len(packed))
        exchange.begin("text/plain", 503, content_encoding="gzip", content_length=length)
        exchange.handler.wfile.write(packed)

    failed, peak = failure(step)
    assert failed.kind == "server"
    assert peak < FEW


def test_the_words_of_an_ordinary_error_are_still_read() -> None:
    """What fits is read to its end, fields and all."""
    words = "the maximum context length is 4096 tokens" + " and so on" * 1000
    failed, _ = failure(status(400, words, code="context_length_exceeded"))
    assert failed.kind == "too_long"
    assert failed.limit == 4096
