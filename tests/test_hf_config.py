"""A config.json → plain fields: the conventions of each family, and every way a file can be refused."""

from __future__ import annotations

import json
import os
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign_lib.specs import hf_config
from codesign_lib.specs.hf_config import read

LLAMA = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=64, intermediate_size=256, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, vocab_size=1000, tie_word_embeddings=False,
)  # fmt: skip
MOE = dict(
    architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", hidden_size=64, intermediate_size=256,
    num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=4, vocab_size=1000, tie_word_embeddings=False,
    kv_lora_rank=32, q_lora_rank=48, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=8,
    num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=24, first_k_dense_replace=2, moe_layer_freq=1,
)  # fmt: skip


def _moe_layers(config) -> list[int]:
    return [i for i, layer in enumerate(config.layers) if any(ffn.n_experts for ffn in layer.ffns)]


def _kinds(config) -> str:
    return "".join(layer.mixers[0].kind[0] for layer in config.layers)


# --- head size ------------------------------------------------------------------------------------------------------
def test_head_size_is_its_own_field():
    qwen3_32b = LLAMA | dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=5120, num_attention_heads=64,
        num_key_value_heads=8, head_dim=128, num_hidden_layers=64,
    )  # fmt: skip
    attention = read(qwen3_32b).layers[0].mixers[0]
    assert (attention.d_head, attention.n_heads * attention.d_head) == (128, 8192)


def test_head_size_null_is_absent_and_then_divides():
    assert read(LLAMA | dict(head_dim=None)).layers[0].mixers[0].d_head == 16
    with pytest.raises(ValueError, match="hidden_size is 1792 and num_attention_heads 24"):
        read(LLAMA | dict(hidden_size=1792, num_attention_heads=24, num_key_value_heads=24))
    odd = LLAMA | dict(hidden_size=1792, num_attention_heads=24, num_key_value_heads=24, head_dim=128)
    assert read(odd).layers[0].mixers[0].d_head == 128


def test_absent_kv_heads_are_as_many_as_heads_and_noted():
    config = read({k: v for k, v in LLAMA.items() if k != "num_key_value_heads"})
    assert config.layers[0].mixers[0].n_kv_heads == 4
    assert any("num_key_value_heads is absent" in note for note in config.notes)


# --- wrappers -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["text_config", "llm_config", "language_config", "thinker_config.text_config"])
def test_the_text_model_is_found_in_its_wrapper(path):
    tower = dict(num_hidden_layers=27, num_attention_heads=16, hidden_size=1152, model_type="siglip_vision_model")
    wrapped = dict(LLAMA)
    for name in reversed(path.split(".")):
        wrapped = {name: wrapped, "audio_config": dict(tower), "vision_config": dict(tower)}
    wrapped["architectures"] = ["SomethingForConditionalGeneration"]
    config = read(wrapped)
    assert config.text_path == path
    assert config.d_model == 64 and len(config.layers) == 4 and config.has_vision


def test_two_possible_text_models_are_refused():
    with pytest.raises(ValueError, match="several parts could be the language model: llm_config, other_config"):
        read(dict(llm_config=LLAMA, other_config=LLAMA))


def test_gemma3_4b_omits_what_is_its_class_default():
    text = dict(model_type="gemma3_text", hidden_size=2560, intermediate_size=10240, num_hidden_layers=34,
                sliding_window=1024)  # fmt: skip
    config = read(dict(architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", text_config=text))
    first = config.layers[0].mixers[0]
    assert (first.n_heads, first.n_kv_heads, first.d_head, config.n_vocab, config.tied) == (8, 4, 256, 262208, True)
    assert any(note.startswith("num_attention_heads is absent: 8") for note in config.notes)


# --- windows --------------------------------------------------------------------------------------------------------
QWEN2 = LLAMA | dict(
    architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=3584, num_hidden_layers=28,
    num_attention_heads=28, num_key_value_heads=4, sliding_window=4096, max_window_layers=14,
)  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "kinds"),
    [
        (dict(use_sliding_window=False), "f" * 28),
        (dict(), "f" * 28),
        (dict(use_sliding_window=True, sliding_window=None), "f" * 28),
        (dict(use_sliding_window=True), "f" * 14 + "s" * 14),
    ],
)
def test_a_declared_window_may_be_off(flags, kinds):
    assert _kinds(read(QWEN2 | flags)) == kinds


