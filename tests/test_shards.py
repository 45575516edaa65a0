"""What a GPU holds of every weight: all GPUs together hold the model, and copies are counted."""

from dataclasses import replace

import numpy as np
import pytest

from codesign_lib.serving import layout, shards
from codesign_lib.serving.layout import Layout
from codesign_lib.specs import models, weights
from codesign_lib.specs.hf_config.fields import Attention, Recurrent


def held(model, at):
    """Elements on one GPU of a single stage, by name of the weight."""
    found, kinds, d = {}, shards.kinds(model), model.config.d_model
    for slices, parts in ((shards.mixer_shards, kinds.mixers), (shards.ffn_shards, kinds.ffns)):
        for part, n in parts:
            for x in slices(part, d, at):
                found[x.of.name] = found.get(x.of.name, 0) + n * float(x.n_params)
    for w, n in shards.other_weights(model):
        found[w.name] = found.get(w.name, 0) + n * w.n_params
    for x in shards.outer_shards(model, at):
        found[x.of.name] = found.get(x.of.name, 0) + float(x.n_params)
    return found


@pytest.mark.parametrize("name", list(models.MODELS))
def test_one_gpu_holds_every_parameter(name):
    model = models.MODELS[name]
    assert sum(held(model, Layout()).values()) == sum(w.n_params for w in model.weights)


@pytest.mark.parametrize("name", list(models.MODELS))
def test_linear_layers_of_one_gpu_are_the_model_s(name):
    model = models.MODELS[name]
    found = sum(n * float(x.n_params) for x, n in shards.linear_shards(model, Layout()))
    inner = [w for layer in model.config.layers for w in weights.layer_weights(layer, model.config.d_model)]
    rest = sum(w.n_params for w in inner if w.kind in ("residual", "per-layer embedding"))
    head = model.config.d_model * model.config.n_vocab
    assert found == sum(w.n_params for w in inner if w.kind) - rest + head


def test_helix_by_hand():
    # H=16384, 128 query and 8 key-value heads of 128, F=53248, on KVP 8 × TP 8
    llama = models.MODELS["llama_3_1_405b"]
    found, at = held(llama, Layout(kvp=8, tp_attention=8, tp_ffn=64)), 126
    assert found["qkv"] == at * 16_384 * (16 + 2) * 128  # the same on all eight kvp ranks
    assert found["out"] == at * 16_384 * 16_384 / 64
    assert found["gate_up"] == at * 16_384 * 2 * 53_248 / 64 and found["down"] == at * 53_248 / 64 * 16_384
    assert found["head"] == 128_256 / 64 * 16_384


def test_key_value_heads_are_copied_beyond_their_number():
    llama = models.MODELS["llama_3_1_405b"]
    qkv = [held(llama, Layout(tp_attention=tp, tp_ffn=tp))["qkv"] / 126 / 16_384 / 128 for tp in (8, 16, 64)]
    assert qkv == [16 + 2, 8 + 2, 2 + 2]


def test_experts_by_both_ways_and_slots():
    r1 = models.MODELS["deepseek_r1"]
    whole = 58 * 256 * 3 * 7168 * 2048
    for at in (Layout(dp=8, ep=8), Layout(dp=8, tp_ffn=8), Layout(dp=8, tp_ffn=2, ep=4)):
        found = held(r1, at)
        assert found["expert gate_up"] + found["expert down"] == whole / 8
    spare = held(r1, Layout(dp=36, ep=36))
    assert spare["expert down"] * 36 == whole / 3 * 288 / 256
    # attention is whole on every replica of attention DP
    assert held(r1, Layout(dp=8, ep=8))["q_b"] == held(r1, Layout())["q_b"]
    assert held(r1, Layout(tp_attention=8, ep=8))["q_b"] == held(r1, Layout())["q_b"] / 8


def test_small_parts_are_divided_with_what_they_belong_to():
    oss = models.MODELS["gpt_oss_120b"]
    assert held(oss, Layout(dp=8, ep=8))["expert bias"] == held(oss, Layout())["expert bias"] / 8
    r1 = models.MODELS["deepseek_r1"]
    ((latent, _),) = shards.kinds(r1).mixers
    direct, at = replace(latent, q_rank=None), Layout(tp_attention=8, ep=8)  # as in DeepSeek-V2-Lite
    (first,) = (x for x in shards.mixer_shards(direct, 7168, at) if x.of.name == "q and kv_a")
    assert first.n == 128 * 192 / 8 + 512 + 64  # the latent is on every rank
    assert {x.of.name: float(x.n) for x in shards.mixer_shards(latent, 7168, at)}["q_a and kv_a"] == 1536 + 512 + 64


