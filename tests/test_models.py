"""Models: parameters, caches, states and patterns, against published numbers, closed forms and each other."""

from __future__ import annotations

import csv
import dataclasses
import json
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign_lib.specs import hf_config, models, parameters, weights
from codesign_lib.specs.models import MODELS, Model

GIB = 2**30


def _raw(name: str) -> dict:
    return json.loads((hf_config._DATA / "configs" / f"{name}.json").read_text(encoding="utf-8"))


# --- KV cache: published bytes a token, and whole contexts ----------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "fmt", "expected"),
    [
        # DeepSeek-AI, Insights into DeepSeek-V3, arXiv:2505.09343, table 1 (kB of 1000 B)
        ("deepseek_r1", "bf16", 70_272),
        ("qwen2_5_72b", "bf16", 327_680),
        ("llama_3_1_405b", "bf16", 516_096),
        ("deepseek_r1", "fp8", 35_136),
        ("qwen3_32b", "bf16", 262_144),
        ("nemotron_3_super", "bf16", 8_192),
        ("qwen3_5_397b_a17b", "bf16", 30_720),
    ],
)
def test_kv_bytes_per_token(name, fmt, expected):
    assert MODELS[name].kv_bytes_per_token(fmt) == expected


@pytest.mark.parametrize(
    ("name", "n_context", "gib"),
    [
        # unslothai/unsloth#4757: six architectures, 16 bit
        ("gemma_3_27b", 131_072, 10.406),
        ("qwen3_5_27b", 262_144, 16.000),
        ("deepseek_r1", 163_840, 10.723),
        ("glm_5", 202_752, 16.967),
        ("kimi_k2_5", 262_144, 17.156),
        ("qwen3_0_6b", 40_960, 4.375),
    ],
)
def test_six_architectures_one_table(name, n_context, gib):
    assert round(float(models.kv_bytes(MODELS[name], n_context, "bf16")) / GIB, 3) == gib


def test_glm_5_with_its_prediction_layer():
    assert round(float(models.kv_bytes(MODELS["glm_5"], 202_752, "bf16", with_mtp=True)) / GIB, 3) == 17.185


def test_qwen2_window_halves_the_cache_only_where_it_is_on():
    raw = _raw("qwen2_5_72b") | dict(num_hidden_layers=28, num_attention_heads=28, hidden_size=3584,
                                     num_key_value_heads=4, sliding_window=4096, max_window_layers=14)  # fmt: skip
    off = Model.from_config(raw | dict(use_sliding_window=False))
    assert off.kv_bytes_per_token("bf16") == 57_344
    on = Model.from_config(raw | dict(use_sliding_window=True))
    gigabytes = [float(models.kv_bytes(m, 131_072, "bf16")) / 1e9 for m in (on, off)]
    assert [round(x, 2) for x in gigabytes] == [3.88, 7.52]


