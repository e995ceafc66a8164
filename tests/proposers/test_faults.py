"""Faults of an endpoint, each over real HTTP: no money, node or notebook is lost by one."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import signal
import subprocess
import sys
import threading
from email.utils import format_datetime
from pathlib import Path

import pytest

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.errors import BadInput, MissingTool
from kforge_nb.proposers.chat import Timing
from kforge_nb.proposers.protocol import Failure, Refusal
from tests.proposers import loopback
from tests.proposers.loopback import CERTIFICATE, Loopback, answer, cut, held, silent, status
from tests.proposers.talk import GOOD, HURRY, KEY, PRICE, Talk

pytestmark = pytest.mark.usefixtures("endpoint_environment")

ROOT = Path(__file__).resolve().parents[2]
PAID = PRICE.cost(type("U", (), {"tokens_in": 1000, "cached": 0, "tokens_out": 200})()) / 1e12
QUICK = Timing(connect=5.0, silence=0.2, whole=5.0, pause=0.0)


def only(talk: Talk) -> dict:
    """The one call that was made."""
    assert len(talk.records.begun) == len(talk.records.ended) == 1
    return talk.records.ended[0]


@pytest.mark.parametrize("code", [401, 403])
def test_a_refused_key_ends_the_run_and_costs_nothing(code: int) -> None:
    """It says what to set, never shows the key, and asks only once."""
    said = f"Incorrect API key provided: {KEY}, or sk-tes****cdef"
    with Loopback([status(code, said, code="invalid_api_key")]) as server, Talk(server) as talk:
        with pytest.raises(BadInput, match="OPENAI_API_KEY") as caught:
            talk.propose()
        assert len(server.requests) == 1
    assert KEY not in str(caught.value)
    assert "cdef" not in str(caught.value)
    assert only(talk)["usd"] == talk.ledger.booked == 0
    assert KEY not in only(talk)["problem"]


@pytest.mark.parametrize(
    "step",
    [
        status(404, "The model `x` does not exist", code="model_not_found"),
        status(400, "model 'x' not found, try pulling it first"),
    ],
)
def test_an_unknown_model_ends_the_run_and_names_the_flag(step: loopback.Step) -> None:
    """Nothing is asked twice, nothing is booked."""
    with Loopback([step]) as server, Talk(server) as talk:
        with pytest.raises(BadInput, match="--model"):
            talk.propose()
        assert len(server.requests) == 1
    assert talk.ledger.booked == 0


def test_an_account_without_money_ends_the_run() -> None:
    """A 429 that no waiting helps is not waited for."""
    step = status(429, "You exceeded your current quota", code="insufficient_quota")
    with Loopback([step]) as server, Talk(server) as talk:
        with pytest.raises(BadInput, match="no money left"):
            talk.propose()
        assert len(server.requests) == 1
    assert talk.ledger.booked == 0


@pytest.mark.parametrize(
    "headers",
    [{}, {"retry-after": "0"}, {"retry-after": "0.01"},
     {"retry-after": format_datetime(dt.datetime(2020, 1, 1, tzinfo=dt.UTC))},
     {"retry-after": "soon"}],
    ids=["none", "zero", "fraction", "past-date", "nonsense"],
)  # fmt: skip
def test_a_busy_endpoint_is_asked_again(headers: dict[str, str]) -> None:
    """After 429, with whatever Retry-After, the next attempt's answer is taken and paid once."""
    script = [status(429, "slow down", headers=headers), answer(GOOD)]
    with Loopback(script) as server, Talk(server) as talk:
        assert isinstance(talk.propose(), Candidate)
        assert len(server.requests) == 2
    assert only(talk)["usd"] == pytest.approx(PAID)


def test_the_wait_that_an_endpoint_asks_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry-After is what is waited for before the next attempt, and not a pause of ours."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float, *rest: object) -> None:
        waits.append(seconds)
        await sleep(0, *rest)

    monkeypatch.setattr("kforge_nb.proposers.chat.asyncio.sleep", noted)
    script = [status(429, "slow down", headers={"retry-after": "7.5"}), status(500), answer(GOOD)]
    with Loopback(script) as server, Talk(server) as talk:
        assert isinstance(talk.propose(), Candidate)
    assert [wait for wait in waits if wait != 0] == [7.5]


