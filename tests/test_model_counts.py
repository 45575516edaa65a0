"""What is read for a token, states, prediction modules and selections: against hand arithmetic, layer by layer."""

from __future__ import annotations

import warnings

import pytest

from codesign_lib.specs import models
from codesign_lib.specs.hf_config import CLASSES, read
from codesign_lib.specs.hf_config.vision import n_vision_params
from codesign_lib.specs.models import MODELS, Model


def _default(kind: str, **changed) -> Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Model.from_config(dict(text_config=dict(model_type=kind, **changed)), name=kind)


def _part(model: Model, name: str):
    return next(part for part in model.parts if part.name == name)


def test_the_state_of_lightning_attention_is_a_matrix_a_head():
    # MiniMax-Text-01 (arXiv:2501.08313): 80 layers, every eighth softmax, 64 heads of 128: 70·64·128·128 FP32 numbers
    minimax = CLASSES["minimax"]["defaults"] | dict(
        model_type="minimax_text_01", num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8, head_dim=128,
        attn_type_list=([0] * 7 + [1]) * 10,
    )  # fmt: skip
    model = Model.from_config(minimax)
    assert models.state_bytes(model, "bf16") == 70 * 64 * 128 * 128 * 4 == 293_601_280
    assert model.kv_bytes_per_token("bf16") == 10 * 2 * 8 * 128 * 2


def test_states_of_every_recurrence():
    # heads × key × value × 4 B a layer; convolutions keep (width − 1) inputs
    assert models.state_bytes(_default("qwen3_next"), "bf16") == 36 * 32 * 128 * 128 * 4
    assert models.state_bytes(_default("jamba"), "bf16") == 28 * 8192 * 16 * 4
    assert models.state_bytes(_default("jamba"), "bf16", with_convolution=True) == 28 * 8192 * (16 * 4 + 3 * 2)
    assert models.state_bytes(_default("mamba2"), "bf16") == 64 * 128 * 64 * 128 * 4
    lfm2 = _default("lfm2", full_attn_idxs=[2, 5], num_hidden_layers=6)
    assert models.state_bytes(lfm2, "bf16") == 4 * 2560 * (3 - 1) * 2


def test_experts_that_compute_nothing_are_chosen_like_the_others():
    # Longcat-Flash: 12 of 512 + 256 idle, so on average 8 of the 512 that have weights
    model = _default("longcat_flash")
    expert = next(layer for layer in model.linear_layers() if layer.name == "expert down")
    assert expert.tokens_fraction == 12 / 768
    experts = _part(model, "experts")
    assert experts.n_read * 512 == pytest.approx(experts.n_stored * 8)


def test_every_token_goes_to_and_from_the_smaller_size_of_latent_experts():
    model = MODELS["nemotron_3_super"]
    latent = [layer for layer in model.linear_layers() if layer.kind == "latent"]
    assert {(layer.name, layer.k, layer.n, layer.tokens_fraction) for layer in latent} == {
        ("latent in", 4096, 1024, 1.0), ("latent out", 1024, 4096, 1.0)
    }  # fmt: skip
    # 40 layers: both projections whole, 22 of 512 experts of 2 · 1024 · 2688
    assert _part(model, "experts").n_read == 40 * (2 * 4096 * 1024 + 22 * 2 * 1024 * 2688)


def test_a_table_of_per_layer_embeddings_is_stored_and_not_read():
    part = _part(_default("gemma3n_text"), "per-layer embedding")
    assert part.n_stored - part.n_read == 262_144 * 256 * 35


def test_what_a_prediction_module_reads_for_a_token():
    # DeepSeek-V3: a projection 2·7168 → 7168, five norms of 7168, latent attention, 8 + 1 experts, the router
    attention = 7168 * (1536 + 576) + 1536 + 1536 * 128 * 192 + 512 + 512 * 128 * 256 + 128 * 128 * 7168
    read_ = 2 * 7168 * 7168 + 5 * 7168 + attention + 9 * 3 * 7168 * 2048 + 256 * 7168
    assert _part(MODELS["deepseek_r1"], "mtp").n_read == read_


