"""The handle: tables, status, saving, and what cannot be done with which run."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kforge_nb.api import find_run, load_run, runs
from kforge_nb.errors import BadInput, DocumentError
from kforge_nb.run import tables
from kforge_nb.run.handle import Run
from kforge_nb.run.source import StoreSource

PATIENCE_S = 30


@pytest.fixture
def finished(stage):
    """A run that is done."""
    conductor = stage.conductor()
    conductor.start()
    assert conductor.join(PATIENCE_S)
    return Run(StoreSource(conductor.record))


def test_the_tables_have_a_row_for_everything(finished):
    """Nodes, targets and decisions come as DataFrames with the figures of the store."""
    assert len(finished.nodes) == 6
    assert set(finished.nodes["verdict"]) == {"accepted"}
    assert list(finished.targets["state"]) == ["done"]
    assert finished.targets["state_reason"].str.contains("budget").all()


def test_empty_tables_have_the_same_columns_as_full_ones(stage, finished):
    """Code that selects columns works before the first candidate is judged."""
    fresh = Run(StoreSource(stage.conductor(name="fresh").record))

    assert list(fresh.nodes.columns) == list(finished.nodes.columns)
    assert list(fresh.targets.columns) == list(finished.targets.columns)
    assert tuple(fresh.decisions.columns) == tables._DECISIONS
    assert tuple(fresh.costs.columns) == tables._COSTS
    assert tuple(fresh.whole.columns) == tables._WHOLE


def test_the_status_is_one_line(stage, finished):
    """The status says the state and, for an ended run, why."""
    status = finished.status()

    assert "run r: done" in status
    assert "budget" in status
    assert "\n" not in status


def test_the_bundle_holds_no_widget(finished):
    """What a notebook saves is the document, HTML without script and text, never a widget view."""
    bundle = finished._repr_mimebundle_()

    assert set(bundle) == {"application/vnd.kforge.run+json", "text/html", "text/plain"}
    assert "<script" not in bundle["text/html"]


def test_a_saved_run_opens_again_and_can_only_be_looked_at(finished, tmp_path):
    """The file gives the same tables; what needs the store says so instead of failing oddly."""
    path = finished.save(tmp_path / "r.kforge.json")

    again = load_run(path)

    assert len(again.nodes) == 6
    assert again.state == "done"
    with pytest.raises(BadInput) as caught:
        again.apply()
    assert "opened from a file" in str(caught.value)


def test_a_missing_file_is_said_in_one_piece(tmp_path):
    """A wrong path is bad input with the path, without a chain of inner errors."""
    with pytest.raises(BadInput, match=r"there is no file .*gone\.kforge\.json") as caught:
        load_run(tmp_path / "gone.kforge.json")

    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("measured", [[None, None], [1.5, None], [1.5, 1.2]])
def test_what_is_not_measured_is_nan_however_many_were(finished, measured):
    """A column of figures is one of floats, whether all, some or none of its rows have one."""
    document = finished.document
    target = document["targets"][0]
    document["targets"] = [{**target, "index": i} for i in range(2)]
    document["decisions"] = [
        {
            "target": i,
            "fingerprint": "f",
            "node": None if ratio is None else "0.0",
            "installed": False,
            "reason": "",
            "isolated": ratio and {"ratio": ratio, "low": ratio, "high": ratio},
            "in_model": None,
            "fidelity": None,
        }
        for i, ratio in enumerate(measured)
    ]
    table = tables.decisions(document)

    assert table["isolated"].dtype == table["in_model"].dtype == "float64"
    assert list(table["isolated"].isna()) == [ratio is None for ratio in measured]
    assert [node is None for node in table["node"]] == [ratio is None for ratio in measured]


def test_notes_about_the_workload_are_in_the_text_and_the_repr(finished):
    """A note, such as where gradients keep kernels out, is seen in a terminal too."""
    finished.record.add_note("gradients are enabled where model runs")

    assert "note: gradients are enabled" in repr(finished)
    assert "note: gradients are enabled" in finished._repr_mimebundle_()["text/plain"]


def test_redacted_files_hold_no_source(finished, tmp_path):
    """``redact`` leaves the sources out of the document and of the page."""
    redacted = finished.save(tmp_path / "r.kforge.json", redact=True)
    page = finished.save(tmp_path / "r.html", redact=True)

    assert "// 1" not in redacted.read_text()
    assert "// 1" not in page.read_text()


def test_runs_are_found_by_name_id_and_age(stage, finished):
    """A run is found by its name or id, or as the newest; a wrong name lists the right ones."""
    folder = str(stage.store_path)

    assert find_run("r", store=folder).id == finished.id
    assert find_run(finished.id, store=folder).name == "r"
    assert find_run(store=folder).id == finished.id
    assert list(runs(store=folder)["name"]) == ["r"]
    with pytest.raises(BadInput) as caught:
        find_run("other", store=folder)
    assert "there are: r" in str(caught.value)


def test_without_a_name_the_run_of_this_process_is_meant(stage, finished):
    """A run that another notebook began later in the same folder is not taken for one's own."""
    folder = str(stage.store_path)
    stage.store.create_run("other-notebook")

    assert find_run(store=folder).id == finished.id
    stage.store.delete_run(finished.id)
    assert find_run(store=folder).name == "other-notebook"