def test_too_long_a_wait_is_not_waited_for() -> None:
    """An hour of Retry-After makes it a refusal now; the node stays open for later."""
    step = status(429, "slow down", headers={"retry-after": "3600"})
    with Loopback([step]) as server, Talk(server) as talk:
        found = talk.propose()
        assert len(server.requests) == 1
    assert isinstance(found, Refusal)
    assert not found.exhausted
    assert talk.ledger.booked == 0


@pytest.mark.parametrize("code", [500, 503, 529])
def test_a_server_error_is_tried_again(code: int) -> None:
    """Two failures of the server are bridged by the third attempt."""
    script = [status(code), status(code), answer(GOOD)]
    with Loopback(script) as server, Talk(server) as talk:
        assert isinstance(talk.propose(), Candidate)
        assert len(server.requests) == 3
    assert only(talk)["usd"] == pytest.approx(PAID)


def test_a_server_that_stays_down_ends_the_run_before_long() -> None:
    """Refusals leave nodes open; after three calls in vain the run ends, and it can be resumed."""
    with Loopback(otherwise=status(503, "down")) as server, Talk(server) as talk:
        for _ in range(2):
            found = talk.propose()
            assert isinstance(found, Refusal)
            assert not found.exhausted
        with pytest.raises(MissingTool, match="3 calls in a row"):
            talk.propose()
        assert len(server.requests) == 9
    assert talk.ledger.booked == 0


def test_failures_are_counted_anew_after_an_answer() -> None:
    """Three calls in vain with answers in between do not end the run."""
    down = [status(503)] * 3
    script = [*down, *down, answer(GOOD), *down, *down, answer(GOOD)]
    with Loopback(script) as server, Talk(server) as talk:
        found = [talk.propose() for _ in range(6)]
    assert [isinstance(f, Candidate) for f in found] == [False, False, True] * 2


def test_nobody_at_the_address_costs_nothing() -> None:
    """A port that nobody listens on is said so, with what to look at."""
    with Loopback() as server:
        talk = Talk(server)
    with talk:
        found = talk.propose()
    assert isinstance(found, Refusal)
    assert "OPENAI_BASE_URL" in found.reason
    assert talk.ledger.booked == 0


def test_a_connection_cut_in_mid_stream_is_paid_and_tried_again() -> None:
    """Nobody knows what half an answer cost: its worst case counts beside the whole one's price."""
    with Loopback([cut("IDEA: half"), answer(GOOD)]) as server, Talk(server) as talk:
        assert isinstance(talk.propose(), Candidate)
        assert len(server.requests) == 2
    assert only(talk)["usd"] == pytest.approx(PAID + talk.worst())
    assert "unanswered" in only(talk)["problem"]


def test_an_answer_that_is_always_cut_costs_no_more_than_was_reserved() -> None:
    """All attempts in vain: exactly the reservation is booked, and the node stays open."""
    with Loopback(otherwise=cut("IDEA: half")) as server, Talk(server) as talk:
        found = talk.propose()
        assert len(server.requests) == 3
    assert isinstance(found, Refusal)
    assert not found.exhausted
    assert only(talk)["usd"] == pytest.approx(talk.records.begun[0].worst_usd)
    assert talk.ledger.reserved == 0


def test_a_stream_that_ends_early_without_an_error_is_a_cut_one() -> None:
    """A connection that is closed in order, but before the answer's end, is not an answer."""

    def early(exchange: loopback.Exchange) -> None:
        exchange.begin()
        exchange.piece(GOOD)

    with Loopback([early, answer(GOOD)]) as server, Talk(server) as talk:
        assert isinstance(talk.propose(), Candidate)
        assert len(server.requests) == 2


