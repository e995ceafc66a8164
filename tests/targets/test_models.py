"""Tiny configurations of real models: the cuts a human would choose, and the same bits."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils import _pytree as pytree

from kforge_nb.targets.build import find_targets, replay_inputs
from kforge_nb.targets.dataflow import analyse
from kforge_nb.targets.float64 import reference
from kforge_nb.targets.partition import cut
from kforge_nb.targets.rewrite import replace
from kforge_nb.targets.target import TensorSpec
from kforge_nb.workload.capture import capture_graphs, watch

transformers = pytest.importorskip("transformers")


def resnet():
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 32, 32, 64], depths=[2, 1, 1, 1]
    )
    model, x = transformers.ResNetForImageClassification(config), torch.randn(2, 3, 64, 64)
    return model, lambda: model(x)


def sd3():
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, caption_projection_dim=32,
        pooled_projection_dim=32, out_channels=4, pos_embed_max_size=8,
        dual_attention_layers=(0,), qk_norm="rms_norm",
    )  # fmt: skip
    latents, text, pooled = torch.randn(2, 4, 8, 8), torch.randn(2, 5, 32), torch.randn(2, 32)
    steps = torch.tensor([5, 5])
    return model, lambda: model(
        hidden_states=latents, encoder_hidden_states=text, pooled_projections=pooled, timestep=steps
    )


def vae():
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 16), layers_per_block=1, latent_channels=4, norm_num_groups=4,
    )  # fmt: skip
    z = torch.randn(1, 4, 8, 8)
    return model, lambda: model.decode(z)


def gemma():
    config = transformers.Gemma4TextConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, global_head_dim=32, sliding_window=16,
        layer_types=["sliding_attention", "full_attention"], num_kv_shared_layers=0,
        hidden_size_per_layer_input=16, vocab_size=64, vocab_size_per_layer_input=64,
        final_logit_softcapping=30.0, attn_implementation="eager",
    )  # fmt: skip
    model, ids = transformers.Gemma4ForCausalLM(config), torch.randint(0, 64, (1, 12))
    return model, lambda: model(input_ids=ids, use_cache=False)


def qwen():
    config = transformers.Qwen3_5TextConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, vocab_size=64, linear_num_key_heads=1,
        linear_num_value_heads=2, linear_key_head_dim=16, linear_value_head_dim=16,
        attn_implementation="eager",
    )  # fmt: skip
    model, ids = transformers.Qwen3_5ForCausalLM(config), torch.randint(0, 64, (1, 12))
    return model, lambda: model(input_ids=ids, use_cache=False)


def bert():
    config = transformers.BertConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        vocab_size=64, attn_implementation="eager",
    )  # fmt: skip
    model, ids = transformers.BertModel(config), torch.randint(0, 64, (2, 12))
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    return model, lambda: model(input_ids=ids, attention_mask=mask)


# At least so many cuts of each family at granularity region.
MODELS = {
    resnet: {"batch_norm": 13, "pooling": 2},
    sd3: {"rms_norm": 8, "layer_norm": 7, "activation": 3},
    vae: {"group_norm": 10},
    gemma: {"rms_norm": 13, "rotary": 4, "softmax": 2, "activation": 5},
    qwen: {"delta_rule": 3, "rms_norm": 14, "rotary": 2, "softmax": 1, "activation": 8},
    bert: {"layer_norm": 5, "softmax": 2, "activation": 2},
}


@pytest.fixture(scope="module", params=MODELS, ids=lambda f: f.__name__)
def workload(request):
    """The captured workload of one model, with the name of its maker."""
    torch.manual_seed(0)
    model, cell = request.param()
    model.eval()
    with torch.no_grad():
        found = capture_graphs(watch(cell))
    assert found.notes == []
    return request.param, found


@pytest.mark.parametrize("granularity", ["op", "module", "region"])
def test_every_cut_replaced_by_itself_gives_the_same_bits(workload, granularity):
    """All cuts of a graph at once, each a call of its own subgraph."""
    for graph in workload[1].graphs:
        cuts = cut(graph.gm, graph.example_inputs, granularity, vendor=True)
        rewritten = replace(graph.gm, [(c, c.to_graph()) for c in cuts])
        flow = analyse(graph.gm, graph.example_inputs)
        with torch.no_grad():
            got = rewritten(*replay_inputs(flow, graph.example_inputs))
            expected = graph.gm(*replay_inputs(flow, graph.example_inputs))
        pairs = zip(pytree.tree_leaves(got), pytree.tree_leaves(expected), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs if isinstance(b, torch.Tensor))


def test_regions_are_those_that_a_human_would_choose(workload):
    """Norms, softmax, rotary, activations and pooling are all found whole."""
    maker, found = workload
    cuts = [c for g in found.graphs for c in cut(g.gm, g.example_inputs)]
    families = Counter(c.family for c in cuts)
    for family, least in MODELS[maker].items():
        assert families[family] >= least, (family, families)
    for c in cuts:
        names = {c.flow.operators[c.flow.index[n]].kind for n in c.nodes}
        own = set() if c.family == "delta_rule" else {"vendor", "write"}
        assert names.isdisjoint({"opaque", "random", *own})


def test_captured_inputs_fit_their_targets(workload):
    """Each set has the variant's layout, and the target computes its outputs' layout from it."""
    targets = find_targets(workload[1])
    assert targets
    for target in targets:
        for inputs in target.captured.sets():
            assert tuple(TensorSpec.of(t) for t in inputs) == target.inputs
            assert tuple(TensorSpec.of(t) for t in target.graph(*inputs)) == target.outputs


def test_the_whole_graph_runs_in_float64(workload):
    """The exact reference of the model agrees with eager to float32's rounding."""
    for graph in workload[1].graphs:
        with torch.no_grad():
            flow = analyse(graph.gm, graph.example_inputs)
            outputs = graph.gm(*replay_inputs(flow, graph.example_inputs))
        exact = reference(graph.gm, graph.example_inputs)
        ours = [t for t in pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)]
        for one, two in zip(ours, exact, strict=True):
            if one.is_floating_point():
                assert two.dtype is torch.float64
                scale = two.abs().max().clamp(min=1e-6)
                assert ((one.double() - two).abs().max() / scale) < 1e-3
