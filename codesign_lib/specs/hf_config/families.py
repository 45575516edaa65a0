"""What each architecture does with the fields of its config: conventions that no config.json spells out.

A family is data: names of rules (in ``mixers`` and ``ffns``), which norms and biases exist, and what holds where
a field is null. All of it was read from the model classes of transformers 5.24.0 and is compared with them,
parameter for parameter, by ``tools/packages_configs.py``; families that transformers lacks say so in ``checked``.
What those classes declare for absent fields is in ``defaults``, drawn from them and compared key by key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Family:
    """Conventions of one group of architectures.

    ``mixer`` and ``linear`` name how an attention layer and a recurrent layer are built; ``kinds`` how layers get
    their kind, ``period`` the default period of the global ones. ``moe`` says which layers hold experts, ``shared``
    where the width of the shared expert comes from, ``d_expert`` which key holds the experts' width. ``n_norms``
    counts norms of the model's size a layer, ``norm_weights`` the weights each has an element (0: none, 2: a bias too).
    ``qk_norm`` is ``head`` or ``all``; prefixed with ``?`` only when ``use_qk_norm`` says so. A bias that is ``None``
    is read from ``bias_key`` or ``mlp_bias``. ``defaults`` fill fields that are absent or null (what a
    class declares for absent ones is in ``defaults.CLASSES``). ``n_expert_norms`` and ``n_other`` count further norms
    of layers with experts and further parameters a layer. ``ignored`` keys have no effect in this family alone;
    ``refused`` keys, when on, change the network in a way that is not public; switches in ``only`` must stand as given
    there (the other position is not modelled).
    """

    name: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    mixer: str = "heads"
    linear: str = ""
    kinds: str = "full"
    period: int = 0
    moe: str = ""
    d_expert: tuple[str, ...] = ("moe_intermediate_size",)
    shared: str = ""
    n_norms: int = 2
    n_expert_norms: int = 0
    n_other: int = 0
    norm_weights: int = 1
    qk_norm: str = ""
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    mlp_bias: bool | None = None
    bias_key: str = "attention_bias"
    head_bias: bool = False
    gated: bool = True
    gate: str = ""
    sinks: str = ""
    mtp: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    only: Mapping[str, bool] = field(default_factory=dict)
    checked: str = "transformers 5.24.0"


def _f(name: str, types: str, classes: str, **rest: Any) -> Family:
    return Family(name=name, model_types=tuple(types.split()), architectures=tuple(classes.split()), **rest)


_PLAIN = ("intermediate_size",)
_NO_BIAS = dict(qkv_bias=False, out_bias=False, mlp_bias=False)
_MLA_MOE = dict(mixer="latent", moe="first_k", shared="count", mtp="decoder")
_MLA_IGNORED = ("num_key_value_heads", "head_dim", "qk_head_dim", "rope_interleave", "indexer_rope_interleave")
# Written by LFM2's first configs, read by no public implementation.
_LFM2 = ("block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu",
         "block_use_xavier_init", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "theta",
         "use_pos_enc")  # fmt: skip
_GEMMA = dict(mlp_bias=False)

# fmt: off
FAMILIES = (
    # dense
    _f("llama", "llama", "LlamaForCausalLM"),
    _f("internlm3", "internlm3", "InternLM3ForCausalLM", only=dict(qkv_bias=False, bias=False)),
    _f("smollm3", "smollm3", "SmolLM3ForCausalLM", kinds="nope"),
    _f("cwm", "cwm", "CwmForCausalLM", kinds="every_fourth"),
    _f("llama_like", "internlm2 exaone", "InternLM2ForCausalLM ExaoneForCausalLM", only=dict(bias=False), **_NO_BIAS,
       checked="published totals of InternLM2-7B and EXAONE-3.5-7.8B"),
    _f("mistral", "mistral ministral ministral3", "MistralForCausalLM MinistralForCausalLM Ministral3ForCausalLM",
       kinds="all", **_NO_BIAS),
    _f("qwen", "qwen", "QWenLMHeadModel", only=dict(no_bias=True), qkv_bias=True, out_bias=False, mlp_bias=False,
       checked="published total of Qwen-7B"),
    _f("qwen2", "qwen2 qwen2_vl qwen2_5_vl qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text",
       "Qwen2ForCausalLM Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration",
       kinds="flagged", qkv_bias=True, out_bias=False, mlp_bias=False),
    _f("qwen3", "qwen3 qwen3_vl_text qwen3_vl", "Qwen3ForCausalLM Qwen3VLForConditionalGeneration",
       kinds="flagged", qk_norm="head", mlp_bias=False),
    _f("mimo", "mimo", "MiMoForCausalLM", kinds="flagged", out_bias=False, mlp_bias=False,
       mtp="decoder", checked="no class in transformers; as Qwen2 with its bias flag"),
    _f("hyperclovax", "hyperclovax", "HyperCLOVAXForCausalLM", n_norms=4),
    _f("gemma", "gemma", "GemmaForCausalLM", **_GEMMA, defaults=dict(head_dim=256)),
    _f("gemma2", "gemma2", "Gemma2ForCausalLM", kinds="period", period=2, n_norms=4, **_GEMMA,
       defaults=dict(head_dim=256)),
    _f("gemma3", "gemma3_text gemma3", "Gemma3ForCausalLM Gemma3ForConditionalGeneration", kinds="period", period=6,
       n_norms=4, qk_norm="head", **_GEMMA, ignored=("use_bidirectional_attention",),
       defaults=dict(head_dim=256, sliding_window=4096)),
    _f("gemma3n", "gemma3n_text gemma3n", "Gemma3nForCausalLM Gemma3nForConditionalGeneration", mixer="gemma3n",
       kinds="period", period=5, n_norms=4, qk_norm="head", **_GEMMA,
       ignored=("activation_sparsity_pattern", "altup_active_idx", "altup_coef_clip", "altup_correct_scale")),
    _f("gemma4", "gemma4_text gemma4", "Gemma4ForCausalLM Gemma4ForConditionalGeneration", mixer="gemma4",
       kinds="period", period=6, n_norms=4, qk_norm="head", moe="gemma4", shared="gemma4",
       n_expert_norms=3, **_GEMMA,
       ignored=("use_bidirectional_attention", "expert_intermediate_size")),
    _f("phi", "phi", "PhiForCausalLM", qkv_bias=True, out_bias=True, mlp_bias=True, head_bias=True, gated=False,
       n_norms=1, norm_weights=2, only=dict(qk_layernorm=False)),
    _f("phi3", "phi3", "Phi3ForCausalLM", kinds="all", **_NO_BIAS),
    _f("olmo", "olmo", "OlmoForCausalLM", norm_weights=0, mlp_bias=False, ignored=("clip_qkv",)),
    _f("olmo2", "olmo2", "Olmo2ForCausalLM", qk_norm="all", mlp_bias=False),
    _f("olmo3", "olmo3", "Olmo3ForCausalLM", kinds="period", period=4, qk_norm="all", mlp_bias=False),
    _f("granite", "granite", "GraniteForCausalLM"),
    _f("cohere", "cohere", "CohereForCausalLM", n_norms=1, qk_norm="?heads", mlp_bias=False),
    _f("cohere2", "cohere2", "Cohere2ForCausalLM", n_norms=1, kinds="period", period=4, mlp_bias=False),
    _f("exaone4", "exaone4", "Exaone4ForCausalLM", kinds="period", period=4, qk_norm="head", **_NO_BIAS),
    _f("starcoder2", "starcoder2", "Starcoder2ForCausalLM", kinds="all", gated=False, norm_weights=2,
       bias_key="use_bias", defaults=dict(use_bias=True), ignored=("mlp_type",)),
    _f("glm", "glm", "GlmForCausalLM", out_bias=False, mlp_bias=False, defaults=dict(attention_bias=True)),
    _f("glm4", "glm4", "Glm4ForCausalLM", n_norms=4, out_bias=False, mlp_bias=False,
       defaults=dict(attention_bias=True)),
    _f("seed_oss", "seed_oss", "SeedOssForCausalLM", defaults=dict(attention_bias=True, attention_out_bias=False)),
    _f("apertus", "apertus", "ApertusForCausalLM", gated=False, qk_norm="head", n_other=2, mlp_bias=False),
    _f("stablelm", "stablelm", "StableLmForCausalLM", norm_weights=2, bias_key="use_qkv_bias", out_bias=False,
       mlp_bias=False, only=dict(qk_layernorm=False, use_parallel_residual=False)),
    _f("helium", "helium", "HeliumForCausalLM", out_bias=False),
    _f("arcee", "arcee", "ArceeForCausalLM", gated=False),
    _f("nemotron", "nemotron", "NemotronForCausalLM", gated=False, norm_weights=2),
    _f("ernie4_5", "ernie4_5", "Ernie4_5ForCausalLM", bias_key="use_bias"),
    _f("hunyuan", "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", mixer="hunyuan", qk_norm="head", mlp_bias=False,
       ignored=("use_qk_norm",)),
    # irregular by search
    _f("deci", "nemotron-nas deci", "DeciLMForCausalLM", mixer="deci", kinds="full", mlp_bias=False,
       checked="no class in transformers; the total that the name says, to 2 %"),
    # experts behind ordinary attention
    _f("mixtral", "mixtral", "MixtralForCausalLM", kinds="all", moe="all", d_expert=_PLAIN, **_NO_BIAS),
    _f("phimoe", "phimoe", "PhiMoEForCausalLM PhimoeForCausalLM", kinds="all", moe="all", d_expert=_PLAIN,
       norm_weights=2, mlp_bias=False),
    _f("olmoe", "olmoe flex_olmo", "OlmoeForCausalLM FlexOlmoForCausalLM", moe="all", d_expert=_PLAIN, qk_norm="all"),
    _f("granitemoe", "granitemoe granitemoeshared", "GraniteMoeForCausalLM GraniteMoeSharedForCausalLM", moe="all",
       d_expert=_PLAIN, shared="granite", mlp_bias=False),
    _f("qwen2_moe", "qwen2_moe", "Qwen2MoeForCausalLM", kinds="flagged_odd", moe="step", shared="gated",
       bias_key="qkv_bias", out_bias=False, mlp_bias=False, defaults=dict(qkv_bias=True)),
    _f("qwen3_moe", "qwen3_moe qwen3_vl_moe_text qwen3_vl_moe qwen3_omni_moe_text",
       "Qwen3MoeForCausalLM Qwen3VLMoeForConditionalGeneration", kinds="flagged_all", moe="step", qk_norm="head",
       mlp_bias=False, ignored=("use_qk_norm",)),
    _f("gpt_oss", "gpt_oss", "GptOssForCausalLM", kinds="period", period=2, moe="gpt_oss", d_expert=_PLAIN, sinks="all",
       defaults=dict(attention_bias=True)),
    _f("glm4_moe", "glm4_moe glm4v_moe_text", "Glm4MoeForCausalLM", moe="first_k", shared="count", out_bias=False,
       mlp_bias=False, qk_norm="?head", mtp="decoder", defaults=dict(first_k_dense_replace=1)),
    _f("dots1", "dots1", "Dots1ForCausalLM", moe="first_k", shared="count", qk_norm="head", mlp_bias=False),
    _f("ernie4_5_moe", "ernie4_5_moe", "Ernie4_5_MoeForCausalLM", moe="ernie", shared="count",
       bias_key="use_bias", ignored=("moe_gate", "moe_capacity", "moe_use_aux_free")),
    _f("hunyuan_moe", "hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", mixer="hunyuan", qk_norm="head", moe="all",
       d_expert=_PLAIN, shared="hunyuan", mlp_bias=False,
       ignored=("use_qk_norm", "use_mixed_mlp_moe", "moe_drop_tokens", "moe_random_routing_dropped_token")),
    _f("solar_open", "solar_open", "SolarOpenForCausalLM", moe="first_k", shared="count", out_bias=False,
       mlp_bias=False, defaults=dict(first_k_dense_replace=0)),
    _f("hy_v3", "hy_v3", "HYV3ForCausalLM", moe="first_k", shared="count", qk_norm="head", mtp="uncounted",
       ignored=("router_scaling_factor", "enable_moe_fp32_combine"), defaults=dict(first_k_dense_replace=1)),
    _f("exaone_moe", "exaone_moe", "ExaoneMoeForCausalLM", kinds="period", period=4, moe="first_k", shared="count",
       qk_norm="head", mtp="uncounted", defaults=dict(first_k_dense_replace=1), **_NO_BIAS),
    _f("afmoe", "afmoe", "AfmoeForCausalLM", kinds="period", period=4, moe="first_k", shared="count", n_norms=4,
       qk_norm="head", gate="all", mlp_bias=False, ignored=("mup_enabled",)),
    _f("laguna", "laguna", "LagunaForCausalLM", mixer="laguna", kinds="listed", moe="first_k", shared="own",
       qk_norm="head", mlp_bias=False, defaults=dict(first_k_dense_replace=1),
       ignored=("moe_routed_scaling_factor", "moe_apply_router_weight_on_input", "moe_router_logit_softcapping")),
    _f("minimax_m2", "minimax_m2", "MiniMaxM2ForCausalLM", moe="all", d_expert=_PLAIN, qk_norm="?all", mtp="uncounted",
       ignored=("attn_type_list", "shared_intermediate_size", "mtp_transformer_layers", "qk_norm_type", "use_mtp",
                "use_routing_bias"), **_NO_BIAS),
    _f("minimax_m3", "minimax_m3 minimax_m3_vl minimax_m3_vl_text",
       "MiniMaxM3ForCausalLM MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration MiniMaxM3VLForCausalLM",
       kinds="sparse_blocks", moe="first_k", d_expert=("moe_intermediate_size", "intermediate_size"),
       shared="minimax_m3", qk_norm="head", mtp="uncounted", defaults=dict(first_k_dense_replace=0),
       ignored=("qk_norm_type", "use_routing_bias", "num_nextn_predict_layers", "use_gemma_norm", "use_qk_norm",
                "dense_intermediate_size", "index_n_heads", "index_head_dim", "index_block_size", "index_topk_blocks",
                "index_local_blocks"),
       **_NO_BIAS),
    _f("llama4", "llama4_text llama4", "Llama4ForCausalLM Llama4ForConditionalGeneration", kinds="chunks", moe="llama4",
       d_expert=_PLAIN, shared="llama4", mlp_bias=False,
       ignored=("use_qk_norm", "intermediate_size_mlp")),
    _f("mimo_v2", "mimo_v2_flash", "MiMoV2FlashForCausalLM", mixer="two_heads", kinds="mimo_v2", moe="first_k",
       shared="count", out_bias=False, mlp_bias=False, mtp="uncounted", sinks="flags",
       defaults=dict(first_k_dense_replace=1)),
    _f("step3p7", "step3p7 step3p5", "Step3p7FlashForCausalLM Step3p7ForConditionalGeneration Step3p5ForCausalLM",
       mixer="step", kinds="listed", moe="first_k", shared="step", qk_norm="head", gate="head", mtp="uncounted",
       **_NO_BIAS,
       ignored=("n_shared_experts", "use_moe_router_bias", "moe_router_scaling_factor", "use_head_wise_attn_gate",
                "yarn_only_types"),
       defaults=dict(first_k_dense_replace=3)),
    # latent attention
    _f("deepseek_v2", "deepseek_v2", "DeepseekV2ForCausalLM", **_MLA_MOE | dict(mtp=""), mlp_bias=False,
       ignored=_MLA_IGNORED, defaults=dict(first_k_dense_replace=0), only=dict(use_mla=True)),
    _f("deepseek_v3", "deepseek_v3 kimi_k2", "DeepseekV3ForCausalLM KimiK2ForCausalLM", **_MLA_MOE, mlp_bias=False,
       ignored=_MLA_IGNORED, defaults=dict(first_k_dense_replace=3)),
    _f("deepseek_v32", "deepseek_v32 glm_moe_dsa", "DeepseekV32ForCausalLM GlmMoeDsaForCausalLM",
       **_MLA_MOE | dict(mixer="indexed"), mlp_bias=False,
       ignored=(*_MLA_IGNORED, "index_share_for_mtp_iteration"), defaults=dict(first_k_dense_replace=3)),
    _f("glm4_moe_lite", "glm4_moe_lite", "Glm4MoeLiteForCausalLM", **_MLA_MOE, mlp_bias=False, ignored=_MLA_IGNORED,
       defaults=dict(first_k_dense_replace=1)),
    _f("mistral4", "mistral4", "Mistral4ForCausalLM", **_MLA_MOE | dict(mtp=""), mlp_bias=False, ignored=_MLA_IGNORED,
       defaults=dict(first_k_dense_replace=0)),
    _f("axk1", "axk1", "AXK1ForCausalLM", **_MLA_MOE, mlp_bias=False, n_expert_norms=1, ignored=_MLA_IGNORED,
       defaults=dict(first_k_dense_replace=1)),
    _f("minicpm3", "minicpm3", "MiniCPM3ForCausalLM", mixer="latent",
       ignored=(*_MLA_IGNORED, "scale_emb", "scale_depth", "dim_model_base")),
    _f("youtu", "youtu youtu_llm", "YoutuForCausalLM", mixer="latent", mlp_bias=False,
       ignored=(*_MLA_IGNORED, "embedding_initializer_range")),
    _f("longcat", "longcat_flash", "LongcatFlashForCausalLM", mixer="longcat", moe="longcat", mlp_bias=False, n_norms=4,
       ignored=_MLA_IGNORED, checked="published total; transformers 5.24.0 gives idle experts matrices"),
    _f("deepseek_v4", "deepseek_v4", "DeepseekV4ForCausalLM", mixer="compressed", moe="all", shared="count",
       mlp_bias=False, mtp="uncounted",
       ignored=("num_key_value_heads", "expert_dtype", "num_hash_layers", "mlp_layer_types")),
    # recurrent layers among attention
    _f("qwen3_next", "qwen3_next", "Qwen3NextForCausalLM", linear="gated_delta", kinds="interval", period=4,
       moe="step", shared="gated", qk_norm="head", gate="flag", mlp_bias=False, mtp="decoder"),
    _f("qwen3_5", "qwen3_5_text qwen3_5", "Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration", linear="gated_delta",
       kinds="interval", period=4, qk_norm="head", gate="flag", mlp_bias=False, mtp="decoder"),
    _f("qwen3_5_moe", "qwen3_5_moe_text qwen3_5_moe", "Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration",
       linear="gated_delta", kinds="interval", period=4, moe="all", shared="gated", qk_norm="head", gate="flag",
       mlp_bias=False, mtp="decoder", ignored=("intermediate_size",)),
    _f("kimi_linear", "kimi_linear", "KimiLinearForCausalLM", linear="kimi_delta", kinds="kimi", **_MLA_MOE,
       mlp_bias=False, ignored=(*_MLA_IGNORED, "mla_use_nope"), defaults=dict(first_k_dense_replace=1),
       refused=("attn_res_block_size", "routed_expert_hidden_size", "mla_use_output_gate", "latent_moe_use_norm")),
    _f("bailing_hybrid", "bailing_hybrid", "BailingHybridForCausalLM BailingMoeV3ForCausalLM", linear="full_delta",
       kinds="interval", period=6, **_MLA_MOE | dict(mtp="uncounted"), gate="head", mlp_bias=False,
       ignored=(*_MLA_IGNORED, "kda_safe_gate", "kda_lower_bound", "mtp_loss_scaling_factor"),
       defaults=dict(first_k_dense_replace=2)),
    _f("mamba2", "mamba2", "Mamba2ForCausalLM", linear="plain_mamba2", kinds="recurrent", moe="none", n_norms=1,
       ignored=("time_step_rank", "rms_norm")),
    _f("falcon_mamba", "falcon_mamba", "FalconMambaForCausalLM", linear="plain_mamba1", kinds="recurrent", moe="none",
       n_norms=1, ignored=("mixer_rms_eps", "time_step_scale", "time_step_init_scheme", "expand")),
    _f("nemotron_h", "nemotron_h", "NemotronHForCausalLM", linear="mamba2", kinds="blocks", moe="blocks", gated=False,
       shared="nemotron", n_norms=1, mtp="blocks",
       ignored=("sliding_window", "num_hidden_layers", "layer_types", "expand", "moe_shared_expert_overlap")),
    _f("bamba", "bamba", "BambaForCausalLM", linear="mamba2", kinds="members"),
    _f("granitemoehybrid", "granitemoehybrid", "GraniteMoeHybridForCausalLM", linear="mamba2", kinds="recurrent",
       moe="optional", d_expert=_PLAIN, shared="granite", mlp_bias=False),
    _f("falcon_h1", "falcon_h1", "FalconH1ForCausalLM", linear="mamba2", kinds="parallel"),
    _f("jamba", "jamba", "JambaForCausalLM", linear="mamba1", kinds="jamba", moe="jamba", d_expert=_PLAIN, **_NO_BIAS),
    _f("lfm2", "lfm2", "Lfm2ForCausalLM", linear="short_conv", kinds="members", qk_norm="head", **_NO_BIAS,
       ignored=_LFM2),
    _f("lfm2_moe", "lfm2_moe", "Lfm2MoeForCausalLM", linear="short_conv", kinds="members", qk_norm="head",
       moe="first_k", **_NO_BIAS, ignored=_LFM2),
    _f("minimax", "minimax minimax_text_01 minimax_m1",
       "MiniMaxForCausalLM MiniMaxText01ForCausalLM MiniMaxM1ForCausalLM", linear="lightning",
       kinds="attn_type_list", moe="all", d_expert=_PLAIN, **_NO_BIAS,
       ignored=("shared_intermediate_size", "shared_moe_mode", "postnorm")),
    _f("olmo_hybrid", "olmo_hybrid", "OlmoHybridForCausalLM", linear="gated_delta", kinds="interval", period=4,
       qk_norm="all", mlp_bias=False),
)
# fmt: on

BY_ARCHITECTURE = {name: family for family in FAMILIES for name in family.architectures}
BY_MODEL_TYPE = {name: family for family in FAMILIES for name in family.model_types}