def test_windows_of_every_other_kind():
    mistral = LLAMA | dict(architectures=["MistralForCausalLM"], model_type="mistral")
    assert _kinds(read(mistral | dict(sliding_window=32))) == "ssss"
    assert _kinds(read(mistral | dict(sliding_window=None))) == "ffff"
    assert read(mistral).layers[0].mixers[0].window_tokens == 4096  # MistralConfig's default where it is absent
    gemma2 = LLAMA | dict(architectures=["Gemma2ForCausalLM"], model_type="gemma2", sliding_window=32, head_dim=16)
    assert _kinds(read(gemma2)) == "sfsf"
    exaone = LLAMA | dict(architectures=["Exaone4ForCausalLM"], model_type="exaone4", sliding_window=32)
    assert _kinds(read(exaone | dict(sliding_window_pattern="LLG"))) == "ssfs"
    assert _kinds(read(exaone | dict(sliding_window=None))) == "ffff"
    llama4 = LLAMA | dict(
        architectures=["Llama4ForCausalLM"], model_type="llama4_text", attention_chunk_size=8, num_hidden_layers=5,
        num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2, intermediate_size_mlp=512,
    )  # fmt: skip
    assert _kinds(read(llama4)) == "cccfc"
    assert _kinds(read(llama4 | dict(attention_chunk_size=None))) == "fffff"


# --- feed-forward widths --------------------------------------------------------------------------------------------
def test_qwen_first_generation_writes_twice_the_width():
    qwen = dict(
        architectures=["QWenLMHeadModel"], model_type="qwen", hidden_size=4096, intermediate_size=22016,
        num_hidden_layers=32, num_attention_heads=32, kv_channels=128, vocab_size=151936, tie_word_embeddings=False,
    )  # fmt: skip
    assert read(qwen).layers[0].ffns[0].d_dense == 11008


def test_lfm2_adjusts_its_width_when_told():
    lfm2 = dict(
        architectures=["Lfm2ForCausalLM"], model_type="lfm2", hidden_size=2048, intermediate_size=12288,
        block_auto_adjust_ff_dim=True, block_multiple_of=256, block_ffn_dim_multiplier=1.0, num_hidden_layers=4,
        num_attention_heads=32, num_key_value_heads=8, vocab_size=65536, conv_L_cache=3, full_attn_idxs=[2],
    )  # fmt: skip
    config = read(lfm2)
    assert config.layers[0].ffns[0].d_dense == 8192
    assert [layer.mixers[0].kind for layer in config.layers] == ["short_conv", "short_conv", "full", "short_conv"]
    assert read(lfm2 | dict(block_auto_adjust_ff_dim=False)).layers[0].ffns[0].d_dense == 12288


def test_three_matrices_only_when_gated():
    assert read(LLAMA).layers[0].ffns[0].gated
    arcee = LLAMA | dict(architectures=["ArceeForCausalLM"], model_type="arcee")
    assert not read(arcee).layers[0].ffns[0].gated


# --- which layers hold experts --------------------------------------------------------------------------------------
def test_qwen_step_over_47_layers_is_23():
    qwen = LLAMA | dict(
        architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_hidden_layers=47, decoder_sparse_step=2,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, mlp_only_layers=[],
    )  # fmt: skip
    assert _moe_layers(read(qwen)) == list(range(1, 47, 2))
    assert len(_moe_layers(read(qwen))) == 23
    assert _moe_layers(read(qwen | dict(mlp_only_layers=[1, 3]))) == list(range(5, 47, 2))


