"""What a chunk costs each layer, for every kind of layer; volumes of communication."""

from dataclasses import replace

import numpy as np
import pytest

from codesign_lib.cost import attention_kernels, calibration, collectives, kernels, latent_kernels, roofline
from codesign_lib.cost.ops import attention, moe
from codesign_lib.cost.ops import layer as layer_ops
from codesign_lib.serving import prefill, volumes
from codesign_lib.serving.layout import Layout
from codesign_lib.specs.formats import Precision
from codesign_lib.specs.hardware import CHIPS
from codesign_lib.specs.hf_config.fields import LatentAttention
from codesign_lib.specs.models import MODELS

BF16 = Precision(weights="bf16", activations="bf16", kv="bf16")
FP8 = Precision(weights="fp8", activations="fp8", kv="fp8")
ONE = Layout()


def costs(name, **how):
    return prefill.layer_costs(name, how.pop("chip", "gb300"), **({"layout": ONE, "precision": BF16} | how))


@pytest.mark.parametrize("name", ["llama_3_1_405b", "deepseek_r1", "nemotron_3_super", "gemma_3_27b"])
@pytest.mark.parametrize(("n", "p"), [(4096, 0), (2048, 65_536)])
def test_the_bound_on_one_gpu_is_the_roofline_of_every_operation(name, n, p):
    model = MODELS[name]
    found = costs(name, n_new=n, n_prefix=p, bound=True)
    whole = sum(
        float(roofline.time_s(work, "gb300", "bf16"))
        for layer in model.config.layers
        for work in layer_ops.prefill(layer, model.config.d_model, n, p, routing="balanced").values()
    )
    rows = found.cost_s[1:-1].sum()
    # linear layers of one kind are one after the other here and one sum there
    assert rows == pytest.approx(whole, rel=0.02)
    assert rows >= whole * (1 - 1e-9)
    assert found.parts_s["communication"] == 0
    assert found.cost_s.shape == (model.n_layers + 2,)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_kind_of_layer_has_a_cost_above_its_bound(name):
    n, p = np.array([512, 8192]), np.array([[0], [32_768]])
    found, least = (costs(name, n_new=n, n_prefix=p, bound=b) for b in (False, True))
    assert found.cost_s.shape == (MODELS[name].n_layers + 2, 2, 2)
    assert (found.cost_s > 0).all() and np.isfinite(found.cost_s).all()
    for part, took in found.kinds_s.items():
        assert (took >= least.kinds_s[part] * (1 - 1e-9)).all(), part
    longer = found.parts_s["attention"]
    assert (longer[1] >= longer[0]).all() and (longer[:, 1] > longer[:, 0]).all()
    for part in ("projections", "ffn", "experts"):
        assert (found.parts_s[part][1] == found.parts_s[part][0]).all()


def test_chunks_attend_to_as_many_pairs_as_the_whole_prompt():
    sizes = np.array([4096, 8192, 4096, 16_384])
    whole = costs("llama_3_1_70b", n_new=sizes.sum(), precision=FP8).parts_s
    cut = costs("llama_3_1_70b", n_new=sizes, n_prefix=np.cumsum(sizes) - sizes, precision=FP8).parts_s
    assert cut["attention"].sum() == pytest.approx(whole["attention"], rel=0.04)  # launches, last blocks
    for part in ("projections", "ffn"):  # thin GEMMs are less efficient, never more
        assert whole[part] < cut[part].sum() < 1.1 * whole[part]


def test_layouts_broadcast_against_chunks():
    n = np.array([1024, 8192])
    several = Layout(tp_attention=np.array([1, 2, 8]), tp_ffn=np.array([1, 1, 8]), ep=np.array([1, 2, 1]))
    found = costs("qwen3_235b_a22b", n_new=n, layout=several[:, None], precision=FP8)
    assert found.cost_s.shape == (96, 3, 2)
    for i in range(3):
        one = costs("qwen3_235b_a22b", n_new=n, layout=several[i], precision=FP8)
        assert np.allclose(found.cost_s[:, i], one.cost_s, rtol=1e-12)


