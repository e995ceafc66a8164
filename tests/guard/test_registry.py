"""The registry: what comes back in another process, and what damaged or hostile entries meet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.errors import DocumentError
from kforge_nb.guard.accepted import Accepted
from kforge_nb.guard.registry import Registry, environment_key
from kforge_nb.guard.stored import StoredBackend


@pytest.fixture
def registry(tmp_path):
    """An empty registry."""
    return Registry(tmp_path / "registry")


@pytest.fixture
def softmax_kernel(block, accept):
    """The accepted softmax kernel of a Block."""
    accepted = accept(block, torch.randn(8, 64))
    return next(k for k in accepted if k.candidate.title == "softmax")


def with_source(kernel, source, **changes):
    """The same kernel with another source."""
    candidate = Candidate("cpp", source, kernel.candidate.plan, kernel.candidate.title)
    fields = {name: getattr(kernel, name) for name in Accepted.__dataclass_fields__}
    return Accepted(**{**fields, "candidate": candidate, **changes})


def edit(folder, **changes):
    """Change fields of an entry on disk."""
    path = folder / "entry.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_round_trip(registry, softmax_kernel):
    """What was added comes back verified, with a library built from its own source."""
    folder = registry.add(softmax_kernel)
    assert registry.entries() == {softmax_kernel.target_fingerprint: folder}
    back = registry.verified(folder)
    assert back.digest == softmax_kernel.digest
    assert back.graph_document == softmax_kernel.graph_document
    assert (back.inputs, back.outputs) == (softmax_kernel.inputs, softmax_kernel.outputs)
    assert back.library.exists()
    assert not registry.problems
    assert registry.remove(softmax_kernel.target_fingerprint) == 1
    assert registry.entries() == {}


def test_the_faster_of_two_is_the_entry(registry, softmax_kernel):
    """Several kernels of one target are kept; the one with the better evidence is used."""
    row = {"against": "eager", "low": 1, "high": 3, "n": 9, "ours_us": 1.0, "against_us": 2.0}
    slow = with_source(
        softmax_kernel,
        softmax_kernel.candidate.source,
        evidence={"timings": [{**row, "ratio": 1.2}]},
    )
    fast = with_source(
        softmax_kernel,
        softmax_kernel.candidate.source + "// other\n",
        evidence={"timings": [{**row, "ratio": 2.2}]},
    )
    registry.add(fast)
    registry.add(slow)
    best = registry.entries()[softmax_kernel.target_fingerprint]
    assert registry.read(best).digest == fast.digest


def test_entries_of_another_machine_are_not_used(registry, softmax_kernel):
    """The address holds device, torch and compiler, so a moved folder offers nothing."""
    folder = registry.add(softmax_kernel)
    key = environment_key()
    (registry.folder / key).rename(registry.folder / ("0" * 32))
    assert folder.parts[-3] == key
    assert registry.entries() == {}


def damaged(folder):
    (folder / "entry.json").write_text("{")


def another_schema(folder):
    edit(folder, schema="kforge.kernel/9")


def an_unknown_field(folder):
    edit(folder, surprise=1)


def another_source(folder):
    path = folder / "candidate.cpp"
    path.write_text(path.read_text().replace("std::exp", "std::exp2"))


def another_plan(folder):
    plan = json.loads((folder / "entry.json").read_text())["plan"]
    plan["symbols"]["C"] = "in0.shape[-1] * 1000000"
    edit(folder, plan=plan)


def another_graph(folder):
    """Softmax's fingerprint over a graph that computes log_softmax."""
    text = (folder / "entry.json").read_text()
    graph = json.loads(text)["graph"]
    for row in graph["nodes"]:
        if row.get("name") == "softmax":
            row["name"] = "log_softmax"
    edit(folder, graph=graph)


def a_forbidden_operator(folder):
    graph = json.loads((folder / "entry.json").read_text())["graph"]
    for row in graph["nodes"]:
        if row["op"] == "call":
            row.update(home="torch", name="load")
    edit(folder, graph=graph)


