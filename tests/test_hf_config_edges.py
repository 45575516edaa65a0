"""Configs at the edges: windows that are off, keys that change shapes, contradictions, inner levels of wrappers."""

from __future__ import annotations

import dataclasses
import gzip
import json
import time
import warnings

import numpy as np
import pytest

from codesign_lib.specs import hf_config, models, parameters
from codesign_lib.specs.hf_config import CLASSES, read
from codesign_lib.specs.models import MODELS, Model, kv_bytes

LLAMA = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=64, intermediate_size=256, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, vocab_size=1000, tie_word_embeddings=False,
)  # fmt: skip


def _like(architecture: str, model_type: str, **changed) -> dict:
    return LLAMA | dict(architectures=[architecture], model_type=model_type) | changed


def _raw(name: str) -> dict:
    return json.loads((hf_config._DATA / "configs" / f"{name}.json").read_text(encoding="utf-8"))


def _quiet(raw: dict) -> Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Model.from_config(raw)


def _kinds(config) -> str:
    return "".join(layer.mixers[0].kind[0] for layer in config.layers)


# --- windows --------------------------------------------------------------------------------------------------------
def test_a_stray_window_in_a_class_without_one_is_named_and_not_used():
    with pytest.warns(UserWarning, match="not used: sliding_window"):
        assert _kinds(read(LLAMA | dict(sliding_window=4096, max_position_embeddings=32768))) == "ffff"


@pytest.mark.parametrize(
    ("name", "part", "width"), [("gemma_4_26b_a4b", "text_config", 1024), ("mimo_v2_flash", "", 128)]
)
def test_a_window_that_is_off_changes_no_parameter(name, part, width):
    raw = _raw(name)
    text = raw[part] if part else raw
    text["max_position_embeddings"] = width
    model = _quiet(raw)
    assert model.n_params == MODELS[name].n_params  # heads, head sizes and sinks of these layers stay
    assert not any(x.window_tokens for layer in model.config.layers for x in layer.mixers)
    assert float(kv_bytes(model, width, "bf16")) == float(kv_bytes(MODELS[name], width, "bf16"))


def test_layers_listed_as_sliding_need_a_window_and_a_class_that_has_one():
    sliding = dict(layer_types=["sliding_attention"] * 4)
    with pytest.raises(
        ValueError, match=r"layer_types\[0\] is sliding attention; sliding_window has no effect in llama"
    ):
        read(LLAMA | sliding)
    for architecture, kind in (("SeedOssForCausalLM", "seed_oss"), ("GraniteForCausalLM", "granite")):
        with pytest.raises(ValueError, match=r"layer_types\[0\] is sliding attention; sliding_window has no effect"):
            read(_like(architecture, kind, **sliding, sliding_window=8))
    mistral = _like("MistralForCausalLM", "mistral", **sliding)
    with pytest.raises(ValueError, match=r"layer_types\[0\] is sliding attention but sliding_window is missing"):
        read(mistral | dict(sliding_window=None))
    assert _kinds(read(mistral | dict(sliding_window=8))) == "ssss"
    assert (
        _kinds(read(_like("Qwen2ForCausalLM", "qwen2", **sliding, sliding_window=8, use_sliding_window=False)))
        == "ffff"
    )


def test_gemma_4_makes_its_last_layer_full():
    gemma = _like("Gemma4ForCausalLM", "gemma4_text", layer_types=["sliding_attention"] * 4, sliding_window=8,
                  hidden_size_per_layer_input=0, head_dim=16)  # fmt: skip
    config = read(gemma)
    assert _kinds(config) == "sssf" and any("layer_types[3] is sliding: full" in note for note in config.notes)


def test_windows_of_the_qwens_with_experts_follow_their_own_classes():
    moe = dict(num_hidden_layers=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, sliding_window=16,
               use_sliding_window=True, max_window_layers=4, shared_expert_intermediate_size=32)  # fmt: skip
    assert _kinds(read(_like("Qwen2MoeForCausalLM", "qwen2_moe", **moe))) == "sfsfffff"
    del moe["shared_expert_intermediate_size"]
    assert _kinds(read(_like("Qwen3MoeForCausalLM", "qwen3_moe", **moe))) == "ssssssss"
    assert _kinds(read(_like("Qwen3MoeForCausalLM", "qwen3_moe", **moe | dict(use_sliding_window=False)))) == "f" * 8
    dense = dict(num_hidden_layers=8, sliding_window=16, use_sliding_window=True, max_window_layers=4)
    assert _kinds(read(_like("Qwen3ForCausalLM", "qwen3", **dense))) == "ffffssss"


