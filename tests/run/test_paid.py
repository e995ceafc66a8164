"""A run whose kernels come from an endpoint, over real HTTP, with a judge that tests steer."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest

from kforge_nb.errors import BadInput
from kforge_nb.options import OptimizeOptions
from kforge_nb.run.conductor import Conductor, Tools
from kforge_nb.run.handle import Run
from kforge_nb.run.reload import works_of
from kforge_nb.run.source import StoreSource
from kforge_nb.run.writers import make_writer
from tests.proposers.loopback import Loopback, held, status
from tests.proposers.loopback import answer as answered
from tests.proposers.talk import good

PATIENCE_S = 30
PAID = {"proposer": "openai", "model": "loopback-1", "price_in": 1.0, "price_out": 4.0}
CALL_USD = (1000 * 1.0 + 200 * 4.0) / 1e6
KEY = "sk-test-0123456789abcdef"


def numbered(exchange):
    """Answers each request with another good kernel."""
    number = len(exchange.server.requests)
    answered(good(f"out0[i] = std::exp(in0[i]) + {number};", f"kernel {number}"))(exchange)


@pytest.fixture
def paid(stage, monkeypatch):
    """A stage whose runs ask the endpoint of ``paid.serve(script)``; the options stay the run's."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    servers = []

    def serve(script=(), otherwise=numbered):
        servers.append(Loopback(script, otherwise=otherwise))
        monkeypatch.setenv("OPENAI_BASE_URL", servers[-1].url)
        return servers[-1]

    def conductor(**options):
        chosen = {**PAID, **options}
        writer = make_writer(
            OptimizeOptions.of({k: v for k, v in chosen.items() if k != "targets"})
        )
        stage.tools = lambda: Tools(
            stage.judge.session,
            writer.proposer,
            stage.guard,
            {"name": "test", "threads": 2},
            writer.parallel,
            writer.opened,
        )
        return stage.conductor(**chosen)

    stage.serve, stage.paid_conductor = serve, conductor
    yield stage
    for server in servers:
        server.close()


def finish(conductor):
    """Runs to the end; the document."""
    conductor.start()
    assert conductor.join(PATIENCE_S)
    return Run(StoreSource(conductor.record)).document


def test_a_paid_run_ends_in_order_with_every_call_counted(paid):
    """Each node has its call with tokens, price, seconds and the version of its prompt."""
    server = paid.serve()
    document = finish(paid.paid_conductor(budget=5))

    assert document["state"] == "done"
    assert len(document["nodes"]) == len(server.requests) == 5
    assert {c["node"] for c in document["costs"]} == {n["id"] for n in document["nodes"]}
    for cost in document["costs"]:
        assert cost["usd"] == pytest.approx(CALL_USD)
        assert (cost["tokens_in"], cost["tokens_out"], cost["state"]) == (1000, 200, "done")
        assert cost["prompt"]
    assert {n["origin"]["proposer"] for n in document["nodes"]} == {"openai"}
    first = document["nodes"][0]["id"]
    assert server.requests[0]["messages"][0]["content"] in document["details"][first]["prompt"]
    assert KEY not in json.dumps(document)


def test_the_limit_is_not_exceeded_and_says_why_it_ended(paid):
    """A call that could exceed --max-cost is not made, though more candidates are allowed."""
    server = paid.serve()
    conductor = paid.paid_conductor(budget=500, max_cost=0.3, max_tokens=1000, patience=400)
    document = finish(conductor)

    assert document["state"] == "done"
    assert "could" in document["state_reason"]
    assert "USD" in document["state_reason"] or "money" in document["state_reason"]
    assert 0 < len(server.requests) < 500
    assert sum(c["usd"] for c in document["costs"]) <= 0.3


def test_broken_answers_are_nodes_with_reasons(paid):
    """An answer that stays broken after its one repair is refused, with both calls counted."""
    server = paid.serve(otherwise=answered("I would rather not."))
    document = finish(paid.paid_conductor(budget=3))

    assert [n["verdict"] for n in document["nodes"]] == ["refused"] * 3
    assert all("no fenced block" in n["reason"] for n in document["nodes"])
    assert len(server.requests) == 6
    assert Counter(c["purpose"] for c in document["costs"]) == {"propose": 3, "format": 3}
    assert paid.judge.judged == []


def test_stop_cancels_a_streaming_answer_at_once(paid):
    """Stop hangs up in the middle of an answer; what was streamed is counted, and the run ends."""
    server = paid.serve(otherwise=held("IDEA: a long thought"))
    conductor = paid.paid_conductor(budget=4, parallel=2)
    conductor.start()
    deadline = time.monotonic() + PATIENCE_S
    while not any(call["tokens"] for call in conductor.book.live):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    shown = conductor.compact()["progress"]["calls"]
    assert {c["model"] for c in shown} == {"loopback-1"}
    begun = time.monotonic()
    Run(StoreSource(conductor.record)).stop()

    assert time.monotonic() - begun < 5
    assert server.hung_up.wait(PATIENCE_S)
    document = Run(StoreSource(conductor.record)).document
    assert document["state"] == "stopped"
    assert {c["state"] for c in document["costs"]} == {"done"}
    assert all(c["usd"] > 0 and "stopped" in c["problem"] for c in document["costs"])


def test_a_refused_key_fails_the_run_in_words_and_costs_nothing(paid):
    """The first call tells; no second one is made for every candidate of the budget."""
    server = paid.serve(otherwise=status(401, "bad key", code="invalid_api_key"))
    document = finish(paid.paid_conductor(budget=20, parallel=1))

    assert document["state"] == "failed"
    assert "OPENAI_API_KEY" in document["state_reason"]
    assert len(server.requests) == 1
    assert sum(c["usd"] for c in document["costs"]) == 0