def absurd_sizes(folder):
    edit(folder, inputs=[{"shape": [1 << 40], "stride": [1], "dtype": "float32", "device": "cpu"}])


def negative_strides(folder):
    edit(folder, inputs=[{"shape": [8, 64], "stride": [-64, 1], "dtype": "float32",
                          "device": "cpu"}])  # fmt: skip


def a_link(folder):
    (folder / "candidate.cpp").rename(folder / "elsewhere.cpp")
    (folder / "candidate.cpp").symlink_to(folder / "elsewhere.cpp")


@pytest.mark.parametrize(
    "spoil",
    [
        damaged, another_schema, an_unknown_field, another_source, another_plan, another_graph,
        a_forbidden_operator, absurd_sizes, negative_strides, a_link,
    ],
)  # fmt: skip
def test_a_spoilt_entry_is_left_out_with_a_reason(registry, softmax_kernel, spoil):
    """Damage and tampering are found while reading, before anything is built or run."""
    folder = registry.add(softmax_kernel)
    spoil(folder)
    assert registry.entries() == {}
    assert registry.problems[str(folder)]
    with pytest.raises(DocumentError):
        registry.verified(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("std::exp(in[i] - top)", "std::exp(in[i] - top) + 1e-3f"), "wrong"),
        (("float top", 'system("true"); float top'), "starts processes"),
        (("float top", "*(volatile int*)8 = 1; float top"), "failed in the runner"),
        (("float top", "float top top"), "does not compile"),
    ],
    ids=["wrong", "runs a program", "crashes", "does not compile"],
)
def test_a_bad_kernel_with_true_digests_is_refused(registry, softmax_kernel, change, reason):
    """An entry can be consistent and still bad: it is judged anew, outside this process."""
    source = softmax_kernel.candidate.source.replace(*change, 1)
    folder = registry.add(with_source(softmax_kernel, source))
    with pytest.raises(DocumentError, match=reason):
        registry.verified(folder)


def test_the_backend_verifies_what_a_graph_needs(registry, block, accept):
    """Only kernels whose targets occur are looked at; a bad one is refused, the others run."""
    x = torch.randn(8, 64)
    for kernel in accept(block, x):
        if kernel.candidate.title == "softmax":
            source = kernel.candidate.source.replace("spare[r] = sum", "spare[r] = 2 * sum")
            kernel = with_source(kernel, source)
        registry.add(kernel)
    other = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softmax(-1)).eval()
    for kernel in accept(other, torch.randn(2, 4)):
        registry.add(kernel)
    backend = StoredBackend(registry)
    assert len(backend.known) == 4
    run = torch.compile(block, backend=backend, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(run(x), block(x))
    assert len(backend.handles) == 2
    assert len(backend.refused) == 1
    assert "it is wrong" in next(iter(backend.refused.values()))
    assert sum(backend.graphs[0].replaced.values()) == 2


def test_another_process_uses_the_entry_point(registry, softmax_kernel, tmp_path):
    """A later script with ``backend="kforge"`` launches the kernel without a run."""
    home = tmp_path / "home"
    Registry(home / "registry").add(softmax_kernel)
    script = textwrap.dedent(
        """
        import torch
        from torch._dynamo import register_backend
        from kforge_nb.guard import backend, launch
        from kforge_nb.guard.stored import stored_backend
        if "kforge" not in torch._dynamo.list_backends():
            register_backend(backend.kforge, name="kforge")  # a source tree has no entry points

        class Head(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(64, 64)

            def forward(self, x):
                return self.linear(x).softmax(-1)

        model, x = Head().eval(), torch.randn(8, 64)
        fast = torch.compile(model, backend="kforge", options={"rest": "eager"})
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))
        (handle,) = stored_backend().handles.values()
        assert launch.counters(handle)["launches"] == 1
        """
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "KFORGE_HOME": str(home), "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