def test_tensor_parallelism_divides_work_and_adds_communication():
    how = dict(n_new=8192, n_prefix=32_768, precision=FP8)
    one, eight = (costs("llama_3_1_405b", layout=Layout(tp_attention=t, tp_ffn=t), **how).parts_s for t in (1, 8))
    for part in ("projections", "attention", "ffn"):
        assert 1 / 8 - 1e-9 < eight[part] / one[part] < 1 / 5
    assert one["communication"] == 0 < eight["communication"]
    reduce = collectives.all_reduce_s(2 * 16_384 * 8192, n_ranks=8, chip="gb300", engine="trtllm")
    assert eight["communication"] == pytest.approx(float(253 * reduce), rel=0.01)  # 2 a layer, the embedding; logits


def test_embedding_and_head_in_closed_form():
    n, tp8 = 8192, Layout(tp_attention=8, tp_ffn=8)
    costs_ = costs("llama_3_1_405b", n_new=n, layout=tp8, precision=FP8).kinds_s
    h, v, chip = 16_384, 128_256, CHIPS["gb300"]
    assert costs_["projections"][0] == pytest.approx(2 * 2 * h * n / chip.hbm_bytes_per_s)  # read and written in BF16
    assert costs_["projections"][-1] == pytest.approx(float(kernels.gemm_s(1, h, v / 8, chip=chip, fmt="bf16")))
    gather = collectives.all_gather_s(2 * v, n_ranks=8, chip=chip)
    assert costs_["communication"][-1] == pytest.approx(float(gather)) and gather > 0
    assert (costs_["attention"][[0, -1]] == 0).all()


@pytest.mark.parametrize("bound", [False, True])
def test_attention_is_that_of_the_heads_a_gpu_holds(bound):
    tp8 = Layout(tp_attention=8, tp_ffn=8)
    for n, p in ((8192, 32_768), (8, 1_000_000)):  # the second reads the cache, which has key-value heads
        found = costs("llama_3_1_405b", n_new=n, n_prefix=p, layout=tp8, precision=FP8, bound=bound).parts_s
        how = dict(d_head=128, chip="gb300", fmt="fp8", bound=bound)
        one = attention_kernels.attention_prefill_s(n, p, n_heads=16, n_kv_heads=1, **how)
        assert found["attention"] == pytest.approx(126 * float(one), rel=1e-9)
    all_heads = attention_kernels.attention_prefill_s(8, 1_000_000, n_heads=16, n_kv_heads=8, **how)
    assert all_heads > 2 * one or not bound


def test_what_has_no_kernel_is_divided_by_ranks_too():
    how = dict(n_new=8192, n_prefix=131_072)
    for name, kind in (("nemotron_h_56b", "recurrent"), ("llama_4_maverick", "chunked")):
        one, eight = (costs(name, layout=Layout(tp_attention=t, tp_ffn=t), **how).kinds_s["attention"] for t in (1, 8))
        kinds = list(dict.fromkeys(MODELS[name].config.layers))
        rows = [1 + i for i, x in enumerate(kinds) if any(m.kind not in ("full", "sliding") for m in x.mixers)]
        assert rows, kind
        assert eight[rows] == pytest.approx(one[rows] / 8, rel=1e-9), kind


SPARSE_LATENT = sorted(
    name
    for name, model in MODELS.items()
    if any(isinstance(m, LatentAttention) and m.n_selected_tokens for x in model.config.layers for m in x.mixers)
)


def test_indexers_score_with_all_heads_on_every_rank_in_the_format_of_the_cache():
    model = MODELS["deepseek_v3_2"]
    x = model.config.layers[-1].mixers[0].indexer
    bare = tuple(replace(one, mixers=(replace(one.mixers[0], indexer=None),)) for one in model.config.layers)
    without = replace(model, config=replace(model.config, layers=bare))
    n, p = np.array([1, 8192]), np.array([1_000_000, 131_072])  # by memory, by arithmetic
    for precision, kv in ((FP8, "fp8"), (BF16, "bf16")):
        for tp in (1, 8):
            how = dict(layout=Layout(tp_attention=tp, ep=tp), precision=precision, n_new=n, n_prefix=p)
            both, mixing = (costs(m, **how).kinds_s["attention"] for m in (model, without))
            scored = roofline.time_s(attention.index(n, p, n_heads=x.n_heads, d_head=x.d_head, kv=kv), "gb300", kv)
            assert np.allclose((both - mixing)[1:-1], scored, rtol=1e-9, atol=0)