def test_latent_cache_is_one_head_with_its_rotary_part():
    deepseek = MODELS["deepseek_r1"]
    assert deepseek.kv_bytes_per_token("bf16") == 61 * (512 + 64) * 2
    as_mha = 61 * 2 * 128 * (7168 // 128) * 2  # keys and values of 128 heads of hidden size / heads
    assert as_mha / deepseek.kv_bytes_per_token("bf16") == pytest.approx(24.9, abs=0.05)


def test_states_of_hybrids():
    nemotron, qwen = MODELS["nemotron_3_super"], MODELS["qwen3_5_397b_a17b"]
    assert models.state_bytes(nemotron, "bf16") == 160 * 2**20
    assert models.state_bytes(nemotron, "bf16") / nemotron.kv_bytes_per_token("bf16") == 20_480
    assert models.state_bytes(qwen, "bf16") == 180 * 2**20
    assert models.state_bytes(MODELS["llama_3_1_8b"], "bf16") == 0
    more = models.state_bytes(nemotron, "bf16", with_convolution=True) - models.state_bytes(nemotron, "bf16")
    assert more == 40 * (8192 + 2 * 8 * 128) * 3 * 2
    half = Model.from_config(_raw("nemotron_3_super") | dict(mamba_ssm_cache_dtype="bfloat16"))
    assert models.state_bytes(half, "bf16") == 80 * 2**20


def test_short_convolutions_are_their_only_state():
    lfm2 = Model.from_config(
        dict(architectures=["Lfm2ForCausalLM"], model_type="lfm2", hidden_size=2048, intermediate_size=12288,
             num_hidden_layers=4, num_attention_heads=32, num_key_value_heads=8, vocab_size=65536, conv_L_cache=3,
             full_attn_idxs=[2], tie_word_embeddings=True)
    )  # fmt: skip
    assert models.state_bytes(lfm2, "bf16") == 3 * 2048 * 2 * 2


def test_windows_cap_and_chunks_cap():
    gemma = MODELS["gemma_3_27b"]
    by_kind = models.kv_bytes_by_kind(gemma, [512, 1024, 4096], "bf16")
    assert by_kind["sliding"].tolist() == [52 * n * 8192 for n in (512, 1024, 1024)]
    llama4 = MODELS["llama_4_maverick"]
    by_kind = models.kv_bytes_by_kind(llama4, [8192, 32_768], "fp8")
    assert by_kind["chunked"].tolist() == [36 * 8192 * 2048] * 2
    assert by_kind["full"].tolist() == [12 * 8192 * 2048, 12 * 32_768 * 2048]


def test_shared_layers_have_no_cache_of_their_own():
    raw = _raw("gemma_4_26b_a4b")
    own = Model.from_config(raw)
    raw["text_config"] = raw["text_config"] | dict(num_kv_shared_layers=12)
    shared = Model.from_config(raw)
    assert shared.kv_bytes_per_token("bf16") == own.kv_bytes_per_token("bf16") * 3 / 5
    assert shared.n_params < own.n_params


def test_compressed_attention_keeps_a_window_and_one_entry_of_many_tokens():
    flash = MODELS["deepseek_v4_flash"]
    context = np.array([100.0, 1_000_000.0])
    expected = 512 * (43 * np.minimum(context, 128) + 21 * np.floor(context / 4) + 20 * np.floor(context / 128))
    assert models.kv_bytes(flash, context, "fp8").tolist() == expected.tolist()
    assert models.indexer_bytes(flash, context, "fp8").tolist() == (21 * 128 * np.floor(context / 4)).tolist()


def test_indexer_keys_are_apart():
    v32, glm = MODELS["deepseek_v3_2"], MODELS["glm_5_2"]
    assert v32.kv_bytes_per_token("bf16") == 70_272
    assert float(models.indexer_bytes(v32, 1000, "fp8")) == 61 * 128 * 1000
    assert float(models.indexer_bytes(glm, 1000, "fp8")) == 21 * 128 * 1000  # 57 of 78 layers reuse a selection


# --- KV cache on ranks ----------------------------------------------------------------------------------------------
def test_ranks_beyond_the_kv_heads_hold_copies():
    qwen = MODELS["qwen3_5_397b_a17b"]
    tp = np.array([1, 2, 4, 8])
    ratio = tp * models.kv_bytes_per_rank(qwen, 4096, "bf16", tp=tp) / models.kv_bytes(qwen, 4096, "bf16")
    assert ratio.tolist() == [1, 1, 2, 4]
    heads, copies = models.caches.kv_heads_per_rank(2, tp)
    assert (heads.tolist(), copies.tolist()) == ([2, 1, 1, 1], [1, 1, 2, 4])


@pytest.mark.parametrize("tp", [4, 8])
def test_ten_kv_heads_fit_neither_4_nor_8_ranks(tp):
    with pytest.raises(ValueError, match=f"10 key-value heads at tensor parallelism {tp}: neither divides the other"):
        models.caches.kv_heads_per_rank(10, tp)


def test_every_rank_holds_a_latent_cache_whole():
    deepseek = MODELS["deepseek_r1"]
    assert float(models.kv_bytes_per_rank(deepseek, 1000, "bf16", tp=8)) == float(
        models.kv_bytes(deepseek, 1000, "bf16")
    )


# --- parameters -----------------------------------------------------------------------------------------------------
def test_tying_changes_parameters_and_never_the_head():
    raw = _raw("qwen3_0_6b")
    tied, untied = (Model.from_config(raw | dict(tie_word_embeddings=flag)) for flag in (True, False))
    assert [round(m.n_params / 1e6, 1) for m in (tied, untied)] == [596.0, 751.6]
    assert round((tied.n_params - tied.n_params_by_part["embedding"]) / 1e6, 1) == 440.5
    heads = [[layer for layer in m.linear_layers() if layer.kind == "head"] for m in (tied, untied)]
    assert heads[0] == heads[1] and round(2 * heads[0][0].n_params / 1e6, 1) == 311.2
    assert tied.n_active_params == untied.n_active_params


def test_deepseek_main_prediction_and_active_parameters():
    deepseek = MODELS["deepseek_r1"]
    assert round(deepseek.n_params / 1e9, 2) == 671.03
    assert round(deepseek.n_mtp_params / 1e9, 2) == 11.61
    assert round(deepseek.n_active_params / 1e9, 1) == 36.6


def test_shared_expert_width_counts_in_active_parameters():
    raw = _raw("gemma_4_26b_a4b")
    assert Model.from_config(raw).n_active_params / 1e9 == pytest.approx(3.822, abs=0.001)
    raw["text_config"] = raw["text_config"] | dict(intermediate_size=704)
    assert Model.from_config(raw).n_active_params / 1e9 == pytest.approx(3.465, abs=0.001)


def test_qwen_first_generation_has_7_72_billion():
    qwen = Model.from_config(
        dict(architectures=["QWenLMHeadModel"], model_type="qwen", hidden_size=4096, intermediate_size=22016,
             num_hidden_layers=32, num_attention_heads=32, kv_channels=128, vocab_size=151936, no_bias=True,
             tie_word_embeddings=False),
        name="Qwen-7B",
    )  # fmt: skip
    assert round(qwen.n_params / 1e9, 2) == 7.72
    assert "the name says 7 B parameters, the config 7.72 B (+10%)" in qwen.size_note


@pytest.mark.parametrize(
    ("kind", "n_vocab", "intermediate", "total"),
    [("internlm2", 92544, 14336, 7.74e9), ("exaone", 102400, 14336, 7.82e9)],  # the models' cards on the hub
)
def test_llamas_under_other_names(kind, n_vocab, intermediate, total):
    model = Model.from_config(
        dict(model_type=kind, hidden_size=4096, intermediate_size=intermediate, num_hidden_layers=32,
             vocab_size=n_vocab, num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=False)
    )  # fmt: skip
    assert model.n_params == pytest.approx(total, rel=0.01)


def test_a_vision_tower_is_a_part_of_its_own():
    gemma = MODELS["gemma_3_27b"]
    assert gemma.n_params_by_part["vision"] == 27_432_406_640 - gemma.n_params  # all of google/gemma-3-27b-it
    unknown = Model.from_config(_raw("gemma_3_27b") | dict(vision_config=dict(model_type="something")))
    assert unknown.n_params == gemma.n_params and "vision" not in unknown.n_params_by_part
    assert any("the vision tower is not counted" in note for note in unknown.config.notes)


def test_a_size_that_fits_the_name_is_not_remarked():
    assert MODELS["qwen3_32b"].size_note == "" and MODELS["gpt_oss_120b"].size_note == ""
    assert MODELS["llama_4_maverick"].size_note == ""  # 17 B is its active size


@pytest.mark.parametrize("name", MODELS)
def test_parts_add_up_and_linear_layers_are_among_them(name):
    model = MODELS[name]
    assert sum(n for part, n in model.n_params_by_part.items() if part not in models.APART) == model.n_params
    assert 0 < model.n_active_params <= model.n_params + model.config.tied * model.config.d_model * model.config.n_vocab
    matrices = sum(layer.n_params for layer in model.linear_layers())
    assert matrices > 0.95 * (model.n_params - model.n_params_by_part["embedding"])
    assert all(0 < layer.tokens_fraction <= 1 and layer.count > 0 for layer in model.linear_layers())


@pytest.mark.parametrize(
    ("name", "total", "source"),
    [
        ("llama_3_1_405b", 405e9, "The Llama 3 Herd of Models, arXiv:2407.21783"),
        ("mixtral_8x7b", 46.7e9, "Mistral AI, Mixtral of experts, 2023"),
        ("gpt_oss_120b", 116.83e9, "gpt-oss model card, arXiv:2508.10925, table 1"),
        ("gpt_oss_20b", 20.91e9, "gpt-oss model card, arXiv:2508.10925, table 1"),
        ("qwen2_5_72b", 72.7e9, "Qwen/Qwen2.5-72B model card"),
        ("qwen3_32b", 32.8e9, "Qwen/Qwen3-32B model card"),
        ("qwen3_235b_a22b", 235e9, "Qwen3 Technical Report, arXiv:2505.09388"),
        ("deepseek_r1", 671e9, "DeepSeek-V3 Technical Report, arXiv:2412.19437"),
        ("glm_4_5_air", 106e9, "GLM-4.5, arXiv:2508.06471"),
        ("llama_4_maverick", 400e9, "Meta, The Llama 4 herd, 2025"),
        ("jamba_1_5_mini", 52e9, "Jamba-1.5, arXiv:2408.12570"),
        ("mimo_v2_flash", 309e9, "XiaomiMiMo/MiMo-V2-Flash model card"),
        ("deepseek_v4_flash", 284e9, "deepseek-ai/DeepSeek-V4-Flash model card"),
        ("nemotron_h_56b", 56e9, "Nemotron-H, arXiv:2504.03624"),
    ],
)
def test_published_totals_within_one_percent(name, total, source):
    assert MODELS[name].n_params == pytest.approx(total, rel=0.01), source


# Configs written down by their few sizes, of models that are not among MODELS.
_MOE = dict(num_experts_per_tok=8, first_k_dense_replace=1)
_OTHERS = {
    "gemma_2_27b": dict(
        model_type="gemma2", hidden_size=4608, intermediate_size=36864, num_hidden_layers=46, num_attention_heads=32,
        num_key_value_heads=16, head_dim=128, sliding_window=4096, vocab_size=256000),
    "llama_3_2_1b": dict(
        model_type="llama", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, vocab_size=128256, tie_word_embeddings=True),
    "deepseek_v2": dict(
        _MOE, model_type="deepseek_v2", hidden_size=5120, intermediate_size=12288, num_hidden_layers=60,
        num_attention_heads=128, kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64,
        v_head_dim=128, n_routed_experts=160, n_shared_experts=2, moe_intermediate_size=1536, vocab_size=102400)
        | dict(num_experts_per_tok=6),
    "minimax_text_01": dict(
        model_type="minimax_text_01", hidden_size=6144, intermediate_size=9216, num_hidden_layers=80, head_dim=128,
        num_attention_heads=64, num_key_value_heads=8, num_local_experts=32, num_experts_per_tok=2, vocab_size=200064,
        attn_type_list=([0] * 7 + [1]) * 10, shared_intermediate_size=0),
    "qwen3_next_80b": dict(
        model_type="qwen3_next", hidden_size=2048, intermediate_size=5120, num_hidden_layers=48, head_dim=256,
        num_attention_heads=16, num_key_value_heads=2, linear_num_key_heads=16, linear_num_value_heads=32,
        linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4, num_experts=512,
        num_experts_per_tok=10, moe_intermediate_size=512, shared_expert_intermediate_size=512, vocab_size=151936),
    "granite_4_h_small": dict(
        model_type="granitemoehybrid", hidden_size=4096, intermediate_size=768, num_hidden_layers=40, mamba_d_conv=4,
        layer_types=(["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4, mamba_d_head=64, mamba_d_state=128,
        mamba_n_groups=1, mamba_n_heads=128, num_attention_heads=32, num_key_value_heads=8, num_experts_per_tok=10,
        num_local_experts=72, shared_intermediate_size=1536, tie_word_embeddings=True, vocab_size=100352),
    "longcat_flash": dict(
        model_type="longcat_flash", hidden_size=6144, ffn_hidden_size=12288, num_layers=28, num_attention_heads=64,
        kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        vocab_size=131072, n_routed_experts=512, zero_expert_num=256, moe_topk=12, expert_ffn_hidden_size=2048),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "total", "source"),
    [
        ("gemma_2_27b", 27.227e9, "Gemma 2, arXiv:2408.00118, table 2: 1,180 M embedding and 26,047 M other"),
        ("llama_3_2_1b", 1.23e9, "meta-llama/Llama-3.2-1B model card"),
        ("deepseek_v2", 236e9, "DeepSeek-V2, arXiv:2405.04434"),
        ("minimax_text_01", 456e9, "MiniMax-01, arXiv:2501.08313"),
        ("qwen3_next_80b", 80e9, "Qwen/Qwen3-Next-80B-A3B-Instruct model card"),
        ("granite_4_h_small", 32e9, "ibm-granite/granite-4.0-h-small model card"),
        ("longcat_flash", 560e9, "LongCat-Flash, arXiv:2509.01322"),
    ],
)
def test_other_published_totals_within_one_percent(name, total, source):
    assert Model.from_config(_OTHERS[name]).n_params == pytest.approx(total, rel=0.01), source


def test_a_window_no_shorter_than_the_longest_context_is_off():
    phi = dict(model_type="phi3", hidden_size=3072, intermediate_size=8192, num_attention_heads=32, vocab_size=32064,
               num_hidden_layers=32, max_position_embeddings=131_072)  # fmt: skip
    assert Model.from_config(phi | dict(sliding_window=262_144)).kv_bytes_per_token("bf16") == 393_216
    assert Model.from_config(phi | dict(sliding_window=2047)).kv_bytes_per_token("bf16") == 0


@pytest.mark.parametrize(
    ("name", "active"), [("gpt_oss_120b", 5.13e9), ("gpt_oss_20b", 3.61e9)]
)  # the card counts the head, not the embedding
def test_published_active_parameters(name, active):
    assert MODELS[name].n_active_params == pytest.approx(active, rel=0.002)


# --- linear layers --------------------------------------------------------------------------------------------------
def _layers(name: str) -> list[tuple]:
    return [(x.name, x.k, x.n, x.count, x.kind, x.tokens_fraction) for x in MODELS[name].linear_layers()]


def test_linear_layers_of_a_dense_model():
    assert _layers("llama_3_1_405b") == [
        ("qkv", 16384, (128 + 2 * 8) * 128, 126, "attention", 1.0),
        ("out", 128 * 128, 16384, 126, "attention", 1.0),
        ("gate_up", 16384, 2 * 53248, 126, "ffn", 1.0),
        ("down", 53248, 16384, 126, "ffn", 1.0),
        ("head", 16384, 128256, 1, "head", 1.0),
    ]


def test_linear_layers_of_latent_attention_and_experts():
    assert _layers("deepseek_r1") == [
        ("q_a and kv_a", 7168, 1536 + 512 + 64, 61, "attention", 1.0),
        ("q_b", 1536, 128 * (128 + 64), 61, "attention", 1.0),
        ("kv_b", 512, 128 * (128 + 128), 61, "attention", 1.0),
        ("out", 128 * 128, 7168, 61, "attention", 1.0),
        ("gate_up", 7168, 2 * 18432, 3, "ffn", 1.0),
        ("down", 18432, 7168, 3, "ffn", 1.0),
        ("router", 7168, 256, 58, "router", 1.0),
        ("expert gate_up", 7168, 2 * 2048, 58 * 256, "expert", 8 / 256),
        ("expert down", 2048, 7168, 58 * 256, "expert", 8 / 256),
        ("shared gate_up", 7168, 2 * 2048, 58, "shared_expert", 1.0),
        ("shared down", 2048, 7168, 58, "shared_expert", 1.0),
        ("head", 7168, 129280, 1, "head", 1.0),
    ]


def test_linear_layers_of_a_hybrid_with_latent_experts():
    layers = {layer.name: layer for layer in MODELS["nemotron_3_super"].linear_layers()}
    assert (layers["mamba2 in"].k, layers["mamba2 in"].n, layers["mamba2 in"].count) == (4096, 18560, 40)
    assert (layers["expert up"].k, layers["expert up"].n, layers["expert up"].count) == (1024, 2688, 40 * 512)
    assert (layers["latent in"].n, layers["shared up"].n) == (1024, 5376)


def test_irregular_layers_are_listed_by_size():
    sizes = {layer.n for layer in MODELS["nemotron_super_49b"].linear_layers() if layer.name == "gate_up"}
    assert len(sizes) > 3


# --- patterns -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("llama_3_1_8b", "32 full/dense"),
        ("deepseek_r1", "3 latent/dense + 58 latent/moe"),
        ("gemma_3_27b", "10 × (5 sliding/dense + 1 full/dense) + 2 sliding/dense"),
        ("qwen3_5_397b_a17b", "15 × (3 gated_delta/moe + 1 full/moe)"),
        ("gpt_oss_120b", "18 × (1 sliding/moe + 1 full/moe)"),
        ("glm_5", "3 sparse latent/dense + 75 sparse latent/moe"),
    ],
)
def test_patterns(name, pattern):
    assert MODELS[name].pattern == pattern


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40))
def test_a_pattern_says_the_same_layers(labels):
    text = models.patterns.folded(tuple(labels))

    def expand(words: str) -> list[str]:
        out, depth, part = [], 0, ""
        for char in words + " + ":
            depth += (char == "(") - (char == ")")
            part += char
            if depth == 0 and part.endswith(" + "):
                term = part[:-3]
                n, rest = term.split(" ", 1)
                inner = expand(rest[3:-1]) if rest.startswith("× (") else [rest]
                out += inner * int(n)
                part = ""
        return out

    assert expand(text) == labels


