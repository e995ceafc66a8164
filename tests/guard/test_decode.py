"""A tiny language model with a growing cache: prefill and decode with kernels, cache untouched."""

from __future__ import annotations

import copy

import pytest
import torch

from kforge_nb.guard.accepted import Accepted
from kforge_nb.guard.apply import apply
from kforge_nb.guard.decide import decide
from kforge_nb.targets import partition
from kforge_nb.targets.build import target_of
from kforge_nb.workload.capture import capture_graphs, watch

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def llama():
    """A two-layer Llama with seeded random weights."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def generate(model, tokens=9):
    """Greedy decoding, one token a call, with a DynamicCache; (logits of each step, cache)."""
    cache = transformers.DynamicCache()
    ids = torch.tensor([[5, 17, 2, 60]])
    steps = []
    with torch.no_grad():
        for _ in range(tokens):
            out = model(input_ids=ids, past_key_values=cache, use_cache=True)
            steps.append(out.logits)
            ids = out.logits[:, -1:].argmax(-1)
    return steps, cache


@pytest.fixture
def accepted(llama, kernels, build):
    """RMS norm kernels for prefill and decode shapes."""
    workload = capture_graphs(watch(lambda: generate(llama, 2)))
    found = {}
    for graph in workload.graphs:
        for cut in partition.cut(graph.gm, graph.example_inputs, "region"):
            if cut.family != "rms_norm" or cut.fingerprint in found or len(cut.inputs) != 2:
                continue
            weight = [len(spec.shape) for spec in cut.input_specs].index(1)
            candidate = kernels["rms_norm"](f"in{1 - weight}", f"in{weight}")
            found[cut.fingerprint] = Accepted.of_target(target_of(cut), candidate, build(candidate))
    assert len(found) >= 2
    return list(found.values())


def test_decode_with_a_growing_cache(llama, accepted):
    """Prefill and every decode step are right, kernels run in all of them, nothing is bypassed."""
    expected, _ = generate(llama)
    with apply([llama], accepted, calls=watch(lambda: generate(llama)).calls) as applied:
        assert applied.guarded[0].dynamic is None
        before = applied.counters()["launches"]
        got, cache = generate(llama)
        counters = applied.counters()
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert cache.get_seq_length() == 4 + 9 - 1
    assert counters["launches"] - before == 9  # the norm at the end; the others take a sum along
    assert counters["calls"]["bypassed"] == 0
    assert counters["fallbacks"] == {}


def test_replaying_decode_never_grows_the_recorded_cache(llama, accepted):
    """Measuring a decode call many times gives the same logits and leaves its cache alone."""
    _, cache = generate(llama, 3)
    length = cache.get_seq_length()

    def cell():
        with torch.no_grad():
            return llama(torch.tensor([[7]]), past_key_values=copy.deepcopy(cache)).logits

    workload = watch(cell)
    first = workload.calls[0].run().logits
    report = decide(workload, accepted, "eager", time_limit=15)
    assert torch.equal(workload.calls[0].run().logits, first)
    assert cache.get_seq_length() == length
    assert report.fidelity is None or report.fidelity["ratio"] < 1.05
    assert len(report.decisions) == len(accepted)
