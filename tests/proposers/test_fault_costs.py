"""What calls that went wrong cost, and what an endpoint may send that no key or store may hold."""

from __future__ import annotations

import threading

import pytest

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.errors import BadInput
from kforge_nb.proposers.chat import Chat, ChatFailed
from kforge_nb.proposers.prompting import Prompt
from kforge_nb.proposers.protocol import Failure, Refusal
from kforge_nb.proposers.stream import Received, paired
from kforge_nb.proposers.trouble import SHOWN, from_status, scrubbed
from tests.proposers import loopback
from tests.proposers.loopback import Exchange, Loopback, answer, held, status
from tests.proposers.talk import GOOD, HURRY, KEY, Talk, chat_to
from tests.proposers.test_faults import PAID, only

pytestmark = pytest.mark.usefixtures("endpoint_environment")

PROMPT = Prompt("1", "cpp", ({"role": "user", "content": "task"},))


@pytest.mark.parametrize("code", [408, 502, 504, 520, 522, 524])
def test_a_gateway_that_gave_up_is_counted(code: int) -> None:
    """Behind a gateway the model may have worked on, so such an attempt counts at its worst."""
    script = [status(code), status(code), answer(GOOD)]
    with Loopback(script) as server, Talk(server) as talk:
        assert isinstance(talk.propose(), Candidate)
        assert len(server.requests) == 3
    assert only(talk)["usd"] == pytest.approx(PAID + 2 * talk.worst())
    assert talk.ledger.reserved == 0


def test_an_answer_beyond_its_limit_of_tokens_is_cut_off() -> None:
    """An endpoint that takes no notice of max_tokens is not listened to much longer."""
    with Loopback([answer("x" * 3_100)]) as server, Talk(server, max_tokens=500) as talk:
        found = talk.propose()
        assert isinstance(found, Failure)
        assert "3000 characters" in found.reason
    with Loopback([answer("x" * 2_900)]) as server, Talk(server, max_tokens=500) as talk:
        found = talk.propose(node="0.2")
    assert "cut off" not in found.reason


def test_stop_keeps_what_earlier_attempts_were_told_to_cost() -> None:
    """The price of an attempt without a choice stays booked when the next one is stopped."""
    script = [loopback.no_choices, held("IDEA: a long")]
    with Loopback(script) as server, Talk(server, timing=HURRY) as talk:
        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(talk.propose()))
        thread.start()
        assert talk.streaming.wait(20)
        talk.stop.set()
        thread.join(5)
        assert not thread.is_alive()
    assert isinstance(found[0], Refusal)
    assert only(talk)["usd"] == pytest.approx(PAID + talk.worst())
    assert only(talk)["usage"].tokens_in == 1000


def test_an_interrupt_keeps_what_earlier_attempts_were_told_to_cost() -> None:
    """Ctrl-C in the second attempt books the first at its price and the second at its worst."""
    script = [loopback.no_choices, held("IDEA: a long")]
    with Loopback(script) as server, Talk(server, timing=HURRY) as talk:

        class Interrupting:
            def is_set(self) -> bool:
                if talk.streaming.is_set():
                    raise KeyboardInterrupt
                return False

        talk.proposer._stop = Interrupting()
        with pytest.raises(KeyboardInterrupt):
            talk.propose()
        talk.proposer._stop = talk.stop
    assert only(talk)["usd"] == pytest.approx(PAID + talk.worst())


# -- texts that no store can hold ----------------------------------------------------------------


def test_halves_of_a_character_are_joined_over_pieces() -> None:
    """A pair that a stream tears in two is one sign; a half that stays alone is replaced."""
    got = Received(1000)
    for half in (r"\ud83d", r"\ude00", r"\ud83d", "!"):
        got.feed(f'data: {{"choices": [{{"delta": {{"content": "{half}"}}}}]}}\n'.encode())
    assert got.text == "\U0001f600\ufffd!"
    assert paired("plain é\ufeff") == "plain é\ufeff"


@pytest.mark.parametrize(
    "step",
    [answer(GOOD.replace("one pass", "one \ud83d pass")), status(400, "no \ud83d", code="\udc00")],
    ids=["answer", "error"],
)
def test_halves_of_a_character_reach_no_record(step: loopback.Step) -> None:
    """Whatever is written down of a call can be written as UTF-8."""
    with Loopback([step]) as server, Talk(server, attempts=1) as talk:
        found = talk.propose()
    assert isinstance(found, Candidate | Refusal)
    row = only(talk)
    assert "\ufffd" in row["answer"] + row["problem"]
    assert (row["answer"] + row["problem"] + str(found)).encode()


# -- what is shown, and what is read -------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", " \r\n", "\t"])
def test_a_key_with_space_around_it_is_the_key(
    endpoint_environment: pytest.MonkeyPatch, end: str
) -> None:
    """A key that was read from a file with its line break works, without the break."""
    endpoint_environment.setenv("OPENAI_API_KEY", f" {KEY}{end}")
    with Loopback([answer(GOOD)]) as server, Talk(server) as talk:
        assert isinstance(talk.propose(), Candidate)
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("inner", ["\n", " ", "\x1b", "é", "\u200b"])
def test_a_key_that_no_header_can_carry_is_refused_unshown(
    endpoint_environment: pytest.MonkeyPatch, inner: str
) -> None:
    """It is said before any call, in words that hold no part of it."""
    endpoint_environment.setenv("OPENAI_API_KEY", f"{KEY[:12]}{inner}{KEY[12:]}")
    with pytest.raises(BadInput, match="OPENAI_API_KEY") as caught:
        Chat("m", base_url="http://localhost:1/v1")
    assert not any(part in str(caught.value) for part in (KEY[:12], KEY[12:]))


@pytest.mark.parametrize("before", range(SHOWN - len(KEY) - 2, SHOWN + 1, 5))
def test_a_key_at_the_cut_of_a_message_is_scrubbed(before: int) -> None:
    """Messages are scrubbed before they are cut, so no beginning of a key is left."""
    key = KEY.replace("-", "")  # nothing that looks like a key by itself
    said = {"error": {"message": "x" * before + key}}
    assert key[:2] not in str(from_status(400, said, {}, "m", "h", key))


@pytest.mark.parametrize(
    "token", ["sk-ab/cd+ef==gh:ij", "Bearer ab/cd.ef~gh|ij", "gsk_abcdef%20gh"]
)
def test_what_looks_like_a_key_is_masked_whole(token: str) -> None:
    """No tail of a token stays behind the first odd sign of it."""
    assert scrubbed(f"you sent '{token}', which is wrong", "") == (
        "you sent '[key]', which is wrong"
    )


def test_an_answer_without_end_that_does_not_stream_is_cut_off() -> None:
    """One JSON document is read piece by piece, and no further than any stream."""

    def endless(exchange: Exchange) -> None:
        exchange.begin("application/json")
        try:
            while True:
                exchange.handler.wfile.write(b" " * 65536)
        except OSError:
            exchange.server.hung_up.set()

    with Loopback([endless]) as server:
        chat = chat_to(server, attempts=1)
        with pytest.raises(ChatFailed, match="MiB") as caught:
            chat.complete(PROMPT, max_tokens=5)
        assert server.hung_up.wait(20), "the rest is not waited for"
        chat.close()
    assert (caught.value.kind, caught.value.lost) == ("oversized", 1)