# --- limits and form ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", MODELS)
def test_the_slope_is_the_limit_of_the_cache(name):
    model = MODELS[name]
    context = np.array([2**22, 2**22 + 2**20])
    slope = np.diff(models.kv_bytes(model, context, "bf16")) / 2**20
    assert slope == pytest.approx(model.kv_bytes_per_token("bf16"))
    assert float(models.kv_bytes(model, 0, "bf16")) == 0


def test_kv_bytes_broadcasts_and_keeps_shapes():
    context = np.array([[1, 10], [100, 1000]], dtype=np.int32)
    got = models.kv_bytes(MODELS["llama_3_1_405b"], context, "bf16")
    assert got.shape == (2, 2) and got.dtype == np.float64
    assert models.kv_bytes_per_rank(MODELS["llama_3_1_405b"], context[:, :, None], "bf16", tp=[1, 8]).shape == (2, 2, 2)
    big = models.kv_bytes(MODELS["llama_3_1_405b"], np.int32(2_000_000), "bf16")  # would overflow int32
    assert float(big) == 2_000_000 * 516_096.0


@pytest.mark.parametrize("context", [-1, float("nan"), "many", float("inf")])
def test_contexts_that_are_no_length_are_refused(context):
    with pytest.raises(ValueError, match="n_context"):
        models.kv_bytes(MODELS["llama_3_1_8b"], context, "bf16")


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="unknown model 'llama'; known: deepseek_r1"):
        models.model("llama")
    with pytest.raises(ValueError, match="unknown format 'fp12'"):
        models.kv_bytes(MODELS["llama_3_1_8b"], 1, "fp12")
    assert models.model(MODELS["qwen3_32b"]) is MODELS["qwen3_32b"]