def test_cwm_begins_with_a_full_layer():
    assert _kinds(read(_like("CwmForCausalLM", "cwm", num_hidden_layers=6, sliding_window=8))) == "fsssfs"


# --- keys that change shapes ----------------------------------------------------------------------------------------
def test_the_head_bias_of_phi_moe_is_counted():
    phi = CLASSES["phimoe"]["defaults"] | dict(model_type="phimoe")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_bias = Model.from_config(phi | dict(lm_head_bias=True)).n_params
    assert with_bias - Model.from_config(phi | dict(lm_head_bias=False)).n_params == phi["vocab_size"] == 32_064


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (_like("PhiForCausalLM", "phi", qk_layernorm=True), "qk_layernorm is true; allowed in PhiForCausalLM: false"),
        (
            _like("StableLmForCausalLM", "stablelm", use_parallel_residual=True),
            "use_parallel_residual is true; .*not mod",
        ),
        (_like("InternLM2ForCausalLM", "internlm2", bias=True), "bias is true; allowed in InternLM2ForCausalLM: false"),
        (_like("QWenLMHeadModel", "qwen", no_bias=False), "no_bias is false; allowed in QWenLMHeadModel: true"),
        (_like("DeepseekV2ForCausalLM", "deepseek_v2", use_mla=False), "use_mla is false; allowed .*: true"),
        (
            _like("InternLM3ForCausalLM", "internlm3", qkv_bias=True),
            "qkv_bias is true; allowed in InternLM3ForCausalLM",
        ),
        (_like("Qwen2ForCausalLM", "qwen2", use_sliding_window="yes"), "use_sliding_window is 'yes'; allowed: true or"),
        (_like("MobileLLMForCausalLM", "mobilellm"), "'MobileLLMForCausalLM' is not supported"),
    ],
)
def test_switches_that_are_not_modelled_are_refused(raw, message):
    with pytest.raises(ValueError, match=message):
        read(raw)


# --- contradictions -------------------------------------------------------------------------------------------------
MAMBA2 = dict(
    architectures=["Mamba2ForCausalLM"], model_type="mamba2", hidden_size=64, num_hidden_layers=2, vocab_size=100,
    num_heads=8, head_dim=16, state_size=16, expand=2, n_groups=1, conv_kernel=4,
)  # fmt: skip
BAMBA = _like("BambaForCausalLM", "bamba", attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=16, mamba_d_conv=4,
              mamba_d_state=16, mamba_n_groups=1, mamba_expand=2)  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            LLAMA | dict(text_config=LLAMA | dict(hidden_size=128)),
            "hidden_size is 64 but text_config.hidden_size is 128",
        ),
        (LLAMA | dict(tie_embedding=True), "tie_word_embeddings is False but tie_embedding is True"),
        (MAMBA2 | dict(expand=4), r"expand × hidden_size is 256 but num_heads × head_dim is 128"),
        (BAMBA | dict(mamba_expand=4), r"mamba_expand × hidden_size is 256 but mamba_n_heads × mamba_d_head is 128"),
        (LLAMA | dict(is_encoder_decoder=True), "is_encoder_decoder is true; allowed: false"),
        (dict(text_config=LLAMA | dict(add_cross_attention=True)), "text_config: add_cross_attention is true"),
        (dict(model_type="encoder-decoder", encoder=LLAMA, decoder=LLAMA), "there is an encoder and a decoder"),
    ],
)
def test_what_contradicts_itself_is_refused(raw, message):
    with pytest.raises(ValueError, match=message):
        read(raw)