def test_a_latent_and_a_compressed_entry_are_whole_on_every_rank():
    for name in ("deepseek_v3_2", "deepseek_v4_flash"):  # one token far behind reads the cache and nothing else
        mixer = MODELS[name].config.layers[-1].mixers[0]
        mixer = replace(mixer, indexer=None, n_selected_tokens=mixer.n_selected_tokens and 10**6)
        layer = replace(MODELS[name].config.layers[-1], mixers=(mixer,))
        of = replace(MODELS[name], config=replace(MODELS[name].config, layers=(layer,)))
        one, eight = (
            float(costs(of, n_new=1, n_prefix=900_000, layout=Layout(tp_attention=t, ep=t)).kinds_s["attention"][1])
            for t in (1, 8)
        )
        least = mixer.kv_rank + mixer.d_rope if name == "deepseek_v3_2" else mixer.d_head / mixer.tokens_per_entry
        assert eight >= 2 * 900_000 * least / CHIPS["gb300"].hbm_bytes_per_s
        assert one >= eight > one / 8


@pytest.mark.parametrize("name", SPARSE_LATENT)
@pytest.mark.parametrize("bound", [False, True])
def test_sparse_latent_attention_takes_the_faster_form_and_no_less_behind_a_longer_prefix(name, bound):
    n, p = np.array([[64], [1024], [4096], [16_384]]), np.unique(np.geomspace(1, 2e6, 400).astype(int)) - 1
    how = dict(n_new=n, n_prefix=p, precision=FP8, bound=bound)
    for layout in (ONE, Layout(dp=8, ep=8), Layout(tp_attention=8, ep=8)):
        took = costs(name, layout=layout, **how)
        assert (np.diff(took.total_s, axis=-1) >= -1e-12 * took.total_s[..., 1:]).all()
        assert (np.diff(took.kinds_s["attention"], axis=-1) >= 0).all()
        mixer = MODELS[name].config.layers[-1].mixers[0]
        sizes = dict(n_heads=mixer.n_heads / layout.tp_attention, kv_rank=mixer.kv_rank, d_rope=mixer.d_rope)
        sizes |= dict(d_nope=mixer.d_nope, d_value=mixer.d_value, window_tokens=mixer.n_selected_tokens, kv="fp8")
        works = [attention.latent_prefill(n, p, **sizes, absorbed=x) for x in (True, False)]
        absorbed, expanded = (roofline.time_s(w, "gb300", "fp8") for w in works)
        scored = layer_ops.indexing(mixer, n, p, precision=FP8)
        index_s = roofline.time_s(scored, "gb300", "fp8") if scored else 0.0
        ours = took.kinds_s["attention"][took.order[-2]] - index_s
        assert ours == pytest.approx(np.minimum(absorbed, expanded), rel=1e-9)
        assert (absorbed < expanded).any() and (expanded < absorbed).any()  # neither form is always the faster


@pytest.mark.parametrize(("engine", "chip"), [("trtllm", "gb300"), ("sglang", "h200_sxm")])
def test_dense_latent_attention_in_either_form_is_above_the_bound_of_both(engine, chip):
    n, p = np.array([[16], [170], [171], [4096], [16_384]]), np.unique(np.geomspace(1, 1e6, 100).astype(int)) - 1
    how = dict(n_new=n, n_prefix=p, chip=chip, precision=BF16)
    took, least = costs("deepseek_r1", engine=engine, **how), costs("deepseek_r1", bound=True, **how)
    mixer = MODELS["deepseek_r1"].config.layers[-1].mixers[0]
    forms = [roofline.time_s(w, chip, "bf16") for w in layer_ops.mixing_forms(mixer, n, p)]
    assert least.kinds_s["attention"][1] == pytest.approx(np.minimum(*forms), rel=1e-9)
    for found in (took, least):
        assert (np.diff(found.kinds_s["attention"], axis=-1) >= 0).all()
    assert (took.kinds_s["attention"] >= least.kinds_s["attention"]).all()