def test_every_committed_config_reads_without_a_warning_and_names_its_source():
    assert len(MODELS) >= 12
    for name in MODELS:
        raw = _raw(name)
        assert {"title", "repository", "file", "licence", "date"} <= raw["_source"].keys()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert Model.from_config(raw).n_params == MODELS[name].n_params


def test_what_if_by_replace():
    model = MODELS["llama_3_1_8b"]
    half = dataclasses.replace(model, config=dataclasses.replace(model.config, layers=model.config.layers[:16]))
    assert half.kv_bytes_per_token("bf16") == model.kv_bytes_per_token("bf16") / 2
    outside = parameters.total(weights.outer_weights(model.config))
    assert half.n_params - outside == (model.n_params - outside) / 2


# --- the committed comparison with transformers ---------------------------------------------------------------------
def _validation() -> list[dict[str, str]]:
    text = (hf_config._DATA / "validation" / "configs.csv").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert [line.split(":")[0] for line in lines[:6]] == [
        "# title", "# source", "# version", "# date", "# licence", "# drawn_by"
    ]  # fmt: skip
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def test_committed_counts_are_what_the_code_gives_today():
    rows = [row for row in _validation() if row["origin"] == "committed"]
    assert [row["name"] for row in rows] == list(MODELS)
    for row in rows:
        model = MODELS[row["name"]]
        assert (row["architecture"], int(row["ours_n_params"])) == (model.config.architecture, model.n_params)
        if row["ours_n_mtp_params"]:
            assert int(row["theirs_n_mtp_params"]) == model.n_mtp_params
        if row["theirs_n_vision_params"]:
            assert int(row["theirs_n_vision_params"]) == model.config.n_vision_params
        if row["theirs_n_kv_elements"] and not row["reason"]:
            context = int(row["n_context"])
            assert int(row["theirs_n_kv_elements"]) == float(models.kv_bytes(model, context, "int8")), row["name"]
        if row["equal"] == "yes":
            assert int(row["theirs_n_params"]) == model.n_params
        assert model.config.family == hf_config.BY_ARCHITECTURE[row["architecture"]].name


