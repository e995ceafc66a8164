"""The baseline worker's requests, one after the other and at the same time."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from judge_kernels import target_of

from kforge_nb.errors import KForgeError, MissingTool
from kforge_nb.judge.baseline import BaselineWorker
from kforge_nb.judge.cases import secret_generator
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.targets.document import target_to_document


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    started = BaselineWorker(tmp_path_factory.mktemp("worker"), 1)
    yield started
    started.close()


@pytest.fixture
def timed(tmp_path):
    """Slots of a target of some size, and the folder that describes it."""
    made = []

    def make(size: int):
        x = torch.randn(size)
        target = target_of(lambda x: x * 2.0, x)
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / "target.json").write_text(json.dumps(target_to_document(target)))
        made.append(TimedInputs(target.inputs, [x], secret_generator()))
        return folder, made[-1]

    yield make
    for inputs in made:
        inputs.close()


def test_a_target_that_does_not_open_leaves_the_next_one_alone(worker, timed):
    """Memory that came with a request that failed must not become another target's inputs."""
    folder, small = timed(10)
    (folder / "target.json").write_text("{")
    with pytest.raises(KForgeError, match="could not open"):
        worker.open("broken", folder, small.region, small.slots)
    folder, large = timed(1 << 20)
    assert large.region.bytes != small.region.bytes
    worker.open("good", folder, large.region, large.slots)
    worker.prepare("good", "eager")
    assert worker.batch("good", "eager", 0, large.slots) > 0
    worker.forget("good")


def test_targets_that_open_at_the_same_time_have_their_own_inputs(worker, timed):
    """The memory of each goes with its own request."""
    targets = {f"t{size}": timed(size) for size in (10, 5000, 100_000, 1 << 20, 3 << 20)}

    def opened(key: str) -> float:
        folder, inputs = targets[key]
        worker.open(key, folder, inputs.region, inputs.slots)
        worker.prepare(key, "eager")
        return worker.batch(key, "eager", 0, inputs.slots)

    with ThreadPoolExecutor(len(targets)) as pool:
        assert min(pool.map(opened, targets)) > 0
    for key in targets:
        worker.forget(key)


def test_a_worker_that_is_gone_is_a_missing_tool(tmp_path, timed):
    """Also where what it is sent is memory."""
    ended = BaselineWorker(tmp_path, 1)
    ended.child.popen.kill()
    ended.child.status(10.0)
    folder, inputs = timed(10)
    with pytest.raises(MissingTool, match="failed at 'open'"):
        ended.open("key", folder, inputs.region, inputs.slots)
    ended.close()