def test_deepseek_first_k_and_frequency():
    assert _moe_layers(read(MOE)) == [2, 3, 4]
    assert _moe_layers(read(MOE | dict(moe_layer_freq=2))) == [2, 4]
    assert _moe_layers(read(MOE | dict(moe_layer_freq=[0, 0, 0, 1, 1], first_k_dense_replace=None))) == [3, 4]
    with pytest.raises(ValueError, match=r"mlp_layer_types\[2\] contradicts first_k_dense_replace = 2"):
        read(MOE | dict(mlp_layer_types=["dense"] * 3 + ["sparse"] * 2))


def test_jamba_period_and_llama4_step():
    jamba = LLAMA | dict(
        architectures=["JambaForCausalLM"], model_type="jamba", num_hidden_layers=8, num_experts=4,
        num_experts_per_tok=2, expert_layer_period=2, expert_layer_offset=1, attn_layer_period=8, attn_layer_offset=4,
        mamba_d_state=16, mamba_d_conv=4, mamba_expand=2,
    )  # fmt: skip
    assert _moe_layers(read(jamba)) == [1, 3, 5, 7]
    assert _kinds(read(jamba)) == "mmmmfmmm"
    llama4 = LLAMA | dict(
        architectures=["Llama4ForCausalLM"], model_type="llama4_text", num_local_experts=4, num_experts_per_tok=1,
        interleave_moe_layer_step=2, intermediate_size_mlp=512,
    )  # fmt: skip
    config = read(llama4)
    assert _moe_layers(config) == [1, 3]
    assert (config.layers[0].ffns[0].d_dense, config.layers[1].ffns[0].d_expert) == (512, 256)


def test_a_shared_expert_has_its_own_width():
    gemma = hf_config.read(hf_config._DATA / "configs" / "gemma_4_26b_a4b.json").layers[0].ffns[0]
    assert (gemma.d_shared, gemma.d_expert, gemma.n_experts, gemma.n_active_experts) == (2112, 704, 128, 8)


# --- irregular and shared -------------------------------------------------------------------------------------------
def test_blocks_found_by_search_differ_layer_by_layer():
    attention = dict(n_heads_in_group=2, no_op=False, replace_with_linear=False)
    blocks = [
        dict(attention=attention, ffn=dict(ffn_mult=2.625, no_op=False)),
        dict(attention=dict(no_op=True, n_heads_in_group=None), ffn=dict(ffn_mult=1.3125, no_op=False)),
        dict(attention=attention | dict(n_heads_in_group=4), ffn=dict(no_op=True, ffn_mult=None)),
        dict(attention=attention | dict(window_length=8), ffn=dict(ffn_mult=0.5, no_op=False)),
    ]
    config = read(LLAMA | dict(architectures=["DeciLMForCausalLM"], model_type="nemotron-nas", block_configs=blocks,
                               hidden_size=8192, num_key_value_heads=None, intermediate_size=None))  # fmt: skip
    assert [len(layer.mixers) for layer in config.layers] == [1, 0, 1, 1]
    assert [layer.ffns[0].d_dense if layer.ffns else 0 for layer in config.layers] == [14336, 7168, 0, 2816]
    assert (config.layers[0].mixers[0].n_kv_heads, config.layers[2].mixers[0].n_kv_heads) == (2, 1)
    assert (config.layers[3].mixers[0].kind, config.layers[3].mixers[0].window_tokens) == ("sliding", 8)
    assert [layer.n_norm_params for layer in config.layers] == [16384, 8192, 8192, 16384]


def test_layers_that_read_the_cache_of_another_name_it():
    gemma = LLAMA | dict(
        architectures=["Gemma4ForCausalLM"], model_type="gemma4_text", num_hidden_layers=6, sliding_window=8,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2, head_dim=16, global_head_dim=32,
        num_kv_shared_layers=2, hidden_size_per_layer_input=0,
    )  # fmt: skip
    assert [layer.mixers[0].kv_source_layer for layer in read(gemma).layers] == [None] * 4 + [3, 2]
    hunyuan = LLAMA | dict(architectures=["HunYuanDenseV1ForCausalLM"], model_type="hunyuan_v1_dense", use_cla=True,
                           cla_share_factor=2)  # fmt: skip
    assert [layer.mixers[0].kv_source_layer for layer in read(hunyuan).layers] == [None, 0, None, 2]


