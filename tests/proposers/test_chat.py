"""The client of an endpoint over real HTTP: what it sends, what it takes, and how it is ended."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kforge_nb.errors import BadInput
from kforge_nb.proposers.chat import OFFICIAL, Chat, ChatFailed, Timing, Usage
from kforge_nb.proposers.prompting import Prompt
from kforge_nb.proposers.stream import Received, StreamError, usage_of
from kforge_nb.proposers.trouble import from_status, retry_after, scrubbed
from tests.proposers.loopback import Exchange, Loopback, answer, as_json, held, status
from tests.proposers.talk import KEY, chat_to

pytestmark = pytest.mark.usefixtures("endpoint_environment")

ROOT = Path(__file__).resolve().parents[2]
PROMPT = Prompt("1", "cpp", ({"role": "system", "content": "rules"},
                             {"role": "user", "content": "task"}))  # fmt: skip


def test_what_is_sent() -> None:
    """Messages, limits and options, with the key in the header and nowhere else."""
    with Loopback([answer("hello")]) as server:
        chat = chat_to(server, temperature=0.3, reasoning_effort="low")
        chat.complete(PROMPT, max_tokens=77)
        chat.close()
        body, headers = server.requests[0], server.headers[0]
    assert body["model"] == "loopback-1"
    assert body["messages"] == list(PROMPT.messages)
    assert body["max_tokens"] == 77
    assert (body["temperature"], body["reasoning_effort"]) == (0.3, "low")
    assert body["stream"] is True
    assert headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in str(body)


def test_options_that_were_not_given_are_not_sent() -> None:
    """An endpoint's own defaults stand."""
    with Loopback([answer("hello")]) as server:
        chat = chat_to(server)
        chat.complete(PROMPT, max_tokens=5)
        chat.close()
        assert set(server.requests[0]) == {
            "model", "messages", "stream", "max_tokens", "stream_options"
        }  # fmt: skip


def test_text_arrives_piece_by_piece() -> None:
    """Pieces are handed on before the answer is over, in order."""
    first = threading.Event()

    def step(exchange: Exchange) -> None:
        exchange.begin()
        exchange.piece("one ")
        assert first.wait(20), "the first piece must be handed on before the second is sent"
        exchange.piece("two")
        exchange.finish()

    pieces: list[str] = []

    def on_text(piece: str) -> None:
        pieces.append(piece)
        first.set()

    with Loopback([step]) as server:
        chat = chat_to(server)
        reply = chat.complete(PROMPT, max_tokens=5, on_text=on_text)
        chat.close()
    assert pieces == ["one ", "two"]
    assert reply.text == "one two"
    assert reply.finish == "stop"


def test_usage_with_its_details() -> None:
    """Cached and reasoning tokens are told apart, and the model that answered is named."""
    usage = {
        "prompt_tokens": 900, "completion_tokens": 80,
        "prompt_tokens_details": {"cached_tokens": 600},
        "completion_tokens_details": {"reasoning_tokens": 50},
    }  # fmt: skip
    with Loopback([answer("x", usage=usage)]) as server:
        chat = chat_to(server)
        reply = chat.complete(PROMPT, max_tokens=5)
        chat.close()
    assert reply.usage == Usage(900, 600, 80, 50, estimated=False, model="loopback-1")
    assert (reply.attempts, reply.lost) == (1, 0)


def test_reasoning_is_no_part_of_the_answer() -> None:
    """Reasoning in a field of its own is counted while it arrives and left out of the text."""
    pieces: list[str] = []
    with Loopback([answer("the answer", thought="hm, hm")]) as server:
        chat = chat_to(server)
        reply = chat.complete(PROMPT, max_tokens=5, on_text=pieces.append)
        chat.close()
    assert reply.text == "the answer"
    assert pieces[0] == "hm, hm"


def test_a_server_that_does_not_stream() -> None:
    """One JSON document is an answer too."""
    with Loopback([as_json("whole")]) as server:
        chat = chat_to(server)
        reply = chat.complete(PROMPT, max_tokens=5)
        chat.close()
    assert reply.text == "whole"
    assert reply.usage is not None
    assert reply.usage.tokens_out == 200


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("temperature", "Unsupported value: 'temperature' does not support 0.3 with this model."),
        ("reasoning_effort", "Unrecognized request argument supplied: reasoning_effort"),
        ("stream_options", "stream_options is not supported"),
    ],
)
def test_an_option_that_the_endpoint_does_not_know_is_left_out(option: str, message: str) -> None:
    """The request is made again without it, the reply says so, and it is not sent again."""
    script = [status(400, message, param=option), answer("a"), answer("b")]
    with Loopback(script) as server:
        chat = chat_to(server, temperature=0.3, reasoning_effort="high", attempts=1)
        reply = chat.complete(PROMPT, max_tokens=5)
        chat.complete(PROMPT, max_tokens=5)
        chat.close()
        assert [option in body for body in server.requests] == [True, False, False]
        assert all("max_tokens" in body for body in server.requests)
    assert option in reply.notes[0]
    assert reply.lost == 0