def test_counts_equal_those_of_transformers_or_say_why_not():
    rows = _validation()
    for row in rows:
        same = row["ours_n_params"] == row["theirs_n_params"] and row["ours_n_mtp_params"] == row["theirs_n_mtp_params"]
        assert (row["equal"] == "yes") == same, row["name"]
        same = same and row["ours_n_kv_elements"] == row["theirs_n_kv_elements"]
        assert same or (row["reason"] and row["reason"] != "NOT EXPLAINED"), row["name"]
    wheel = [row for row in rows if row["origin"] == "wheel"]
    assert len(wheel) == 89 and sum(row["equal"] == "yes" for row in wheel) >= 80
    assert sum(row["reason"].startswith("refused") for row in wheel) <= 9


def test_every_family_that_transformers_has_was_compared():
    compared = {hf_config.BY_ARCHITECTURE[row["architecture"]].name for row in _validation() if row["equal"] == "yes"}
    without = {f.name for f in hf_config.FAMILIES if f.name not in compared}
    assert without == {"qwen", "llama_like", "mimo", "deci", "longcat"}
    assert all(not f.checked.startswith("transformers") for f in hf_config.FAMILIES if f.name in without)


def test_a_network_found_by_search_has_the_size_of_its_name():
    assert MODELS["nemotron_super_49b"].n_params == pytest.approx(49e9, rel=0.02)