def test_an_indexer_may_be_shared():
    glm = MOE | dict(
        architectures=["GlmMoeDsaForCausalLM"], model_type="glm_moe_dsa", index_n_heads=4, index_head_dim=16,
        index_topk=8, indexer_types=["full", "full", "shared", "shared", "full"],
    )  # fmt: skip
    mixers = [layer.mixers[0] for layer in read(glm).layers]
    assert [mixer.indexer is not None for mixer in mixers] == [True, True, False, False, True]
    assert {mixer.n_selected_tokens for mixer in mixers} == {8}


def test_multi_token_prediction_is_apart():
    config = read(MOE | dict(num_nextn_predict_layers=1))
    assert len(config.layers) == 5 and len(config.mtp_layers) == 1 and config.mtp_layers[0].ffns[0].n_experts == 8


# --- unknown keys ---------------------------------------------------------------------------------------------------
def test_one_warning_names_all_unknown_keys():
    with pytest.warns(UserWarning) as caught:
        config = read(LLAMA | dict(frobnicate=7, use_wormholes=True, rope_theta=1e4, bos_token_id=1))
    assert len(caught) == 1 and "frobnicate, use_wormholes" in str(caught[0].message)
    assert config.unknown_keys == ("frobnicate", "use_wormholes")


def test_known_keys_null_and_switches_that_are_off_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(LLAMA | dict(rope_theta=1e4, frobnicate=None, use_qk_norm=False, time_step_limit=[0.0, float("inf")]))


def test_unknown_keys_of_a_wrapper_are_named_too():
    with pytest.warns(UserWarning, match="frobnicate"):
        read(dict(text_config=LLAMA, frobnicate=7))


def test_defaults_that_were_taken_are_noted():
    config = read({k: v for k, v in LLAMA.items() if k != "tie_word_embeddings"})
    assert not config.tied and "tie_word_embeddings is absent: false (LlamaForCausalLM's default)" in config.notes


def test_quantisation_is_noted():
    assert read(LLAMA | dict(quantization_config=dict(quant_method="fp8"))).quantisation == "fp8"


# --- refusals: fields -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                                 "intermediate_size"])  # fmt: skip
def test_a_missing_field_is_named(key):
    with pytest.raises(ValueError, match=f"{key}.* is missing"):
        read({k: v for k, v in LLAMA.items() if k != key})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(num_key_value_heads=3), "num_attention_heads is 4 and num_key_value_heads 3"),
        (dict(model_type="qwen3"), "architectures names LlamaForCausalLM .* but model_type is 'qwen3'"),
        (dict(num_layers=5), "num_hidden_layers is 4 but num_layers is 5"),
        (dict(hidden_size=-1), "hidden_size is -1; allowed: a whole number from 1"),
        (dict(hidden_size=0), "hidden_size is 0"),
        (dict(hidden_size=64.0), "hidden_size is 64.0"),
        (dict(hidden_size="64"), "hidden_size is '64'"),
        (dict(hidden_size=True), "hidden_size is True"),
        (dict(hidden_size=[64]), r"hidden_size is \[64\]"),
        (dict(hidden_size=10**9), "hidden_size is 1000000000"),
        (dict(num_hidden_layers=10**9), "num_hidden_layers is 1000000000; allowed: a whole number from 1 to 4096"),
        (dict(vocab_size=10**12), "vocab_size is 1000000000000"),
        (dict(intermediate_size=10**30), "intermediate_size is 10+"),
        (dict(tie_word_embeddings="no"), "tie_word_embeddings is 'no'; allowed: true or false"),
        (
            dict(layer_types=["full_attention"] * 3),
            "layer_types has 3 entries, num_hidden_layers is 4: index 3",
        ),
        (dict(layer_types=["full_attention"] * 5), "layer_types has 5 entries.*index 4 is one too many"),
        (dict(layer_types=["full_attention"] * 3 + ["magic"]), r"layer_types\[3\] is 'magic'; allowed: full_attention"),
        (dict(layer_types="full_attention"), "layer_types is 'full_attention'; allowed: a list of 4"),
        (dict(layer_types=["linear_attention"] * 4), "layer 0 is recurrent; allowed in llama: attention only"),
        (dict(architectures="LlamaForCausalLM"), "architectures is 'LlamaForCausalLM'; allowed: a list"),
        (dict(architectures=[7]), r"architectures is \[7\]"),
        (dict(model_type=7), "model_type is 7"),
    ],
)
def test_bad_fields_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        read(LLAMA | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(num_experts_per_tok=9), "9 experts of 8"),
        (dict(num_experts=16), "n_routed_experts is 8 but num_experts is 16"),
        (dict(qk_head_dim=99), r"qk_head_dim is 99 but qk_nope_head_dim \+ qk_rope_head_dim is 24"),
        (dict(kv_lora_rank=None), "kv_lora_rank is missing"),
        (dict(first_k_dense_replace=6), "first_k_dense_replace is 6; allowed: a whole number from 0 to 5"),
        (dict(n_shared_experts=-1), "n_shared_experts is -1"),
    ],
)
def test_bad_expert_fields_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        read(MOE | changed)


