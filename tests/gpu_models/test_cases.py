"""The tiny copies of the paper's models: built from the same classes, repeatable, ready to run."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu_models_cases import CASES, build, size_for

CHEAP = ("resnet50-b1", "sd35", "vae", "gemma4-prefill-eager", "gemma4-decode",
         "qwen35-4b-prefill", "qwen35-35b-decode")  # fmt: skip


@pytest.mark.parametrize("name", CHEAP)
def test_tiny_models_are_seeded_and_finite(name):
    """Two builds of a case give the same output, or no figure of it could be compared."""
    outputs = []
    for _ in range(2):
        case = build(name, "tiny", "cpu")
        with torch.inference_mode():
            outputs.append(case.run(case.model))
    assert torch.isfinite(outputs[0]).all()
    assert torch.equal(*outputs)
    assert float(outputs[0].std()) > 0


def test_a_deep_model_has_the_real_ones_layers_and_few_numbers():
    """A CPU goes through a graph of the real depth, in the real precision, in next to no time."""
    case = build("sd35", "deep", "cpu")
    assert len(case.model.transformer_blocks) == 24
    assert sum(p.numel() for p in case.model.parameters()) < 3e7
    assert {p.dtype for p in case.model.parameters()} == {torch.bfloat16}
    assert size_for("cpu", "deep") == "deep"
    assert (size_for("cpu"), size_for("cuda:1")) == ("tiny", "real")


def test_every_model_of_the_paper_has_a_case_in_its_precision():
    """The list covers the four models; ResNet-50 is float16 there, all others bfloat16."""
    dtypes = {spec.model: spec.dtype for spec in CASES.values()}
    assert dtypes == {
        "resnet50": torch.float16,
        "sd35": torch.bfloat16,
        "gemma4": torch.bfloat16,
        "qwen35": torch.bfloat16,
    }


def test_a_decode_step_stays_at_its_position():
    """A hundred timed steps must not run past the end of the static cache."""
    case = build("gemma4-decode", "tiny", "cpu")
    positions = []

    def seen(_module, args, kwargs):
        cache = kwargs.get("cache") or kwargs.get("past_key_values")
        positions.append(int(cache.get_seq_length()))

    case.model.register_forward_pre_hook(seen, with_kwargs=True)
    with torch.inference_mode():
        for _ in range(3):
            case.run(case.model)
    assert len(set(positions)) == 1
    assert positions[0] > 0


def test_an_unknown_model_is_named_with_the_known_ones():
    """A typing mistake is answered with what there is."""
    with pytest.raises(KeyError, match="resnet50-b32"):
        build("resnet", "tiny", "cpu")