def test_a_killed_session_leaves_its_call_counted_at_its_worst(paid):
    """A resumed run counts a call whose answer nobody saw against --max-cost, and says so."""
    paid.serve()
    conductor = paid.paid_conductor(budget=3, max_cost=0.5, max_tokens=1000)
    store, run = conductor.record.store, conductor.record.id
    call = {"target": 0, "node": "0.7", "model": "loopback-1", "prompt": "1", "text": "?"}
    store.begin_call(run, **call, worst_usd=0.495)
    document = finish(conductor)

    assert document["nodes"] == []
    assert "could" in document["state_reason"]
    assert [(c["state"], c["usd"]) for c in document["costs"]] == [("lost", 0.495)]
    assert any("killed" in note for note in document["workload"]["notes"])


def test_a_paid_run_is_resumed_without_paying_twice(paid):
    """Answers that nobody could judge any more are used when the same is to be asked again."""
    server = paid.serve()
    paid.judge.gate.clear()
    conductor = paid.paid_conductor(budget=4, parallel=1)

    def answered_calls(count):
        deadline = time.monotonic() + PATIENCE_S
        while [c["state"] for c in paid.store.costs(conductor.record.id)] != ["done"] * count:
            assert time.monotonic() < deadline, "as many answers as may wait for the judge"
            time.sleep(0.01)

    conductor.start()
    answered_calls(3)
    Run(StoreSource(conductor.record)).stop()
    again = Conductor(
        conductor.record, works_of(conductor.record), conductor.options, "here", paid.tools()
    )
    again.start()
    answered_calls(6)
    assert len(server.requests) == 3
    paid.judge.gate.set()
    assert again.join(PATIENCE_S)

    document = Run(StoreSource(conductor.record)).document
    assert len(document["nodes"]) == len(server.requests) == 4
    assert sum(c["usd"] for c in document["costs"]) == pytest.approx(4 * CALL_USD)
    used = [c for c in document["costs"] if "earlier session" in c["problem"]]
    assert (len(used), sum(c["usd"] for c in used)) == (3, 0.0)


def test_costs_are_told_by_booking_target_node_and_run(paid):
    """All tables add up to the same money, and say what a saved millisecond has cost."""
    paid.serve(script=[answered("no"), answered("no")])
    conductor = paid.paid_conductor(budget=4, parallel=1)
    finish(conductor)
    run = Run(StoreSource(conductor.record))

    assert list(run.costs["purpose"]) == ["propose", "format", "propose", "propose", "propose"]
    total = run.costs["usd"].sum()
    assert total == pytest.approx(5 * CALL_USD)
    assert run.costs["total_usd"].iloc[-1] == pytest.approx(total)
    for what in ("target", "node", "run"):
        assert run.costs_by(what)["usd"].sum() == pytest.approx(total)
    assert len(run.costs_by("node")) == 4
    (row,) = run.costs_by("run").to_dict("records")
    assert row["saved_ms"] == pytest.approx(10.0 * (1 - 1 / 1.5) / 1000, rel=0.2)
    assert row["usd_per_ms"] == pytest.approx(total / row["saved_ms"])
    with pytest.raises(BadInput, match="target, node, run"):
        run.costs_by("day")


def test_a_missing_key_is_said_before_anything_is_searched(monkeypatch):
    """OpenAI's own endpoint needs a key: the cell says so at once, and a dry run needs none."""
    from kforge_nb.run import tools

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setattr(tools, "check_tools", lambda device: None)
    monkeypatch.setattr(tools, "facts_for", lambda device: {})
    with pytest.raises(BadInput, match="OPENAI_API_KEY is not set"):
        tools.make_tools(OptimizeOptions.of(PAID), "cpu")
    assert tools.make_tools(OptimizeOptions.of({**PAID, "dry_run": True}), "cpu").parallel == 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": None}, "--model NAME"),
        ({"price_in": None, "price_out": None}, "--price-in 0 --price-out 0"),
        ({"price_out": None}, "only one half"),
    ],
)
def test_what_is_not_said_of_a_model_is_an_error_before_the_first_call(given, words):
    """Neither the model nor its price is guessed."""
    with pytest.raises(BadInput, match=words):
        make_writer(OptimizeOptions.of({**PAID, **given}))


def many_in_vain(paid, **options):
    """The document of a run on one target whose first kernel stays the best, and much is tried."""
    paid.judge.ratios = [1.5, *[1.2] * 60]
    return finish(paid.paid_conductor(budget=25, targets=1, parallel=1, **options))


def test_attempts_in_vain_do_not_end_a_target_whose_calls_cost_money(paid):
    """What a call is worth decides there: after 12 in vain the run still asks."""
    paid.serve()
    document = many_in_vain(paid, price_in=0.001, price_out=0.001)

    assert len(document["nodes"]) == 25
    assert "in a row" not in json.dumps(document["targets"])


@pytest.mark.parametrize("limit", [{"patience": 4}, {"price_in": 0.0, "price_out": 0.0}], ids=str)
def test_patience_holds_where_it_is_asked_for_or_calls_are_free(paid, limit):
    """The user's own limit counts in a paid run too, and 12 where an endpoint is one's own."""
    paid.serve()
    document = many_in_vain(paid, **limit)

    row = f"{limit.get('patience', 12)} candidates in a row"
    assert row in json.dumps(document["targets"])
    assert len(document["nodes"]) < 20