def test_a_server_that_never_answers_is_given_up_and_counted() -> None:
    """It may have worked on the request, so each silent attempt counts at its worst."""
    with Loopback(otherwise=silent) as server, Talk(server, timing=QUICK, attempts=2) as talk:
        found = talk.propose()
        assert len(server.requests) == 2
    assert isinstance(found, Refusal)
    assert "in time" in found.reason
    assert only(talk)["usd"] == pytest.approx(2 * talk.worst())


def test_a_server_that_dribbles_for_ever_is_given_up() -> None:
    """Bytes that keep coming do not keep a call alive beyond its whole time."""
    gone = threading.Event()

    def dribble(exchange: loopback.Exchange) -> None:
        exchange.begin()
        try:
            while not gone.wait(0.02):
                exchange.piece("x")
        except OSError:
            gone.set()

    short = Timing(connect=5.0, silence=5.0, whole=0.5, pause=0.0)
    with Loopback([dribble]) as server, Talk(server, timing=short, attempts=1) as talk:
        assert isinstance(talk.propose(), Refusal)
        assert gone.wait(10), "the endpoint must see that nobody listens any more"


def test_an_answer_of_a_megabyte_is_cut_off() -> None:
    """It becomes a failed node with its reason; memory and time stay bounded."""
    with Loopback([answer("x" * 1_000_000, size=10_000)]) as server, Talk(server) as talk:
        found = talk.propose()
    assert isinstance(found, Failure)
    assert "cut off" in found.reason
    assert only(talk)["usd"] == pytest.approx(talk.worst())


def test_a_megabyte_within_max_tokens_is_refused_unread() -> None:
    """Where the limits allow it to arrive, the parser does not look at it, and nothing is asked."""
    big = answer("x" * 500_000, size=20_000)
    with Loopback([big]) as server, Talk(server, max_tokens=100_000) as talk:
        found = talk.propose()
        assert len(server.requests) == 1
    assert isinstance(found, Failure)
    assert "500000 characters" in found.reason
    assert len(found.text) < 100_000
    assert only(talk)["usd"] == pytest.approx(PAID)


def test_a_line_without_end_is_cut_off() -> None:
    """A stream that never ends its first line cannot fill the memory."""

    def endless(exchange: loopback.Exchange) -> None:
        exchange.begin()
        try:
            for _ in range(400):
                exchange.handler.wfile.write(b"data: " + b"x" * 65536)
        except OSError:
            return

    with Loopback([endless]) as server, Talk(server, attempts=1) as talk:
        found = talk.propose()
    assert isinstance(found, Failure)
    assert "MiB" in found.reason


def test_empty_choices_are_asked_again() -> None:
    """A stream without a choice is no answer; what it reports of its cost is not lost."""
    with Loopback([loopback.no_choices, answer(GOOD)]) as server, Talk(server) as talk:
        assert isinstance(talk.propose(), Candidate)
        assert len(server.requests) == 2
    assert only(talk)["usd"] == pytest.approx(2 * PAID)


def test_empty_choices_for_ever_are_a_refusal() -> None:
    """All attempts were told their price, and that is what is booked."""
    with Loopback(otherwise=loopback.no_choices) as server, Talk(server) as talk:
        found = talk.propose()
    assert isinstance(found, Refusal)
    assert "without any choice" in found.reason
    assert only(talk)["usd"] == pytest.approx(3 * PAID)


@pytest.mark.parametrize(
    "usage",
    [None, {}, {"prompt_tokens": "many"}, {"prompt_tokens": -5, "completion_tokens": 3},
     {"prompt_tokens": True, "completion_tokens": 3}],
    ids=str,
)  # fmt: skip
def test_a_missing_usage_is_booked_at_its_worst_and_marked(usage: dict | None) -> None:
    """The answer counts; the tokens are estimates and say so; the money is an upper bound."""
    with Loopback([answer(GOOD, usage=usage)]) as server, Talk(server) as talk:
        assert isinstance(talk.propose(), Candidate)
    assert only(talk)["usd"] == pytest.approx(talk.worst())
    assert only(talk)["usage"].estimated
    assert "no usage" in only(talk)["problem"]