def test_the_limit_of_tokens_is_renamed_but_never_left_out() -> None:
    """An endpoint that wants max_completion_tokens gets it: an answer always has a limit."""
    message = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    with Loopback([status(400, message, param="max_tokens"), answer("a")]) as server:
        chat = chat_to(server, attempts=1)
        chat.complete(PROMPT, max_tokens=5)
        chat.close()
        assert server.requests[1]["max_completion_tokens"] == 5
        assert "max_tokens" not in server.requests[1]


def test_an_endpoint_that_refuses_every_option_is_given_up() -> None:
    """Options are left out a few times, not for ever."""
    step = status(400, "no", param="max_tokens")
    with Loopback(otherwise=step) as server:
        chat = chat_to(server)
        with pytest.raises(ChatFailed):
            chat.complete(PROMPT, max_tokens=5)
        chat.close()
        assert len(server.requests) == 5


def test_several_calls_at_once() -> None:
    """Threads that ask at the same time wait for their own answers only."""
    gate = threading.Barrier(3, timeout=20)

    def step(exchange: Exchange) -> None:
        gate.wait()  # all three requests are there before any is answered
        answer(exchange.body["messages"][1]["content"])(exchange)

    found: dict[str, str] = {}

    def ask(name: str) -> None:
        messages = ({"role": "system", "content": "s"}, {"role": "user", "content": name})
        found[name] = chat.complete(Prompt("1", "cpp", messages), max_tokens=5).text

    with Loopback(otherwise=step) as server:
        chat = chat_to(server)
        threads = [threading.Thread(target=ask, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        chat.close()
    assert found == {"a": "a", "b": "b", "c": "c"}


def test_close_ends_calls_under_way() -> None:
    """Whoever waits learns that the call was stopped; the endpoint sees the connection go."""
    with Loopback([held("x")]) as server:
        chat = chat_to(server)
        found: list[BaseException] = []

        def ask() -> None:
            try:
                chat.complete(PROMPT, max_tokens=5)
            except ChatFailed as failed:
                found.append(failed)

        thread = threading.Thread(target=ask)
        thread.start()
        assert server.arrived.wait(20)
        chat.close()
        thread.join(10)
        assert not thread.is_alive()
        assert server.hung_up.wait(10)
        with pytest.raises(ChatFailed):
            chat.complete(PROMPT, max_tokens=5)
    assert isinstance(found[0], ChatFailed)
    assert (found[0].kind, found[0].lost) == ("cancelled", 1)


def test_no_key_for_the_official_endpoint(endpoint_environment: pytest.MonkeyPatch) -> None:
    """It is said before the first call, with both ways out; another endpoint needs no key."""
    endpoint_environment.delenv("OPENAI_API_KEY")
    with pytest.raises(BadInput, match=r"OPENAI_API_KEY.*OPENAI_BASE_URL"):
        Chat("some-model")
    with Loopback([answer("x")]) as server:
        endpoint_environment.setenv("OPENAI_BASE_URL", server.url)
        chat = Chat("some-model")
        assert chat.complete(PROMPT, max_tokens=5).text == "x"
        chat.close()


def test_the_address_is_checked_and_shown_without_secrets() -> None:
    """What is no address is refused; user names and passwords in one are never shown."""
    with pytest.raises(BadInput, match="OPENAI_BASE_URL"):
        Chat("m", base_url="localhost:8000")
    assert Chat("m", base_url="https://me:secret@example.com:81/v1?k=v").where == "example.com:81"
    assert Chat("m", base_url=OFFICIAL)._limit_name == "max_completion_tokens"


def test_openai_is_imported_only_when_it_is_used() -> None:
    """Importing the proposer, or making its client, loads no openai."""
    code = (
        "import os, sys; os.environ['OPENAI_API_KEY'] = 'k'\n"
        "from kforge_nb.proposers import openai as ours\n"
        "from kforge_nb.proposers.chat import Chat\n"
        "Chat('m')\n"
        "assert 'openai' not in sys.modules and 'httpx' not in sys.modules, 'loaded too early'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# -- the parts, without a network ------------------------------------------------------------------


def test_bytes_may_come_in_any_pieces() -> None:
    """Lines and letters may be torn anywhere."""
    stream = (
        'event: x\ndata: {"choices": [{"delta": {"content": "ä€"}}]}\r\n\r\n'
        ': comment\ndata: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]'
    ).encode()
    for size in (1, 2, 3, 7, 1000):
        got = Received(1000)
        for at in range(0, len(stream), size):
            got.feed(stream[at : at + size])
        got.end()
        assert (got.text, got.finish, got.done) == ("ä€", "stop", True)


@pytest.mark.parametrize(
    "event",
    ["[]", "3", '{"choices": 7}', '{"choices": [7]}', '{"choices": [{"delta": 7}]}',
     '{"choices": [{"delta": {"content": 7}}]}', '{"choices": [{"delta": null}]}'],
)  # fmt: skip
def test_other_types_than_promised_are_no_text(event: str) -> None:
    """Whatever JSON comes, there is an error in words or no text."""
    got = Received(1000)
    with contextlib.suppress(StreamError):
        got.feed(f"data: {event}\n".encode())
    assert got.text == ""


def test_an_error_in_the_stream_is_one() -> None:
    """Endpoints report trouble in mid-stream as an event."""
    got = Received(1000)
    with pytest.raises(StreamError, match="overloaded") as caught:
        got.feed(b'data: {"error": {"message": "overloaded"}}\n')
    assert caught.value.kind == "server"


@pytest.mark.parametrize(
    "data",
    [None, [], {"prompt_tokens": 3}, {"prompt_tokens": 3, "completion_tokens": 2.5},
     {"prompt_tokens": 1 << 40, "completion_tokens": 1}],
    ids=str,
)  # fmt: skip
def test_what_is_no_usage_is_none(data: object) -> None:
    """Half a usage, fractions and impossible numbers are not booked."""
    assert usage_of(data) is None


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (400, "maximum context length is 8192 tokens", "too_long"),
        (400, "the request exceeds the available context size", "too_long"),
        (400, "prompt is too long: 9000 tokens > 8000 maximum", "too_long"),
        (413, "too large", "too_long"),
        (422, "bad field", "request"),
        (409, "conflict", "server"),
        (418, "teapot", "request"),
    ],
)
def test_what_a_status_means(code: int, message: str, kind: str) -> None:
    """Each status has one kind, and its message names where it came from."""
    failed = from_status(code, {"error": {"message": message}}, {}, "m", "host:1")
    assert failed.kind == kind
    assert "host:1" in str(failed)


def test_a_limit_is_read_from_words_or_fields() -> None:
    """How much fits is said in different ways."""
    said = "This model's maximum context length is 8192 tokens. However, you requested 9000"
    assert from_status(400, {"error": {"message": said}}, {}, "m", "h").limit == 8192
    body = {"error": {"message": "exceeds the available context size", "n_ctx": 4096}}
    assert from_status(400, body, {}, "m", "h").limit == 4096
    assert from_status(400, {"error": {"message": "context length"}}, {}, "m", "h").limit is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("", None),
        ("nan", None),
        ("-1", None),
        ("1e9", None),
        ("Mon, 01 Jan 2024 00:00:00 +99999999999999", None),
        ("Mon, 01 Jan 0001 00:00:00 +2359", 0.0),
    ],
)
def test_retry_after_is_a_number_or_nothing(text: str, seconds: float | None) -> None:
    """What is no number of seconds and no date is as if it were not there."""
    assert retry_after({"retry-after": text}) == seconds


def test_keys_are_scrubbed() -> None:
    """The key itself, and what looks like a part of one."""
    text = scrubbed(f"bad key {KEY}; you sent sk-proj-abcdef****1234 as Bearer abcdefgh", KEY)
    assert KEY not in text
    assert "1234" not in text
    assert "abcdefgh" not in text


def test_a_pause_grows_and_ends() -> None:
    """Attempts are further and further apart, but never beyond the longest pause."""
    timing = Timing(pause=1.0, longest_pause=5.0)
    chat = Chat("m", base_url="http://localhost:1/v1", timing=timing)
    failed = ChatFailed("server", "x")
    pauses = [chat._pause(failed, attempt) for attempt in (1, 2, 3, 4, 10)]
    assert 1 <= pauses[0] <= 1.25
    assert 2 <= pauses[1] <= 2.5
    assert all(p <= 6.25 for p in pauses)