def test_the_prediction_layer_of_shared_selections_is_one_that_scores():
    config = MODELS["glm_5_2"].config
    assert config.layers[-1].mixers[0].indexer is None and config.mtp_layers[0].mixers[0].indexer is not None


def test_how_many_tokens_sparse_attention_reads():
    assert {x.mixers[0].n_selected_tokens for x in MODELS["deepseek_v3_2"].config.layers} == {2048}
    sparse = [x.mixers[0] for x in MODELS["minimax_m3"].config.layers if x.mixers[0].indexer]
    assert {x.n_selected_tokens for x in sparse} == {16 * 128}


def test_ernie_places_its_experts_by_start_end_and_interval():
    def holds(**changed):
        config = read(dict(text_config=dict(model_type="ernie4_5_moe", num_hidden_layers=8) | changed))
        return [i for i, layer in enumerate(config.layers) if layer.ffns[0].n_experts]

    assert holds(moe_layer_start_index=0) == list(range(8))
    assert holds() == list(range(1, 8))
    assert holds(moe_layer_interval=2) == [1, 3, 5, 7]
    assert holds(moe_layer_interval=2, moe_layer_end_index=5) == [1, 3, 5]
    assert holds(moe_layer_start_index=3, moe_layer_end_index=4) == [3, 4]


def test_the_first_28_layers_of_qwen2_are_full_where_nothing_else_is_said():
    # Qwen2Config: max_window_layers 28
    config = read(dict(text_config=dict(model_type="qwen2", num_hidden_layers=30, use_sliding_window=True)))
    assert [x.mixers[0].window_tokens for x in config.layers] == [None] * 28 + [4096] * 2


def test_kimi_linear_places_its_attention_by_rule_where_no_list_is_given():
    # KimiLinearConfig without layer_types: layers 4, 8, … (counted from 0) hold attention, the first does not
    kinds = [layer.mixers[0].kind for layer in _default("kimi_linear").config.layers]
    assert [i for i, kind in enumerate(kinds) if kind == "latent"] == [4, 8, 12, 16, 20, 24]


def test_how_many_compressed_entries_deepseek_v4_selects():
    # DeepSeek-V4: 512 entries in Flash, 1,024 in Pro, in the layers that pool four tokens
    for name, n in (("deepseek_v4_flash", 512), ("deepseek_v4_pro", 1024)):
        mixers = [layer.mixers[0] for layer in MODELS[name].config.layers]
        assert {x.n_selected_tokens for x in mixers if x.indexer} == {n}


def test_a_state_is_as_wide_as_the_config_says():
    wide = models.state_bytes(_default("qwen3_next"), "bf16")
    for name in ("float16", "bfloat16"):
        assert models.state_bytes(_default("qwen3_next", mamba_ssm_dtype=name), "bf16") == wide / 2


def test_mimo_windows_from_layer_28_on_behind_its_flag():
    # no class in transformers; as Qwen2, whose default is 28
    raw = dict(model_type="mimo", num_hidden_layers=30, hidden_size=64, num_attention_heads=4, vocab_size=100,
               intermediate_size=128, use_sliding_window=True, sliding_window=16)  # fmt: skip
    assert [x.mixers[0].window_tokens for x in read(raw).layers] == [None] * 28 + [16] * 2


def test_a_tower_counts_a_merger_for_each_layer_that_it_hands_on():
    tower = dict(model_type="qwen3_vl", hidden_size=1152, intermediate_size=4304, depth=27, patch_size=16,
                 temporal_patch_size=2, spatial_merge_size=2, out_hidden_size=4096,
                 num_position_embeddings=2304)  # fmt: skip
    one, three = (
        n_vision_params(dict(vision_config=tower | dict(deepstack_visual_indexes=list(at))), 4096, "config")
        for at in ((8,), (8, 16, 24))
    )
    # two layer-norm vectors of 4·1152, a square matrix and one to 4,096, both with biases
    assert three - one == 2 * (2 * 4608 + 4608 * 4608 + 4608 + 4608 * 4096 + 4096)