def test_a_content_filter_before_the_answer_is_a_failed_node() -> None:
    """The request is refused for its content: a node with that reason, and no cost."""
    step = status(400, "triggered the content management policy", code="content_filter")
    with Loopback([step]) as server, Talk(server) as talk:
        found = talk.propose()
        assert len(server.requests) == 1
    assert isinstance(found, Failure)
    assert "content management policy" in found.reason
    assert talk.ledger.booked == 0


def test_a_content_filter_in_the_answer_is_a_failed_node() -> None:
    """The cut answer is paid, not asked for again, and its reason names the filter."""
    with Loopback([answer("IDEA: a", finish="content_filter")]) as server, Talk(server) as talk:
        found = talk.propose()
        assert len(server.requests) == 1
    assert isinstance(found, Failure)
    assert "content filter" in found.reason
    assert only(talk)["usd"] == pytest.approx(PAID)


def test_an_answer_cut_at_max_tokens_says_so() -> None:
    """Mending its form would only be cut again: one call, and the flag is named."""
    with Loopback([answer(GOOD[:150], finish="length")]) as server, Talk(server) as talk:
        found = talk.propose()
        assert len(server.requests) == 1
    assert isinstance(found, Failure)
    assert "--max-tokens 500" in found.reason


LONG = "This model's maximum context length is {} tokens. However, you requested 9000 tokens"


def test_too_long_a_context_is_shortened() -> None:
    """The second prompt is shorter, says what was left out, and gets its answer."""
    said = status(400, LONG.format(4400), code="context_length_exceeded")
    with Loopback([said, answer(GOOD)]) as server, Talk(server) as talk:
        attempt = talk.propose()
        assert isinstance(attempt, Candidate)
        first, second = (sum(len(m["content"]) for m in r["messages"]) for r in server.requests)
    assert second < first
    assert "Left out" in server.requests[1]["messages"][1]["content"]
    assert [talk.records.ended[i]["usd"] for i in (0, 1)] == pytest.approx([0, PAID])


def test_what_cannot_be_shortened_enough_is_said() -> None:
    """A window that no prompt fits ends the run, in words with both sizes."""
    said = status(400, LONG.format(900), code="context_length_exceeded")
    with Loopback(otherwise=said) as server, Talk(server) as talk:
        with pytest.raises(BadInput, match="longer context"):
            talk.propose()
        assert len(server.requests) == 1
    assert talk.ledger.booked == 0


def test_a_window_without_room_for_a_prompt_is_said() -> None:
    """The answer alone fills the window: the flag to make smaller is named."""
    body = {"code": 400, "type": "exceed_context_size_error", "n_ctx": 512}
    said = status(400, "the request exceeds the available context size", **body)
    with (
        Loopback([said]) as server,
        Talk(server, max_tokens=600) as talk,
        pytest.raises(BadInput, match="--max-tokens 600"),
    ):
        talk.propose()


def test_stop_cancels_a_call_at_once() -> None:
    """Stop in the middle of a stream: the proposal ends, the endpoint sees the line go dead."""
    with Loopback([held("IDEA: a long")]) as server, Talk(server, timing=HURRY) as talk:
        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(talk.propose()))
        thread.start()
        assert server.arrived.wait(20)
        talk.stop.set()
        thread.join(5)
        assert not thread.is_alive()
        assert server.hung_up.wait(10)
    assert isinstance(found[0], Refusal)
    assert not found[0].exhausted
    assert only(talk)["usd"] == pytest.approx(talk.worst())
    assert talk.ledger.reserved == 0


def test_stop_between_attempts_cancels_the_pause() -> None:
    """A call that waits for its next attempt is stopped as quickly, and costs nothing."""
    wait = Timing(connect=5.0, silence=5.0, whole=20.0, pause=30.0, longest_pause=30.0)
    with Loopback([status(503)]) as server, Talk(server, timing=wait) as talk:
        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(talk.propose()))
        thread.start()
        assert server.arrived.wait(20)
        talk.stop.set()
        thread.join(5)
        assert not thread.is_alive()
    assert isinstance(found[0], Refusal)
    assert only(talk)["usd"] in (0, pytest.approx(talk.worst()))