def test_contradicting_ties_are_refused():
    with pytest.raises(ValueError, match="tie_word_embeddings is True here but False at the top level"):
        read(dict(text_config=LLAMA | dict(tie_word_embeddings=True), tie_word_embeddings=False))


def test_a_class_default_inside_yields_to_the_outer_tie():
    # transformers writes LlamaConfig's false into the text part and ties by the outer flag.
    config = read(dict(text_config=LLAMA, tie_word_embeddings=True))
    assert config.tied and any("top level, which decides" in note for note in config.notes)


@pytest.mark.parametrize("changed", [dict(architectures=["FooForCausalLM"], model_type="foo"),
                                     dict(architectures=["FooForCausalLM"]),
                                     dict(architectures=None, model_type="foo")])  # fmt: skip
def test_an_unsupported_architecture_is_named_with_the_supported_ones(changed):
    with pytest.raises(ValueError, match=r"'[Ff]oo.*' is not supported; supported: .*DeepseekV3ForCausalLM.*LlamaFor"):
        read(LLAMA | changed)


def test_an_unsupported_text_part_is_named():
    with pytest.raises(ValueError, match="text_config: the architecture 'foo_text' is not supported"):
        read(dict(architectures=["FooVL"], text_config=LLAMA | dict(architectures=None, model_type="foo_text")))


def test_parts_that_are_not_public_are_refused():
    kimi = MOE | dict(architectures=["KimiLinearForCausalLM"], model_type="kimi_linear", attn_res_block_size=12)
    with pytest.raises(ValueError, match=r"attn_res_block_size is set; .* not public"):
        read(kimi)


# --- refusals: files ------------------------------------------------------------------------------------------------
def _file(tmp_path, data: bytes | str):
    path = tmp_path / "config.json"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def test_a_file_reads_as_its_dict(tmp_path):
    from_file = read(_file(tmp_path, "\ufeff" + json.dumps(LLAMA)))
    assert from_file.layers == read(LLAMA).layers and from_file.source == "config.json"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "is not JSON: .* at line 1, column 1"),
        ("{'a': 1}", "is not JSON"),
        ('{"a": 1,}', "is not JSON"),
        ("[1, 2]", "holds a list; allowed: a JSON object"),
        ("7", "holds a int"),
        ("{}", "the object is empty"),
        ("\xe9".encode("latin-1"), "is not UTF-8"),
        (json.dumps(LLAMA).encode("utf-16"), "is not UTF-8"),
        ('{"a": ' * 200_000, "nested too deeply"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a": 1, "a": 2}', "the key 'a' is given twice"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "cannot be read as JSON"),
        (b"GGUF\x03\x00", "is a GGUF file"),
        (b"\x80\x04\x95", "is a pickle"),
    ],
)
def test_files_that_are_no_config_are_refused_in_one_sentence(tmp_path, data, message):
    with pytest.raises(ValueError, match=message) as error:
        read(_file(tmp_path, data))
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_paths_that_are_no_file_are_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        read(tmp_path / "absent.json")
    with pytest.raises(ValueError, match=r"is a directory; allowed: the path of the config\.json in it"):
        read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is not a regular file"):
        read(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"config is a int; allowed: the path of a config\.json, or its dict"):
        read(7)
    with pytest.raises(ValueError, match="the key 7 is not text"):
        read({7: 1})
    with pytest.raises(ValueError):
        read("a\0b")


