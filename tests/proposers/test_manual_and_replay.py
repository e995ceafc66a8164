"""Kernels by hand, and recorded runs played again."""

import json
from typing import Any

import pytest
import torch

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.plan import plan_to_document, resolve
from kforge_nb.errors import ContractBreach
from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.proposers.manual import ManualProposer, derive_plan, manual_candidate
from kforge_nb.proposers.protocol import Attempt, Refusal, Request
from kforge_nb.proposers.replay import ReplayProposer
from tests.helpers import make_target, run_cpp

TARGET = make_target(lambda x, y: x + y, torch.randn(4, 8), torch.randn(4, 8))
BY_NAME = """// kforge: n = numel(out0)
#include <cstdint>
extern "C" void plus(const float* in0, const float* in1, float* out0, int64_t n, int32_t nthreads) {
  for (int64_t i = 0; i < n; ++i) out0[i] = in0[i] + in1[i];
}
"""
BY_PLACE = """#include <cstdint>
/* extern "C" void old(float* a); */
extern "C" void plus(const float* a, const float* __restrict b, float* sum, int threads) {
  for (int i = 0; i < 32; ++i) sum[i] = a[i] + b[i];
}
"""
SCRATCH = """#include <cstdint>
// kforge: n = numel(in0)
// kforge: scratch tmp = float32[n, 2] zero
extern "C" void plus(const float* in0, const float* in1, float* out0, float* tmp, int64_t n,
                     int32_t nthreads) {
  for (int64_t i = 0; i < n; ++i) out0[i] = in0[i] + in1[i] + tmp[2 * i];
}
"""


@pytest.mark.parametrize("source", [BY_NAME, BY_PLACE])
def test_a_plan_is_read_off_the_signature(source: str, tmp_path: Any) -> None:
    """Named and positional pointers both give a plan with which the kernel runs."""
    candidate = manual_candidate(source, None, TARGET)
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    (found,) = run_cpp(candidate, TARGET, [x, y], tmp_path)

    torch.testing.assert_close(found, x + y)
    assert candidate.origin == {"proposer": "manual"}


def test_scratch_is_declared_in_a_comment() -> None:
    """A comment line gives type, shape and initial value of a scratch buffer."""
    found = resolve(derive_plan(SCRATCH, TARGET), TARGET.inputs, TARGET.outputs)

    assert tuple(found.scratch["tmp"]) == ("float32", (32, 2), "zero")
    assert ("scratch", "tmp") in found.calls[0].args


def test_a_given_plan_is_used_and_checked() -> None:
    """A plan as document is read strictly and held against the target."""
    plan = plan_to_document(derive_plan(BY_NAME, TARGET))

    assert manual_candidate(BY_NAME, plan, TARGET).plan == derive_plan(BY_NAME, TARGET)
    with pytest.raises(ContractBreach, match="unknown field"):
        manual_candidate(BY_NAME, {**plan, "stream": 0}, TARGET)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("void f() {}", '0 extern "C"'),
        (BY_NAME + BY_NAME, '2 extern "C"'),
        (BY_NAME.replace("// kforge: n = numel(out0)", ""), "say what n is"),
        (BY_NAME.replace("int64_t n", "bool n"), "no known type"),
        (BY_PLACE.replace("float* sum, ", ""), "cannot be matched"),
        (BY_PLACE.replace("const float* a", "const float* in0"), "cannot be matched"),
        (BY_NAME.replace("const float* in1, ", "const float* in7, "), "no input"),
        (BY_NAME.replace(", int32_t nthreads", ""), "last argument"),
    ],
)
def test_what_cannot_be_derived_is_said(source: str, words: str) -> None:
    """Every gap in the convention has its message."""
    with pytest.raises(ContractBreach, match=words):
        manual_candidate(source, None, TARGET)


def test_manual_proposer_offers_each_kernel_once() -> None:
    """Given kernels are drafts in order, then there is nothing more."""
    kernels = [manual_candidate(source, None, TARGET) for source in (BY_NAME, BY_PLACE)]
    proposer = ManualProposer(kernels)
    first = proposer.propose(Request(TARGET, "draft"))
    second = proposer.propose(Request(TARGET, "draft", tried=frozenset({kernels[0].digest})))
    last = proposer.propose(Request(TARGET, "draft", tried=frozenset(k.digest for k in kernels)))

    assert [first, second] == kernels
    assert isinstance(last, Refusal)
    other = make_target(lambda x: x + 1, torch.randn(4))
    assert proposer.supports(TARGET) is None
    assert proposer.supports(other)
    assert isinstance(proposer.propose(Request(other, "draft")), Refusal)


def recorded() -> dict[str, Any]:
    """A run document with a root, its child, and a second root; through JSON text."""
    sources = {"0.1": BY_NAME, "0.2": SCRATCH, "0.3": BY_PLACE}
    nodes = [
        {"id": n, "target": 5, "parent": parent, "title": n, "language": "cpp", "origin": "recipes"}
        for n, parent in (("0.1", None), ("0.2", "0.1"), ("0.3", None))
    ]
    details = {
        n: {"source": s, "plan": plan_to_document(derive_plan(s, TARGET))}
        for n, s in sources.items()
    }
    targets = [{"index": 5, "fingerprint": TARGET.fingerprint}]
    return json.loads(json.dumps({"targets": targets, "nodes": nodes, "details": details}))


def attempt(candidate: Candidate) -> Attempt:
    """Judged, somehow."""
    return Attempt(candidate, Evaluation(Verdict.SLOWER, "for a test"))


def test_replay_follows_the_recorded_tree() -> None:
    """Roots come as drafts and children under their parents, in the recorded order."""
    proposer = ReplayProposer(recorded())
    root = proposer.propose(Request(TARGET, "draft"))
    assert isinstance(root, Candidate)
    child = proposer.propose(Request(TARGET, "optimise", parent=attempt(root)))
    other = proposer.propose(Request(TARGET, "draft", siblings=(attempt(root),)))

    assert [root.title, child.title, other.title] == ["0.1", "0.2", "0.3"]
    assert root.source == BY_NAME
    done = Request(TARGET, "optimise", parent=attempt(child))
    assert isinstance(proposer.propose(done), Refusal)
    assert proposer.supports(TARGET) is None


def test_replay_of_redacted_and_damaged_documents() -> None:
    """Without sources there is nothing to replay; a bad plan is a breach that names the node."""
    redacted = recorded()
    redacted["details"] = {}
    assert "no candidate" in (ReplayProposer(redacted).supports(TARGET) or "")
    damaged = recorded()
    damaged["details"]["0.2"]["plan"] = {"kernels": [], "evil": 1}
    with pytest.raises(ContractBreach, match=r"node 0\.2"):
        ReplayProposer(damaged)