def test_what_agrees_is_read():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(LLAMA | dict(text_config=LLAMA)).text_path == "text_config"
    assert read(MAMBA2).layers[0].mixers[0].n_heads == 8
    assert _kinds(read(BAMBA | dict(num_hidden_layers=2))) == "mf"
    assert not read(LLAMA | dict(is_encoder_decoder=False, add_cross_attention=False)).tied


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(moe_topk=[2] * 3), "moe_topk has 3 entries, num_hidden_layers is 4: index 3 is missing"),
        (
            dict(num_shared_expert=[1] * 5),
            "num_shared_expert has 5 entries, num_hidden_layers is 4: index 4 is one too",
        ),
        (dict(moe_topk=[2, 2, 1, 2]), r"moe_topk\[2\] is 1 and moe_topk\[0\] 2; allowed: one value for all"),
    ],
)
def test_a_list_a_layer_has_one_entry_a_layer(changed, message):
    hunyuan = _like("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", head_dim=16, num_experts=4, moe_topk=[2] * 4)
    assert read(hunyuan).layers[0].ffns[0].n_active_experts == 2
    with pytest.raises(ValueError, match=message):
        read(hunyuan | changed)


# --- wrappers -------------------------------------------------------------------------------------------------------
def test_every_level_of_a_wrapper_is_read():
    inner = {k: v for k, v in LLAMA.items() if k != "tie_word_embeddings"}
    tower = dict(model_type="not_known", hidden_size=8)
    raw = dict(thinker_config=dict(text_config=inner, tie_word_embeddings=True, wobble=3, vision_config=tower,
                                   quantization_config=dict(quant_method="fp8")), frobnicate=7)  # fmt: skip
    with pytest.warns(UserWarning, match="wobble, frobnicate"):
        config = read(raw)
    assert (config.text_path, config.tied, config.quantisation, config.has_vision) == (
        "thinker_config.text_config", True, "fp8", True
    )  # fmt: skip
    assert config.unknown_keys == ("wobble", "frobnicate")


def test_unknown_keys_of_inner_objects_are_named_with_their_path():
    kimi = _like("KimiLinearForCausalLM", "kimi_linear", kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
                 v_head_dim=16, num_experts=4, num_experts_per_token=2, moe_intermediate_size=24, head_dim=16,
                 linear_attn_config=dict(full_attn_layers=[4], kda_layers=[1, 2, 3], num_heads=4, head_dim=16,
                                         short_conv_kernel_size=4, wobble=1))  # fmt: skip
    with pytest.warns(UserWarning, match=r"not used: linear_attn_config\.wobble"):
        read(kimi)


def test_very_many_unknown_keys_are_one_short_warning():
    many = {f"unknown_{i}": 1 for i in range(50_000)} | {"x" * 10_000: 1}
    with pytest.warns(UserWarning, match=r"unknown_19 and 49981 more") as caught:
        config = read(LLAMA | many)
    assert len(str(caught[0].message)) < 1000 and len(config.unknown_keys) == 50_001


def test_a_warning_points_at_who_asked():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        Model.from_config(LLAMA | dict(frobnicate=7))
        Model.from_config(LLAMA | dict(frobnicate=7))
        read(LLAMA | dict(frobnicate=7))
    assert [warning.filename for warning in caught] == [__file__] * 3