def test_nothing_is_asked_after_stop() -> None:
    """A proposal that begins after Stop makes no call."""
    with Loopback() as server, Talk(server) as talk:
        talk.stop.set()
        assert isinstance(talk.propose(), Refusal)
        assert server.requests == []
    assert talk.records.begun == []


def test_a_proxy_with_its_own_certificate(endpoint_environment: pytest.MonkeyPatch) -> None:
    """With SSL_CERT_FILE its certificate is believed, and the call goes through it."""
    with Loopback([answer(GOOD)]) as proxy:
        endpoint_environment.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        endpoint_environment.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        far = type("Far", (), {"url": "https://models.example/v1"})
        with Talk(far) as talk:
            assert isinstance(talk.propose(), Candidate)
        assert proxy.connects == 1
        assert len(proxy.requests) == 1


def test_a_proxy_that_is_not_believed_is_named(endpoint_environment: pytest.MonkeyPatch) -> None:
    """Without SSL_CERT_FILE the message says what to set; nothing was sent or booked."""
    with Loopback() as proxy:
        endpoint_environment.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        far = type("Far", (), {"url": "https://models.example/v1"})
        with Talk(far, attempts=1) as talk:
            found = talk.propose()
        assert proxy.requests == []
    assert isinstance(found, Refusal)
    assert "SSL_CERT_FILE" in found.reason
    assert talk.ledger.booked == 0


def test_an_endpoint_with_its_own_certificate(endpoint_environment: pytest.MonkeyPatch) -> None:
    """HTTPS straight to the endpoint, with SSL_CERT_FILE."""
    endpoint_environment.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    with Loopback([answer(GOOD)], tls=True) as server, Talk(server) as talk:
        assert isinstance(talk.propose(), Candidate)


CHILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell has it ignored
from tests.proposers.talk import Talk, GOOD
class Server: url = sys.argv[1]
class Disk:
    def begin(self, call):
        print("begin", call.worst_usd, flush=True)
        return 0
    def streamed(self, number, tokens): print("token", flush=True)
    def end(self, number, usage, usd, seconds, answer="", problem=""):
        print("end", usd, problem, flush=True)
talk = Talk(Server)
talk.proposer._recorder = Disk()
try:
    talk.propose()
except KeyboardInterrupt:
    print("interrupted", talk.ledger.reserved, talk.ledger.spent, flush=True)
"""


def child_of(server: Loopback) -> subprocess.Popen[str]:
    """A process of its own that proposes once."""
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, server.url],
        cwd=ROOT,
        env={**os.environ, "OPENAI_API_KEY": KEY},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_ends_a_call_and_counts_it() -> None:
    """The interrupt reaches whoever waits at once; the call is booked and written down."""
    with Loopback([held("IDEA")]) as server:
        child = child_of(server)
        assert server.arrived.wait(60)
        assert child.stdout is not None
        assert child.stdout.readline().startswith("begin")
        assert child.stdout.readline().startswith("token")
        child.send_signal(signal.SIGINT)
        said, _ = child.communicate(timeout=30)
        assert server.hung_up.wait(10)
    lines = said.strip().splitlines()
    assert lines[-1].startswith("interrupted 0.0 ")
    assert float(lines[-1].split()[2]) > 0
    assert any(line.startswith("end") and "interrupted" in line for line in lines)


def test_a_kernel_killed_between_request_and_answer_leaves_a_record() -> None:
    """The call was written down with its worst case before it left, so a resume can count it."""
    with Loopback([silent]) as server:
        child = child_of(server)
        assert server.arrived.wait(60)
        child.kill()
        said, _ = child.communicate(timeout=30)
    assert said.startswith("begin ")
    assert float(said.split()[1]) > 0
    assert "end" not in said