def test_a_file_of_100_megabytes_is_not_opened(tmp_path):
    path = tmp_path / "config.json"
    with open(path, "wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(ValueError, match="has 104857600 bytes; allowed: at most 8388608"):
        read(path)


def test_a_deeply_nested_dict_is_read_without_recursion():
    deep: dict = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert read(LLAMA | dict(rope_scaling=deep)).d_model == 64
    with pytest.raises(ValueError, match=r"hidden_size is|nested too deeply"):
        read(LLAMA | dict(hidden_size=deep, n_embd=deep))
    with pytest.raises(ValueError, match=r"nested too deeply|but num_layers is"):
        read(LLAMA | dict(num_hidden_layers=deep, num_layers={"a": deep}))


def test_numbers_of_thousands_of_digits_are_refused_by_name():
    with pytest.raises(ValueError, match="intermediate_size is a int too long to show"):
        read(LLAMA | dict(intermediate_size=10**5000))


def test_names_that_cannot_be_printed_are_escaped():
    with pytest.warns(UserWarning, match=r"not used: a\\nb, \\ud800"):
        read(LLAMA | {"a\nb": 1, "\ud800": 2})


@pytest.mark.parametrize(
    ("native", "what"),
    [
        (dict(dim=4096, n_layers=32, head_dim=128, hidden_dim=14336, n_heads=32, n_kv_heads=8, norm_eps=1e-5,
              vocab_size=32768), "Mistral's native params.json"),
        (dict(dim=4096, n_layers=32, n_heads=32, n_kv_heads=8, ffn_dim_multiplier=1.3, multiple_of=1024,
              norm_eps=1e-5, rope_theta=5e5, vocab_size=128256), "Meta's native params.json"),
        (dict(dim=7168, n_layers=61, n_heads=128, inter_dim=18432, moe_inter_dim=2048, vocab_size=129280),
         "DeepSeek's native inference config"),
        (dict(producer=dict(name="modelopt"), quantization=dict(quant_algo="FP8")), "hf_quant_config.json"),
        (dict(metadata={}, weight_map={}), "an index of weight shards"),
        (dict(peft_type="LORA", r=8), "adapter_config.json"),
    ],
)  # fmt: skip
def test_native_formats_are_named(native, what):
    with pytest.raises(ValueError, match=f"is .*{what}.*, not a Hugging Face config.json"):
        read(native)


def test_supported_names_every_architecture_once():
    assert len(hf_config.supported()) == len(set(hf_config.supported())) >= 50


# --- anything else --------------------------------------------------------------------------------------------------
_COMMITTED = sorted(p.name for p in (hf_config._DATA / "configs").iterdir())
_NONSENSE = st.sampled_from([None, 0, -1, 1, 3, 1.5, float("nan"), 10**12, True, "x", "", [], [1], ["a"], {}, {"a": 1}])


@given(st.sampled_from(_COMMITTED), st.data())
def test_a_field_that_is_nonsense_is_understood_or_refused_in_one_sentence(name, data):
    raw = json.loads((hf_config._DATA / "configs" / name).read_text(encoding="utf-8"))
    part = raw.get("text_config", raw)
    key = data.draw(st.sampled_from(sorted(part)))
    part[key] = data.draw(_NONSENSE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            config = read(raw)
        except ValueError as error:
            assert "\n" not in str(error)
        else:
            assert config.layers and config.d_model > 0