def test_nothing_to_find_is_said(tmp_path):
    """Without a store there is a message instead of a new empty one on disk."""
    with pytest.raises(BadInput) as caught:
        find_run(store=str(tmp_path / "none"))

    assert "no runs" in str(caught.value)
    assert not (tmp_path / "none").exists()


def test_a_file_that_is_no_run_is_refused(tmp_path):
    """A damaged or foreign file is a DocumentError with its name."""
    path = tmp_path / "x.kforge.json"
    path.write_text("{}")

    with pytest.raises(DocumentError):
        load_run(path)


def test_awaiting_a_run_leaves_the_loop_free(stage):
    """``await run`` waits for the end while other tasks of the event loop go on."""
    conductor = stage.conductor()
    stage.judge.gate.clear()
    conductor.start()
    run = Run(StoreSource(conductor.record))

    async def main():
        waiting = asyncio.ensure_future(_await(run))
        await asyncio.sleep(0)
        assert not waiting.done()
        stage.judge.gate.set()
        return await asyncio.wait_for(waiting, PATIENCE_S)

    # In a thread of its own: browser tests in the same process leave a loop running in this one.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: asyncio.run(main())).result().state == "done"


def test_a_cancelled_await_leaves_no_thread_and_the_run_alone(stage):
    """``asyncio.wait_for(run, …)`` that times out ends at once; the run can be awaited again."""
    conductor = stage.conductor()
    stage.judge.gate.clear()
    conductor.start()
    run = Run(StoreSource(conductor.record))
    others = set(threading.enumerate())  # other tests may have left pools of event loops

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_await(run), 0.2)
        more = set(threading.enumerate()) - others
        assert not [t for t in more if t.name.startswith("asyncio")]
        stage.judge.gate.set()
        return await asyncio.wait_for(_await(run), PATIENCE_S)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: asyncio.run(main())).result().state == "done"


async def _await(run):
    return await run


def test_a_run_that_ended_is_neither_paused_nor_waited_for(finished):
    """Pausing an ended run is bad input; waiting for it returns at once; stopping does nothing."""
    with pytest.raises(BadInput) as caught:
        finished.pause()

    assert "has ended (done)" in str(caught.value)
    assert finished.wait(0) is finished
    finished.stop()
    assert finished.state == "done"


def test_waiting_times_out(stage):
    """``wait(timeout)`` raises TimeoutError and the run goes on."""
    conductor = stage.conductor()
    stage.judge.gate.clear()
    conductor.start()
    run = Run(StoreSource(conductor.record))

    with pytest.raises(TimeoutError):
        run.wait(0.05)

    assert conductor.alive


def test_a_page_is_text_or_a_file_and_holds_prompts_only_in_full(finished, tmp_path, monkeypatch):
    """``to_html`` returns the page or writes it; the large things are in it where asked for."""
    from kforge_nb.view import payload

    monkeypatch.setattr(payload.for_notebook, "__defaults__", (1,))
    written = finished.to_html(tmp_path / "r.html", full=True)

    assert written == tmp_path / "r.html"
    assert written.read_text() == finished.to_html(full=True)
    assert "// 1" in written.read_text()
    assert "// 1" not in finished.to_html()