def test_linear_layers_beside_mixer_and_ffn_count():
    model = MODELS["deepseek_v4_flash"]
    layers = tuple(replace(x, n_hyper=0) for x in model.config.layers)
    bare = replace(model, config=replace(model.config, layers=layers))
    found, without = (costs(x, n_new=8192).cost_s[6] for x in (model, bare))
    mixing = 2 * kernels.gemm_s(8192, 4 * 4096, 24, chip="gb300", fmt="bf16")  # four residual streams, read and written
    assert found - without == pytest.approx(float(mixing), rel=1e-9)


def test_replicas_share_experts():
    tp, dp = Layout(tp_attention=8, ep=8), Layout(dp=8, ep=8)
    one, all_ = (costs("deepseek_r1", n_new=4096, layout=x, precision=FP8).parts_s for x in (tp, dp))
    assert all_["experts"] > 3 * one["experts"]  # eight prompts, not one
    assert all_["projections"] > 3 * one["projections"]  # not divided


def test_routings_differ_where_there_are_experts_and_tokens_are_few():
    how = dict(n_new=16, layout=Layout(dp=2, ep=2), precision=FP8)
    balanced, random, skewed = (costs("deepseek_r1", routing=r, **how).parts_s["experts"] for r in moe.ROUTINGS)
    assert balanced > random > 0 and balanced > skewed > 0  # distinct experts of 32 tokens, and the busiest rank's
    dense = [costs("llama_3_1_70b", n_new=16, precision=FP8, routing=r).total_s for r in moe.ROUTINGS]
    assert dense[0] == dense[1] == dense[2]


def test_expanding_a_latent_prefix_is_paid_for_again():
    n, p = 8192, np.array([0, 131_072])
    sizes = dict(absorbed=False, chip="gb300", fmt="fp8", n_prefix=p)
    numbers = calibration.find("latent_prefill", "gb300", "trtllm", "fp8").numbers
    attending = latent_kernels.latent_prefill_form_s(n, 1, 128, 192, 128, numbers=numbers, **sizes)
    expanding = [0.0, float(kernels.gemm_s(131_072, 512, 128 * 256, chip="gb300", fmt="fp8"))]
    found = costs("deepseek_r1", n_new=n, n_prefix=p, precision=FP8).parts_s["attention"]
    assert found == pytest.approx(61 * (attending + expanding), rel=1e-9)
    assert expanding[1] > 0.05 * attending[1]


def test_sglang_on_hopper_absorbs_and_expands_nothing():
    how = dict(n_new=8192, n_prefix=131_072, chip="h200_sxm", precision=BF16)
    absorbed, expanded = (costs("deepseek_r1", engine=e, **how).parts_s["attention"] for e in ("sglang", "trtllm"))
    assert 2.5 < absorbed / expanded < 4  # 1088 against 320 FLOP a pair and head


def test_recurrent_layers_do_not_see_the_prefix():
    found = costs("nemotron_3_super", n_new=4096, n_prefix=[0, 262_144]).kinds_s["attention"]
    labels = list(dict.fromkeys(MODELS["nemotron_3_super"].config.layers))
    for layer, (short, long) in zip(labels, found[1:-1], strict=True):
        kinds = {m.kind for m in layer.mixers}
        if "full" in kinds:
            assert long > 3 * short
        else:
            assert long == short


def test_windows_end_the_growth():
    found = costs("gemma_3_27b", n_new=4096, n_prefix=[0, 8192, 131_072]).kinds_s["attention"]
    sliding, full = found[1], found[2]
    assert sliding[2] == pytest.approx(sliding[1], rel=1e-9)
    assert full[2] > 3 * full[1]