def test_keys_of_published_configs_without_effect_are_known():
    lfm2 = CLASSES["lfm2"]["defaults"] | dict(
        model_type="lfm2", full_attn_idxs=[2], block_dim=2048, block_mlp_init_scale=1.0, block_norm_eps=1e-5, theta=1e6,
        block_out_init_scale=1.0, block_use_swiglu=True, block_use_xavier_init=True, conv_dim=2048, conv_dim_out=2048,
        conv_use_xavier_init=True, num_heads=32, use_pos_enc=True,
    )  # fmt: skip
    phi = CLASSES["phi3"]["defaults"] | dict(
        model_type="phi3", full_attn_mod=1, interpolate_factor=1, lm_head_bias=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(lfm2), read(phi)


# --- files ----------------------------------------------------------------------------------------------------------
def test_a_repeated_key_among_very_many_is_found_at_once(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{" + ", ".join(f'"k{i}": 1' for i in range(100_000)) + ', "k99999": 2}')
    start = time.perf_counter()
    with pytest.raises(ValueError, match="the key 'k99999' is given twice"):
        read(path)
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (gzip.compress(b"{}", mtime=0), "a gzip file"),
        ((2).to_bytes(8, "little") + b"{}", "a safetensors file"),
    ],
)
def test_other_files_are_called_what_they_are(tmp_path, data, what):
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(ValueError, match=f"is {what}, not a config.json"):
        read(tmp_path / "config.json")


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_text_that_is_no_path_is_named(path):
    with pytest.raises(ValueError, match=r"is no path of a file|there is no such file") as error:
        read(path)
    assert type(error.value) is ValueError and ascii(path)[1:-1].split("\\")[1] in str(error.value)


@pytest.mark.parametrize("changed", [dict(layers_block_type=[]), dict(hybrid_override_pattern="")])
def test_a_model_of_no_layers_is_refused(changed):
    raw = CLASSES["nemotron_h"]["defaults"] | dict(model_type="nemotron_h")
    raw.pop("num_hidden_layers", None)
    with pytest.raises(ValueError, match="is empty; allowed"):
        read(raw | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(layers=()), "layers is .*at least one layer"),
        (dict(d_model=-5), "d_model is -5"),
        (dict(n_vocab=1.5), "n_vocab is 1.5"),
    ],
)
def test_what_if_is_checked_as_well(changed, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(MODELS["llama_3_1_8b"].config, **changed)


# --- caches ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["deepseek_v4_pro", "minimax_m2_5", "step_3_7_flash"])
def test_prediction_modules_of_unknown_shape_are_not_cached_silently(name):
    with pytest.raises(ValueError, match=r"multi-token-prediction modules are declared, .*allowed: with_mtp=False"):
        kv_bytes(MODELS[name], 1000, "bf16", with_mtp=True)
    assert float(kv_bytes(MODELS["llama_3_1_8b"], 1, "bf16", with_mtp=True)) == 131_072  # none declared: nothing to add


@pytest.mark.parametrize("name", ["qwen3_32b", "llama_3_1_8b"])
@pytest.mark.parametrize("tp", [0.5, 1.5, -3, 0, "x", [1, 2.5], float("nan")])
def test_ranks_are_whole_numbers(name, tp):
    with pytest.raises(ValueError, match="tp is"):
        models.kv_bytes_per_rank(MODELS[name], 1, "bf16", tp=tp)
    mamba = Model.from_config(MAMBA2)
    with pytest.raises(ValueError, match="tp is"):
        models.kv_bytes_per_rank(mamba, 1, "bf16", tp=tp)


def test_shapes_that_do_not_broadcast_and_names():
    with pytest.raises(ValueError, match=r"n_context of shape \(2,\) and tp of shape \(3,\) do not broadcast"):
        models.kv_bytes_per_rank("qwen3_32b", [1, 2], "bf16", tp=[1, 2, 4])
    with pytest.raises(ValueError, match="tp is"):
        models.kv_bytes_per_rank("qwen3_32b", 1, "bf16", tp=[[1, 2], [1]])
    assert float(kv_bytes("qwen3_32b", 1, "bf16")) == 262_144
    assert models.state_bytes("nemotron_3_super", "bf16") == 160 * 2**20
    assert np.shape(models.indexer_bytes("glm_5", [1, 2], "fp8")) == (2,)
    with pytest.raises(ValueError, match="unknown model 'nobody'"):
        models.state_bytes("nobody", "bf16")


def test_latent_attention_against_the_two_wrong_formulas():
    # L·(kv_lora_rank + qk_rope_head_dim)·b = 61·(512 + 64)·2; keys and values of hidden_size instead: 24.9 × too much;
    # the latent counted as key and as value, without the rope part: 1.78 ×
    right = MODELS["deepseek_r1"].kv_bytes_per_token("bf16")
    assert right == 70_272
    assert round(61 * 2 * 7168 * 2 / right, 1) == 24.9
    assert round(61 * 2 * 512 * 2 / right, 2) == 1.78


# --- names ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("title", "total", "said"),
    [
        ("OLMoE-1B-7B", 6.92e9, ""),
        ("gemma-3n-E4B", 6.84e9, ""),
        ("Qwen3-30B-A3B", 30.5e9, ""),
        ("Qwen-7B", 12.05e9, "Qwen-7B: the name says 7 B parameters, the config 12.05 B (+72%)"),
    ],
)
def test_a_name_is_held_against_the_total_it_gives(title, total, said):
    assert parameters.size_note(title, int(total)) == said


def test_a_tower_that_is_not_known_makes_no_false_alarm():
    raw = dict(
        text_config=CLASSES["gemma"]["defaults"] | dict(model_type="gemma"), vision_config=dict(model_type="new")
    )
    assert Model.from_config(raw, name="paligemma-30b").size_note == ""