def test_shared_experts_and_dense_layers_follow_the_larger_group():
    r1 = models.MODELS["deepseek_r1"]
    for at, ranks in (
        (Layout(dp=8, ep=8), 1),
        (Layout(tp_attention=8, ep=8), 8),
        (Layout(dp=8, tp_ffn=8), 8),
        (Layout(tp_attention=2, dp=4, tp_ffn=4, ep=2), 4),
    ):
        assert held(r1, at)["shared down"] == held(r1, Layout())["shared down"] / ranks


@pytest.mark.parametrize("name", list(models.MODELS))
def test_ranks_together_hold_at_least_the_model(name):
    model = models.MODELS[name]
    for i in range(len(layout.layouts(8, model))):
        at = layout.layouts(8, model)[i]
        if at.pp == 1:
            found = held(model, at)
            assert sum(found.values()) * 8 >= sum(w.n_params for w in model.weights)
            one = held(model, Layout())
            assert all(found[key] <= one[key] for key in one)


def test_arrays_are_the_single_layouts():
    model, many = models.MODELS["nemotron_3_super"], layout.layouts(8, "nemotron_3_super")
    for shard, _ in shards.linear_shards(model, many):
        sizes = np.broadcast_to(shard.n_params, many.shape)
        for i in (0, 7, len(many) - 1):
            single = {s.of: float(s.n_params) for s, _ in shards.linear_shards(model, many[i])}
            assert sizes[i] == single[shard.of]


def test_tile_efficiency_by_hand():
    llama = models.MODELS["llama_3_1_8b"]
    assert shards.tile_efficiency(llama, Layout()) == 1.0
    # at TP 8 the head has 128,256 / 8 = 16,032 = 125.25 × 128 columns; all else is a multiple
    per_layer = 4096 * (4 + 1 + 1) * 128 + 512 * 4096 + 4096 * 2 * 1792 + 1792 * 4096
    asked, padded = 32 * per_layer + 4096 * 16_032, 32 * per_layer + 4096 * 126 * 128
    assert shards.tile_efficiency(llama, Layout(tp_attention=8, tp_ffn=8)) == pytest.approx(asked / padded, rel=1e-12)
    assert shards.tile_efficiency(llama, Layout(tp_attention=8, tp_ffn=8), multiple=32) == 1.0


def test_kinds_count_layers():
    found = shards.kinds(models.MODELS["deepseek_r1"])
    assert [n for _, n in found.ffns] == [3, 58] and sum(n for _, n in found.others) == 61
    assert sum(n for _, n in shards.kinds(models.MODELS["deepseek_r1"], mtp=True).mixers) == 1
    assert isinstance(shards.kinds(models.MODELS["gpt_oss_120b"]).mixers[0][0], Attention)


def test_grouped_outputs_and_recurrent_parts_by_hand():
    # DeepSeek-V4-Pro: 16 groups of output, each 128·512/16 = 4,096 wide and of rank 1,024; beyond 16 ranks the groups
    # are divided along their inputs
    pro = models.MODELS["deepseek_v4_pro"]
    mixer = shards.kinds(pro).mixers[0][0]
    for tp, k, count in ((1, 4096, 16), (8, 4096, 2), (16, 4096, 1), (64, 1024, 1)):
        at = Layout(tp_attention=tp, tp_ffn=tp)
        (found,) = (x for x in shards.mixer_shards(mixer, 7168, at) if x.of.name == "out_a")
        assert (found.k, found.n, found.count) == (k, 1024, count)
    # Mamba 1: what it reads its steps and gates from is divided, and so are the steps
    jamba = models.MODELS["jamba_1_5_mini"]
    mamba = next(m for m, _ in shards.kinds(jamba).mixers if getattr(m, "kind", "") == "mamba1")
    one, eight = (
        {x.of.name: x for x in shards.mixer_shards(mamba, 4096, Layout(tp_attention=n, tp_ffn=n))} for n in (1, 8)
    )
    assert eight["x"].k == one["x"].k / 8 and eight["x"].n == one["x"].n
    assert eight["dt"].n == one["dt"].n / 8 and eight["dt"].k == one["dt"].k
    # Kimi's delta rule: two gates from a small common size, a column a value
    kimi = Recurrent(kind="kimi_delta", n_heads=32, n_key_heads=32, d_key=128, d_value=128, d_rank=128)
    (gates,) = (x for x in shards.mixer_shards(kimi, 2304, Layout(tp_attention=8, tp_ffn=8)) if x.of.name == "gates")
    assert (gates.k, gates.n, gates.count) == (128, 32 * 128 / 8, 2)