def test_another_chip_by_name():
    how = dict(n_new=8192, chip="h20", precision=FP8, layout=Layout(tp_attention=4, tp_ffn=4))
    with pytest.raises(ValueError, match=r"H20 has no calibrated trtllm .*transfer_from"):
        costs("qwen3_32b", **how)
    by_name = costs("qwen3_32b", **how, transfer_from="h200_sxm")
    assert by_name.total_s > costs("qwen3_32b", **how, bound=True).total_s
    assert by_name.total_s > 3 * costs("qwen3_32b", **how | {"chip": "h200_sxm"}).total_s  # 148 against 989 TFLOP/s


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_new": 0}, "n_new is 0.0"),
        ({"n_new": 10.5}, "n_new is 10.5; allowed: whole"),
        ({"n_prefix": -1}, "n_prefix is -1"),
        ({"n_new": [1, 2], "n_prefix": [1, 2, 3]}, "do not broadcast"),
        ({"layout": Layout(kvp=2, tp_ffn=2)}, "layout has kvp=2, .*allowed: kvp=1"),
        ({"layout": Layout(tp_attention=24, tp_ffn=24)}, "does not divide as"),
        ({"layout": 8}, "layout is 8; allowed: a Layout"),
        ({"chip": "mi300x"}, "no calibrated"),
        ({"precision": Precision(weights="nvfp4", activations="bf16", kv="bf16")}, "no calibrated kernel multiplies"),
        ({"transfer_from": "h200_sxm", "bound": True}, "takes no fitted numbers"),
        ({"engine": "vllm"}, "engine is 'vllm'"),
        ({"precision": None}, "precision is None; allowed: Precision"),
        ({"routing": "x"}, "routing is 'x'; allowed: balanced, random, skewed"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        costs("llama_3_1_70b", **({"n_new": 1024} | change))


class TestVolumes:
    def test_short_forms(self):
        s, h, n_layers, kd = 131_072, 4096, 94, 4 * 128
        many = dict(n_tokens=s, n_ranks=10**9)
        assert volumes.sent_bytes("qwen3_235b_a22b", kind="tp", **many) == pytest.approx(4 * s * h * n_layers * 2)
        assert volumes.sent_bytes("qwen3_235b_a22b", kind="cp", **many) == pytest.approx(2 * s * kd * n_layers * 2)
        assert volumes.sent_bytes("qwen3_235b_a22b", s, kind="pp", n_ranks=8) == s * h * 7 * 2

    def test_one_rank_sends_nothing(self):
        for kind in volumes.KINDS:
            assert volumes.sent_bytes("deepseek_r1", 1024, kind=kind, n_ranks=1) == 0

    def test_links(self):
        how = dict(kind="pp", n_ranks=[2, 8], chip="h200_sxm")
        inside, out = (
            volumes.sent_s("llama_3_1_70b", 1000, **how),
            volumes.sent_s("llama_3_1_70b", 1000, across=True, **how),
        )
        assert inside[0] == pytest.approx(1000 * 8192 * 2 / 450e9)
        assert out == pytest.approx(9 * inside)
        mesh = volumes.sent_s("llama_3_1_70b", 1000, kind="pp", n_ranks=2, chip="mi300x")
        assert mesh == pytest.approx(1000 * 8192 * 2 / 64e9)  # one peer's link
        assert volumes.sent_s("llama_3_1_70b", 1000, kind="tp", n_ranks=2, chip="mi300x") < 140 * mesh

    def test_refuses(self):
        with pytest.raises(ValueError, match="kind is 'ep'; allowed: tp, cp, pp"):
            volumes.sent_bytes("deepseek_r1", 1024, kind="ep", n_ranks=8)
        with pytest.raises(ValueError, match="n_ranks is 16; allowed: up to 8"):
            volumes.sent_s("deepseek_r1", 1024, kind="tp", n_ranks=16, chip="h200_sxm")
        with pytest.raises(ValueError, match="no scale_out_bytes_per_s"):
            volumes.sent_s("deepseek_r1", 1024, kind="tp", n_ranks=16, chip="mi300x", across=True)
        with pytest.raises(ValueError, match="n_tokens is 0"):
            volumes.sent_bytes("deepseek_r1", 0, kind="tp", n_ranks=8)
