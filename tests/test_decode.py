"""A decode step by part: sums by hand, limits, properties, and numbers that others published."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign_lib.cost import roofline
from codesign_lib.cost.attention_kernels import attention_decode_s
from codesign_lib.cost.kernels import gemm_s
from codesign_lib.cost.latent_kernels import latent_decode_s
from codesign_lib.cost.moe_kernels import moe_s
from codesign_lib.cost.ops import attention, recurrent
from codesign_lib.serving import exchange, shards
from codesign_lib.serving.decode import DecodeStep, Overhead, decode_step_s, hop_b_s
from codesign_lib.serving.layout import Layout, layouts
from codesign_lib.specs import hardware, models
from codesign_lib.specs.formats import BF16, Precision

IN_BF16 = Precision(weights="bf16", activations="bf16", kv="bf16")
IN_FP8 = Precision(weights="fp8", activations="fp8", kv="fp8")
IN_FP4 = Precision(weights="nvfp4", activations="nvfp4", kv="fp8")
PAYLOAD = Precision(weights="fp4_payload", activations="fp4_payload", kv="fp4_payload", head="fp4_payload")
PARTS = [f.name for f in fields(DecodeStep)]


def of_config(name, **keys):
    return models.Model.from_config({"model_type": "llama", "torch_dtype": "bfloat16"} | keys, name=name)


def test_llama_on_one_gpu_is_the_sum_of_its_kernels():
    on = dict(chip="gb300", fmt="nvfp4")
    step = decode_step_s("llama_3_1_70b", "gb300", layout=Layout(), batch=16, n_context=8192, precision=IN_FP4)
    assert step.projections_s == pytest.approx(80 * (gemm_s(16, 8192, 10_240, **on) + gemm_s(16, 8192, 8192, **on)))
    assert step.ffn_s == pytest.approx(80 * (gemm_s(16, 8192, 57_344, **on) + gemm_s(16, 28_672, 8192, **on)))
    mixing = attention_decode_s(8192, n_heads=64, n_kv_heads=8, n_batch=16, chip="gb300", fmt="fp8")
    assert step.attention_s == pytest.approx(80 * mixing)
    assert step.head_s == pytest.approx(gemm_s(16, 8192, 128_256, chip="gb300", fmt="bf16"))
    assert step.experts_s == step.communication_s == step.overhead_s == step.waiting_s == 0
    assert step.step_s == pytest.approx(step.projections_s + step.attention_s + step.ffn_s + step.head_s, rel=1e-12)


def test_deepseek_with_attention_dp_by_hand():
    at, chip = Layout(dp=16, ep=16), "gb200"
    step = decode_step_s("deepseek_r1", chip, layout=at, batch=512, n_context=4096, precision=IN_FP4)
    on = dict(chip=chip, fmt="nvfp4")
    shapes = [(7168, 2112), (1536, 24_576), (512, 32_768), (16_384, 7168)]
    assert step.projections_s == pytest.approx(61 * sum(gemm_s(32, k, n, **on) for k, n in shapes))
    latent = latent_decode_s(4096, n_heads=128, n_batch=32, chip=chip, fmt="fp8")
    assert step.attention_s == pytest.approx(61 * latent)
    r1 = dict(d_model=7168, d_expert=2048, n_experts=256, n_chosen=8)
    assert step.experts_s == pytest.approx(58 * moe_s(512, **r1, ep=16, **on))
    dense = gemm_s(32, 7168, 36_864, **on) + gemm_s(32, 18_432, 7168, **on)
    shared = gemm_s(32, 7168, 4096, **on) + gemm_s(32, 2048, 7168, **on)
    router = gemm_s(32, 7168, 256, chip=chip, fmt="bf16")
    assert step.ffn_s == pytest.approx(3 * dense + 58 * (shared + router))
    (moe,) = (f for f, _ in shards.kinds(models.MODELS["deepseek_r1"]).ffns if f.n_experts)
    net = exchange.Network(chip=hardware.chip(chip))
    sent = exchange.experts_s(512, moe, 7168, layout=at, activations=IN_FP4.activations, routing="balanced", on=net)
    assert step.communication_s == pytest.approx(58 * sent)


def test_experts_divided_in_width_serve_all_replicas():
    # attention DP with tensor-parallel experts: shared experts are divided too, and see the tokens of all replicas
    at, on = Layout(dp=8, tp_ffn=8), dict(chip="gb200", fmt="nvfp4")
    step = decode_step_s("deepseek_r1", "gb200", layout=at, batch=256, n_context=4096, precision=IN_FP4)
    r1 = dict(d_model=7168, d_expert=2048, n_experts=256, n_chosen=8)
    assert step.experts_s == pytest.approx(58 * moe_s(256, **r1, tp=8, **on))
    dense = gemm_s(256, 7168, 4608, **on) + gemm_s(256, 2304, 7168, **on)
    shared = gemm_s(256, 7168, 512, **on) + gemm_s(256, 256, 7168, **on)
    router = gemm_s(32, 7168, 256, chip="gb200", fmt="bf16")
    assert step.ffn_s == pytest.approx(3 * dense + 58 * (shared + router))


def test_experts_in_a_latent_size_and_experts_that_do_nothing():
    nemotron, on = models.MODELS["nemotron_3_super"], dict(chip="gb200", fmt="bf16")
    how = dict(layout=Layout(dp=8, ep=8), batch=256, n_context=4096, precision=IN_BF16)
    (moe,) = (f for f, _ in shards.kinds(nemotron).ffns)
    assert moe.d_latent == 1024
    sizes = dict(d_model=1024, d_expert=moe.d_expert, n_experts=512, n_chosen=22, gated=False, ep=8)
    step = decode_step_s(nemotron, "gb200", **how)
    n_layers = sum(n for _, n in shards.kinds(nemotron).ffns)
    assert step.experts_s == pytest.approx(n_layers * moe_s(256, **sizes, **on))
    idle = replace(moe, n_idle_experts=512)  # half of what a token chooses
    layers = tuple(replace(x, ffns=tuple(idle for _ in x.ffns)) for x in nemotron.config.layers)
    half = decode_step_s(replace(nemotron, config=replace(nemotron.config, layers=layers)), "gb200", **how)
    assert half.experts_s == pytest.approx(n_layers * moe_s(128, **sizes, **on))


def attention_s(name, context, precision=IN_FP8, chip="gb200", **axes):
    how = dict(layout=Layout(**axes), batch=16, n_context=context, precision=precision)
    return decode_step_s(name, chip, **how, bound=True).attention_s, decode_step_s(name, chip, **how).attention_s


def test_attention_of_every_kind_by_hand():
    on = dict(n_batch=16, chip="gb200", fmt="fp8")
    # chunks of 8,192 start anew; every fourth layer sees everything
    maverick = dict(n_heads=40, n_kv_heads=8, **on)
    chunked, full = (attention_decode_s(s, **maverick) for s in (1000, 9192))
    assert attention_s("llama_4_maverick", 9192)[1] == pytest.approx(36 * chunked + 12 * full)
    # windows, divided by kvp like everything
    gemma = dict(n_heads=32, n_kv_heads=16, d_head=128, **on)
    near, far = (attention_decode_s(s, **gemma) for s in (1024 / 4, 65_536 / 4))
    assert attention_s("gemma_3_27b", 65_536, kvp=4, tp_ffn=4)[1] == pytest.approx(52 * near + 10 * far)
    # keys of 192 and values of 128 are priced as 160 each
    mimo = dict(shards.kinds(models.MODELS["mimo_v2_flash"]).mixers)
    expected = sum(
        n
        * attention_decode_s(
            min(4096, m.window_tokens or 4096), n_heads=m.n_heads, n_kv_heads=m.n_kv_heads, d_head=160, **on
        )
        for m, n in mimo.items()
    )
    assert attention_s("mimo_v2_flash", 4096)[1] == pytest.approx(expected)
    # sparse: 2,048 selected entries of the latent, and one indexer key a token scored
    for kvp in (1, 4):
        at = dict(kvp=kvp, ep=kvp)
        read = latent_decode_s(2048 / kvp, n_heads=128, **on)
        score = 16 * 100_000 * 128 / kvp / 8e12  # bytes of FP8 keys over HBM; scoring takes less
        assert attention_s("deepseek_v3_2", 100_000, **at)[1] == pytest.approx(61 * (read + score), rel=1e-6)
    # compressed: a window of 128, and one entry for 128 tokens or 4 of which 1,024 are selected
    pro = dict(n_heads=128, kv_rank=511, d_rope=1, **on)
    pooled, picked = latent_decode_s(128 + 1000, **pro), latent_decode_s(128 + 1024, **pro)
    score = 16 * 32_000 * 128 / 8e12
    found = shards.kinds(models.MODELS["deepseek_v4_pro"]).mixers
    n_pooled, n_picked = (next(n for m, n in found if m.tokens_per_entry == x) for x in (128, 4))
    expected = n_pooled * pooled + n_picked * (picked + score)
    assert attention_s("deepseek_v4_pro", 128_000)[1] == pytest.approx(expected, rel=1e-3)


def test_recurrent_states_are_divided_by_heads():
    found = shards.kinds(models.MODELS["nemotron_3_super"]).mixers
    full, n_full = next((m, n) for m, n in found if not hasattr(m, "d_key"))
    for tp in (1, 8):
        heads = dict(n_heads=full.n_heads / tp, n_kv_heads=max(1, full.n_kv_heads / tp))
        size = n_full * attention_decode_s(4096, **heads, n_batch=16, chip="gb200", fmt="fp8", bound=True)
        state = attention_s("nemotron_3_super", 4096, tp_attention=tp, ep=tp)[0] - size
        # states are read and written: 2 · 160 MiB a sequence, and little else
        assert state == pytest.approx(16 * 2 * 160 * 2**20 / 8e12 / tp, rel=0.05)


def test_merging_of_every_kind_by_hand():
    net = exchange.Network(chip=hardware.chip("gb200"))
    for name, width, n in (("deepseek_r1", 512, 61), ("qwen3_235b_a22b", 128, 94), ("deepseek_v4_pro", 512, 61)):
        with_kvp, without = (
            decode_step_s(name, "gb200", layout=x, batch=8, n_context=10**5, precision=IN_FP4).communication_s
            for x in (Layout(kvp=4, tp_attention=2, ep=8), Layout(tp_attention=8, ep=8))
        )
        heads = (64 if name == "qwen3_235b_a22b" else 128) / 2
        assert with_kvp - without == pytest.approx(n * net.all_to_all_s(8 * heads * (2 * width + 8), 4))


def test_equal_matrices_side_by_side_are_one_product():
    pro = models.MODELS["deepseek_v4_pro"]
    found = [(x, n) for m, n in shards.kinds(pro).mixers for x in shards.mixer_shards(m, 7168, Layout()) if x.of.kind]
    assert {(x.k, x.n, x.count) for x, _ in found if x.of.name == "out_a"} == {(4096, 1024, 16)}
    times = [n * gemm_s(16, x.k, x.n * x.count, chip="gb200", fmt="nvfp4") for x, n in found]
    step = decode_step_s(pro, "gb200", layout=Layout(), batch=16, n_context=4096, precision=IN_FP4)
    assert step.projections_s == pytest.approx(sum(times))


def test_the_helix_paper_s_roofline():
    # arXiv 2507.07120, appendix A: B=8, Q=128, K=8, heads of 128, F=65,536, half a byte an element, 8 TB/s
    config = models.MODELS["llama_3_1_405b"].config
    (ffn,) = config.layers[0].ffns
    layer = replace(config.layers[0], ffns=(replace(ffn, d_dense=65_536),))
    model = models.Model(name="x", title="x", config=replace(config, layers=(layer,)), source="the paper's figure 1")
    tp = np.array([1, 2, 4, 8, 16, 32, 64])
    how = dict(batch=8, precision=PAYLOAD, bound=True)
    all_the_way = decode_step_s(model, "gb200", layout=Layout(tp_attention=tp, tp_ffn=tp), n_context=10**6, **how)
    kv_us = [1024, 512, 256, 128, 128, 128, 128]
    np.testing.assert_allclose(all_the_way.attention_s * 1e6, kv_us, rtol=1e-3)
    # products also move their inputs and outputs, which the paper leaves out: 1 % at TP 1, 15 % at TP 64
    weights_us = np.array([236.98, 118.49, 59.24, 29.62, 14.94, 7.60, 3.93])
    ours = (all_the_way.projections_s + all_the_way.ffn_s) * 1e6
    assert np.all(ours >= weights_us * 0.999) and ours[:5] == pytest.approx(weights_us[:5], rel=0.05)
    kvp = np.array([1, 2, 4, 8, 16])
    helix = decode_step_s(
        model, "gb200", layout=Layout(kvp=kvp, tp_attention=8, tp_ffn=8 * kvp), n_context=10**6, **how
    )
    np.testing.assert_allclose(helix.attention_s * 1e6, [128, 64, 32, 16, 8], rtol=2e-3)
    # where reading the cache takes as long as reading the weights, at TP 8: S = 231,424
    s = np.arange(200_000, 260_000, 500)
    at_8 = decode_step_s(model, "gb200", layout=Layout(tp_attention=8, tp_ffn=8), n_context=s, **how)
    cross = np.interp(0, at_8.attention_s - at_8.projections_s - at_8.ffn_s, s)
    assert cross == pytest.approx(231_424, rel=0.05) and cross > 231_424


def test_tp8_barely_beats_tp4():
    # vllm#16300: QwQ-32B in BF16 on A100-80, batch 1: 27.50, 19.55, 15.75 ms a token at TP 2, 4, 8
    qwq = of_config("QwQ-32B", model_type="qwen2", hidden_size=5120, num_hidden_layers=64, num_attention_heads=40,
                    num_key_value_heads=8, intermediate_size=27_648, vocab_size=152_064)  # fmt: skip
    tp = np.array([2, 4, 8])
    at = Layout(tp_attention=tp, tp_ffn=tp)
    step = decode_step_s(qwq, "a100_sxm", layout=at, batch=1, n_context=100, precision=IN_BF16, bound=True)
    reads = step.projections_s + step.ffn_s + step.head_s
    np.testing.assert_allclose(reads * 1e3, [15.69, 7.84, 3.92], rtol=2e-3)
    rest = np.array([27.50, 19.55, 15.75]) - step.step_s * 1e3
    assert np.ptp(rest) < 0.15 and rest.mean() == pytest.approx(11.8, abs=0.1)  # constant: ≤ 85 tokens/s whatever TP
    assert 1e3 / rest.max() < 85


MEASURED_MS = {  # Llama-3.1-70B, 1,024 tokens in and out, TensorRT-LLM; concurrency 4, 8 … 128 × TP 1, 2, 4, 8
    ("b200_sxm", IN_FP4): [
        [12.06, 8.94, 6.63, 5.87], [12.39, 8.91, 7.06, 6.10], [13.11, 9.38, 7.19, 6.78],
        [14.36, 10.15, 8.03, 7.69], [16.92, 11.99, 9.29, 10.16], [21.88, 15.19, 12.27, 13.66],
    ],
    ("h200_sxm", IN_FP8): [
        [20.11, 12.02, 7.98, 6.26], [21.12, 12.42, 8.24, 6.72], [22.99, 13.39, 8.93, 7.69],
        [25.80, 15.43, 10.63, 9.30], [32.34, 18.99, 13.66, 13.51], [44.92, 27.01, 19.28, 21.64],
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", MEASURED_MS, ids=lambda case: case[0])
def test_llama_70b_end_to_end_before_anything_is_fitted(case):
    # Kernels measured one at a time and added up are 14–29 % too slow at concurrency 4, where they overlap in a graph,
    # and 9–32 % too fast at 128, where the host and sampling count: no constant is fitted here.
    chip, precision = case
    tp, batch = np.array([1, 2, 4, 8]), np.array([4, 8, 16, 32, 64, 128])[:, None]
    at = Layout(tp_attention=tp, tp_ffn=tp)
    step = decode_step_s("llama_3_1_70b", chip, layout=at, batch=batch, n_context=1536, precision=precision)
    gap = step.step_s * 1e3 / np.array(MEASURED_MS[case]) - 1
    assert np.median(np.abs(gap)) < 0.16 and np.abs(gap).max() < 0.35
    assert np.all(gap[0] > 0) and np.all(gap[-1] < 0)
    assert np.all(step.step_s[0, :-1] > step.step_s[0, 1:])  # at low concurrency more ranks are faster
    assert chip != "b200_sxm" or step.step_s[-1, 3] > step.step_s[-1, 2]  # at high TP 8 is slower than TP 4


SWEEP = ["llama_3_1_70b", "deepseek_r1", "gpt_oss_120b", "nemotron_3_super", "gemma_3_27b", "deepseek_v4_flash",
         "qwen3_5_397b_a17b", "jamba_1_5_mini", "llama_4_maverick", "glm_5"]  # fmt: skip


@pytest.mark.parametrize("name", SWEEP)
@settings(max_examples=15)
@given(data=st.data())
def test_parts_are_positive_and_never_below_the_bound(name, data):
    chip, precision = data.draw(st.sampled_from([("gb300", IN_FP4), ("h200_sxm", IN_FP8), ("b200_sxm", IN_BF16)]))
    many = layouts(data.draw(st.sampled_from([1, 8, 12, 16])), name, precision=precision)
    how = dict(layout=many, batch=data.draw(st.integers(1, 3000)), n_context=data.draw(st.integers(1, 10**6)))
    how |= dict(precision=precision, routing=data.draw(st.sampled_from(["balanced", "skewed"])))
    how |= dict(hop_b=data.draw(st.booleans()), n_draft=data.draw(st.integers(0, 4)))
    real, bound = (decode_step_s(name, chip, bound=x, **how) for x in (False, True))
    for step in (real, bound):
        assert all(np.all(getattr(step, x) >= 0) for x in PARTS)
        np.testing.assert_allclose(step.step_s, sum(step.parts_s.values()), rtol=1e-12)
    for part in PARTS[:5]:
        assert np.all(getattr(real, part) >= getattr(bound, part) * (1 - 1e-9)), part
    assert np.all(real.step_s >= bound.step_s * (1 - 1e-9))


@pytest.mark.parametrize("name", SWEEP)
def test_a_grid_is_its_points(name):
    many = layouts(16, name, precision=IN_FP8)
    many = many[:: max(1, len(many) // 7)]
    batches, contexts = np.array([1, 7, 300])[:, None], np.array([5, 4000, 200_000])
    how = dict(precision=IN_FP8, routing="skewed", hop_b=True)
    grid = decode_step_s(name, "gb200", layout=many[:, None, None], batch=batches, n_context=contexts, **how)
    assert grid.step_s.shape == (len(many), 3, 3) == grid.head_s.shape
    for i in range(len(many)):
        for j, batch in enumerate(batches.ravel()):
            for k, context in enumerate(contexts):
                one = decode_step_s(name, "gb200", layout=many[i], batch=batch, n_context=context, **how)
                assert one.step_s.shape == ()
                for part in PARTS:
                    assert getattr(grid, part)[i, j, k] == pytest.approx(getattr(one, part), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("name", SWEEP)
@settings(max_examples=10)
@given(batch=st.integers(1, 2000), context=st.integers(1, 10**6), more=st.integers(1, 10**4))
def test_the_bound_grows_with_batch_and_context(name, batch, context, more):
    many, how = layouts(8, name), dict(precision=IN_FP8, bound=True)
    steps = decode_step_s(
        name, "gb200", layout=many, batch=np.array([batch, batch + more])[:, None], n_context=context, **how
    )
    assert np.all(steps.step_s[1] >= steps.step_s[0] * (1 - 1e-12))
    if name != "llama_4_maverick":  # attention in chunks starts each chunk anew
        longer = decode_step_s(name, "gb200", layout=many, batch=batch, n_context=[[context], [context + more]], **how)
        assert np.all(longer.step_s[1] >= longer.step_s[0] * (1 - 1e-12))


def test_more_ranks_than_key_value_heads_read_as_much():
    tp = np.array([1, 2, 4, 8, 16, 32, 64])
    for name, heads in (("llama_3_1_405b", 8), ("deepseek_r1", 1), ("qwen3_235b_a22b", 4)):
        at = Layout(tp_attention=tp, tp_ffn=1, ep=tp) if heads < 8 else Layout(tp_attention=tp, tp_ffn=tp)
        step = decode_step_s(name, "gb200", layout=at, batch=8, n_context=10**6, precision=IN_FP8, bound=True)
        ratio = step.attention_s / step.attention_s[-1]
        np.testing.assert_allclose(ratio, np.maximum(1, heads / tp), rtol=0.02)


def test_dividing_the_context_divides_its_reading_and_costs_a_message():
    kvp = np.array([1, 2, 4, 8])
    at = Layout(kvp=kvp, tp_attention=8, tp_ffn=8 * kvp)
    how = dict(layout=at, batch=8, precision=IN_FP4)
    step = decode_step_s("llama_3_1_405b", "gb200", n_context=8_000_000, **how, bound=True)
    np.testing.assert_allclose(step.attention_s[0] / step.attention_s, kvp, rtol=1e-3)
    short, long = (decode_step_s("llama_3_1_405b", "gb200", n_context=n, **how) for n in (10_000, 8_000_000))
    np.testing.assert_array_equal(short.communication_s, long.communication_s)  # independent of the context
    assert np.all(np.diff(long.communication_s) > 0) and np.all(long.projections_s[1:] < long.projections_s[0])


def cross_tokens(model, chip, batch):
    """Context from which KVP 8 × TP 8 is faster than TP 64 on 64 GPUs, 0 or infinite where one always is."""
    s = np.unique(np.geomspace(1000, 3e7, 200).astype(int))
    tp, helix = (
        decode_step_s(model, chip, layout=x, batch=batch, n_context=s, precision=IN_FP4).step_s
        for x in (Layout(tp_attention=64, tp_ffn=64), Layout(kvp=8, tp_attention=8, tp_ffn=64))
    )
    faster = helix < tp
    assert np.all(np.diff(faster.astype(int)) >= 0)  # once faster, always
    return s[np.argmax(faster)] if faster.any() else np.inf


def test_helix_wins_from_some_context_on():
    at = [cross_tokens("llama_3_1_405b", "gb200", b) for b in (1, 2, 8)]
    assert 1000 < at[2] < at[1] < at[0] < 3e6  # earlier with more sequences


@pytest.mark.parametrize("name", ["llama_3_1_405b", "deepseek_r1"])
@settings(max_examples=30)
@given(batch=st.integers(1, 512), context=st.integers(1000, 10**7), hops=st.sampled_from([2, 8]))
def test_hop_b_only_helps(name, batch, context, hops):
    at = Layout(
        kvp=hops,
        tp_attention=4,
        tp_ffn=4 * hops if name.startswith("llama") else 4,
        ep=1 if name.startswith("llama") else hops,
    )
    how = dict(layout=at, batch=batch, n_context=context, precision=IN_FP4)
    off, on = (decode_step_s(name, "gb300", hop_b=x, **how) for x in (False, True))
    assert on.communication_s <= off.communication_s * (1 + 1e-12)
    assert on.step_s >= off.step_s - (off.communication_s if batch > 1 else 1e-12)
    assert on.attention_s == off.attention_s


def test_hop_b_limits():
    assert hop_b_s(16, 9.6, 1) == 25.6  # one sequence has nothing to overlap with
    assert hop_b_s(16, 9.6, 10**9) == pytest.approx(16) and hop_b_s(1, 9.6, 10**9) == pytest.approx(9.6)


def test_stages_of_a_pipeline():
    how = dict(n_context=4096, precision=IN_FP8)
    one, two = (decode_step_s("llama_3_1_70b", "gb200", layout=Layout(pp=pp), batch=1, **how) for pp in (1, 2))
    assert two.waiting_s == 0 and two.step_s == pytest.approx(
        one.step_s + two.communication_s
    )  # one sequence waits for none
    full = decode_step_s("llama_3_1_70b", "gb200", layout=Layout(pp=4), batch=256, **how)
    alone = decode_step_s("llama_3_1_70b", "gb200", layout=Layout(), batch=64, **how)
    assert full.step_s >= alone.step_s and full.attention_s == pytest.approx(alone.attention_s)
    # 80 layers in 3 stages of 26, 27 and 27 − 1 with the head, each sequence once through the slowest
    uneven = decode_step_s("llama_3_1_70b", "gb200", layout=Layout(pp=3), batch=3, **how)
    layers = uneven.projections_s + uneven.attention_s + uneven.ffn_s
    hop = uneven.communication_s / 2
    period = max(27 / 80 * layers, 26 / 80 * layers + uneven.head_s) + hop
    assert uneven.step_s == pytest.approx(3 * period, rel=1e-12)


def test_the_slowest_stage_by_its_layers():
    # Gemma 3: 52 layers that see 1,024 tokens and 10 that see all; stages of 7, six times 8, 7; two of the 8 have two
    how = dict(batch=64, n_context=131_072, precision=IN_BF16)
    step = decode_step_s("gemma_3_27b", "gb200", layout=Layout(pp=8), **how)
    on = dict(n_heads=32, n_kv_heads=16, d_head=128, n_batch=8, chip="gb200", fmt="bf16")
    near, far = (attention_decode_s(s, **on) for s in (1024, 131_072))
    rest = (step.projections_s + step.ffn_s) / 62
    hop = step.communication_s / 7
    ends = 7 * rest + 6 * near + far + step.head_s
    assert step.step_s == pytest.approx(8 * (max(8 * rest + 6 * near + 2 * far, ends) + hop), rel=1e-12)
    # many stages of a small model: the head alone is the slowest
    small = decode_step_s("qwen3_0_6b", "gb200", layout=Layout(pp=28), batch=28, n_context=100, precision=IN_BF16)
    layer = (small.projections_s + small.attention_s + small.ffn_s) / 28
    assert small.head_s > layer
    assert small.step_s == pytest.approx(28 * (layer + small.head_s + small.communication_s / 27), rel=1e-12)
    # overhead: of a layer where the layers are, the rest once, on the last stage
    extra = Overhead(layer_s=1e-4, step_s=1e-3, sequence_s=1e-5, source="this test")
    more = decode_step_s("qwen3_0_6b", "gb200", layout=Layout(pp=28), batch=28, n_context=100, precision=IN_BF16,
                         overhead=extra)  # fmt: skip
    assert more.step_s - small.step_s == pytest.approx(28 * (1e-4 + 1e-3 + 1e-5), rel=1e-9)


@pytest.mark.parametrize("name", ["qwen3_235b_a22b", "deepseek_r1", "nemotron_3_super", "gemma_3_27b"])
@settings(max_examples=10)
@given(batch=st.integers(1, 200), context=st.integers(1, 10**5), bound=st.booleans())
def test_a_larger_batch_is_never_faster(name, batch, context, bound):
    many = layouts(16, name)
    many = many[(np.asarray(many.dp) > 1) & (np.asarray(many.pp) > 1)]
    batches = np.unique([batch, batch + 1, batch + 7, 2 * batch])[:, None]
    how = dict(layout=many, batch=batches, n_context=context, precision=IN_FP8, bound=bound)
    step = decode_step_s(name, "h200_sxm", **how).step_s
    assert np.all(np.diff(step, axis=0) >= -1e-12 * step[1:])


def test_micro_batches_are_as_full_as_the_fullest():
    # 17 sequences on 16 replicas in two stages: one has two, so there are two micro-batches, priced with 16 each
    how = dict(layout=Layout(dp=16, tp_ffn=16, pp=2), n_context=4096, precision=IN_FP8)
    one, more, full = (decode_step_s("qwen3_235b_a22b", "h200_sxm", batch=b, **how) for b in (16, 17, 32))
    assert one.step_s < more.step_s == full.step_s and one.experts_s == more.experts_s
    on = dict(d_model=4096, d_expert=1536, n_experts=128, n_chosen=8, tp=16, chip="h200_sxm", fmt="fp8")
    assert more.experts_s == pytest.approx(94 * moe_s(16, **on))


def test_random_routing_wakes_distinct_experts():
    # inference-sim#764: 32 tokens that pick 8 of 256 wake 256·(1 − (1 − 8/256)^32) = 163 experts, not all
    how = dict(layout=Layout(), batch=32, n_context=4096, precision=IN_FP8)
    awake = 256 * (1 - (1 - 8 / 256) ** 32)
    all_of_them, some, skewed = (
        decode_step_s("deepseek_r1", "b200_sxm", routing=r, bound=True, **how) for r in ("balanced", "random", "skewed")
    )
    assert round(awake) == 163
    assert some.experts_s / all_of_them.experts_s == pytest.approx(awake / 256, rel=0.01)
    assert skewed.experts_s < some.experts_s
    real = decode_step_s("deepseek_r1", "b200_sxm", routing="random", **how)
    even = decode_step_s("deepseek_r1", "b200_sxm", **how)
    assert some.experts_s < real.experts_s < even.experts_s
    spread = how | dict(layout=Layout(dp=8, ep=8), routing="random")
    # every rank equally busy: what is sent is what balanced routing sends
    sent = [
        decode_step_s("deepseek_r1", "b200_sxm", **spread | {"routing": r}).communication_s
        for r in ("balanced", "random")
    ]
    assert sent[0] == sent[1]


def test_what_is_neither_mixer_nor_ffn_is_in_the_step():
    # DeepSeek-V4 mixes four residual streams around every part: matrices in BF16 beside shared experts and router
    of = models.MODELS["deepseek_v4_flash"]
    step = decode_step_s(of, "gb200", layout=Layout(), batch=64, n_context=4096, precision=IN_FP8)
    rest = [(x, n) for r, n in shards.kinds(of).others for x in shards.rest_shards(r, of.config.d_model)]
    assert rest
    assert {float(x.count) for x, _ in rest} == {2.0}  # before the mixer and before the FFN: two launches
    mixing = sum(n * x.count * gemm_s(64, x.k, x.n, chip="gb200", fmt="bf16") for x, n in rest)
    inner = 0.0
    for ffn, n in shards.kinds(of).ffns:
        for x in shards.ffn_shards(ffn, of.config.d_model, Layout()):
            if x.of.kind and x.of.kind != "expert":
                fmt = "bf16" if x.of.kind in shards.IN_BF16 else "fp8"
                inner += n * gemm_s(64, x.k, x.n * x.count, chip="gb200", fmt=fmt)
    assert step.ffn_s == pytest.approx(inner + mixing)


def test_drafts_are_work_for_every_part():
    # with n tokens a sequence: scores of the indexer, recurrences and merging grow by n; the cache is read once
    chip, how = hardware.chip("gb200"), dict(batch=512, n_context=1000, precision=IN_FP8, bound=True)
    v32 = [decode_step_s("deepseek_v3_2", chip, layout=Layout(), n_draft=d, **how).attention_s for d in (0, 7)]
    one = attention.index(1, 999, n_heads=64, d_head=128, tokens_per_entry=1, n_batch=512, kv="fp8")
    for each, found in zip((1, 8), v32, strict=True):
        read = latent_decode_s(1000, n_heads=128 * each, n_batch=512, chip="gb200", fmt="fp8", bound=True)
        score = roofline.time_s(roofline.Work(one.flops * each, one.bytes), chip, IN_FP8.kv)
        assert found == pytest.approx(61 * (read + score))
    # on a chip that hardly multiplies, recurrences take as long as their arithmetic
    slow = replace(chip, bf16_flops_per_s=1e12, exp_per_s=1e9)
    found = shards.kinds(models.MODELS["nemotron_3_super"]).mixers
    (mixer, n), (full, n_full) = sorted(found, key=lambda x: not hasattr(x[0], "d_key"))
    state, on = recurrent.decode(mixer, 512), dict(n_kv_heads=full.n_kv_heads, d_head=full.d_head, n_batch=512)
    assert roofline.time_s(state, slow, BF16) > 2 * state.bytes / 8e12
    for each in (1, 2):
        step = decode_step_s("nemotron_3_super", slow, layout=Layout(), n_draft=each - 1, **how)
        read = attention_decode_s(1000, n_heads=full.n_heads * each, **on, chip=slow, fmt="fp8", bound=True)
        moving = roofline.Work(state.flops * each, state.bytes, state.exps * each)
        assert step.attention_s == pytest.approx(n * roofline.time_s(moving, slow, BF16) + n_full * read)
    llama = dict(layout=Layout(kvp=4, tp_attention=2, tp_ffn=8), batch=8, n_context=10**5, precision=IN_FP4)
    plain = dict(layout=Layout(tp_attention=8, tp_ffn=8), batch=8, n_context=10**5, precision=IN_FP4)
    net = exchange.Network(chip=chip)
    for each in (1, 4):
        divided, whole = (
            decode_step_s("qwen3_32b", "gb200", n_draft=each - 1, **x).communication_s for x in (llama, plain)
        )
        assert divided - whole == pytest.approx(64 * net.all_to_all_s(8 * each * 32 * (2 * 128 + 8), 4))
    grouped = decode_step_s(
        "qwen3_32b", "gb300", layout=Layout(), batch=8, n_context=10**5, precision=IN_BF16, n_draft=63
    )
    on = dict(n_kv_heads=8, d_head=128, n_batch=8, chip="gb300", fmt="bf16")
    least = attention_decode_s(10**5, n_heads=64 * 64, **on, bound=True)
    assert grouped.attention_s == pytest.approx(64 * max(attention_decode_s(10**5, n_heads=64, **on), least))
    assert least > attention_decode_s(10**5, n_heads=64, **on)


def test_a_draft_is_nearly_free_until_the_arithmetic_counts():
    how = dict(layout=Layout(tp_attention=8, tp_ffn=8), batch=1, n_context=131_072, precision=IN_FP4)
    steps = decode_step_s("llama_3_1_405b", "gb300", n_draft=[0, 1, 3, 63], **how)
    assert np.all(steps.step_s[:3] < 1.05 * steps.step_s[0]) and steps.attention_s[1] == steps.attention_s[0]
    latent = decode_step_s("deepseek_r1", "gb300", layout=Layout(tp_attention=8, ep=8), batch=8, n_context=10**5,
                           precision=IN_FP4, n_draft=3)  # fmt: skip
    on = dict(n_batch=8, chip="gb300", fmt="fp8")
    assert latent.attention_s == pytest.approx(61 * latent_decode_s(10**5, n_heads=16 * 4, **on))
    many = decode_step_s("llama_3_1_405b", "gb300", n_draft=[0, 3], **how | {"batch": 512, "n_context": 1000})
    assert many.step_s[1] > 1.2 * many.step_s[0]


def test_skew_makes_the_others_wait():
    how = dict(layout=Layout(dp=32, ep=32), batch=8192, n_context=4096, precision=IN_FP4)
    even, skewed = (decode_step_s("deepseek_r1", "gb300", routing=x, **how) for x in ("balanced", "skewed"))
    assert skewed.experts_s > 1.3 * even.experts_s and skewed.communication_s > even.communication_s
    assert skewed.attention_s == even.attention_s


def test_idle_replicas_cost_no_more():
    how = dict(layout=Layout(dp=8, ep=8), n_context=4096, precision=IN_FP4)
    few, eight = (decode_step_s("deepseek_r1", "gb300", batch=b, **how) for b in (2, 8))
    assert few.projections_s == eight.projections_s and few.experts_s < eight.experts_s


def test_overhead_is_added_and_not_to_the_bound():
    how = dict(layout=Layout(tp_attention=2, tp_ffn=2), batch=10, n_context=100, precision=IN_FP8)
    extra = Overhead(step_s=1e-3, layer_s=1e-6, sequence_s=1e-5, source="this test")
    plain, more = (decode_step_s("llama_3_1_70b", "gb200", **how, **x) for x in ({}, {"overhead": extra}))
    assert more.overhead_s == pytest.approx(1e-3 + 80e-6 + 10e-5) and more.step_s > plain.step_s
    assert decode_step_s("llama_3_1_70b", "gb200", **how, overhead=extra, bound=True).overhead_s == 0
    staged = decode_step_s("llama_3_1_70b", "gb200", **how | {"layout": Layout(pp=3)}, overhead=extra)
    assert staged.overhead_s == pytest.approx(1e-3 + 80e-6 + 4e-5)  # every layer, and the four that the fullest has
    with pytest.raises(ValueError, match="Overhead: layer_s"):
        Overhead(layer_s=np.nan, source="this test")


def test_experts_in_a_format_of_their_own():
    precision = Precision(weights="bf16", activations="bf16", kv="bf16", experts="mxfp4")
    how = dict(layout=Layout(), batch=64, n_context=4096)
    mixed = decode_step_s("gpt_oss_120b", "gb200", precision=precision, **how)
    plain = decode_step_s("gpt_oss_120b", "gb200", precision=IN_BF16, **how)
    assert mixed.projections_s == plain.projections_s and mixed.experts_s < 0.6 * plain.experts_s


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (dict(batch=0), "batch is 0"),
        (dict(batch=1.5), "batch is 1.5"),
        (dict(n_context=[1, -1]), "n_context"),
        (dict(n_context=True), "n_context is True"),
        (dict(n_draft=-1), "n_draft"),
        (dict(n_draft=0.5), "n_draft"),
        (dict(routing="even"), "allowed: balanced, random, skewed"),
        (dict(n_draft=1.5), "n_draft is 1.5"),
        (dict(precision=None), "precision is None"),
        (dict(precision="fp8"), r"precision is 'fp8'; allowed: Precision\(weights='fp8'"),
        (dict(overhead=1.0), "overhead is 1.0; allowed: an Overhead"),
        (dict(layout=Layout(pp=[1, 2]), batch=[1, 2, 3]), r"layout of shape \(2,\) and batch of shape \(3,\)"),
        (dict(batch=1e300), "batch is 1e\\+300"),
        (dict(hop_b=1), "hop_b is 1"),
        (dict(bound="no"), "bound is 'no'"),
        (dict(engine="vllm"), "engine is 'vllm'"),
        (dict(layout=Layout(tp_attention=3, tp_ffn=3)), "64 % 3"),
        (dict(layout=Layout(dp=[2, 2], tp_ffn=[2, 1])), "equal products"),
        (dict(layout="tp8"), "allowed: a Layout"),
        (dict(precision=Precision(weights="nvfp4", activations="bf16", kv="bf16")), "no calibrated kernel"),
        (dict(precision=Precision(weights="fp8", activations="fp8", kv="nvfp4")), "no calibrated trtllm nvfp4"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_is_refused(bad, says):
    how = dict(layout=Layout(), batch=1, n_context=100, precision=IN_FP8)
    with pytest.raises(ValueError, match=says):
        decode_step_s("llama_3_1_70b", "gb200", **how | bad)


def test_chips_nobody_measured_have_a_bound_or_another_s_numbers():
    how = dict(layout=Layout(tp_attention=8, tp_ffn=8), batch=8, n_context=4096, precision=IN_FP8)
    with pytest.raises(ValueError, match="allowed: bound=True"):
        decode_step_s("llama_3_1_70b", "mi300x", **how)
    assert 0 < decode_step_s("llama_3_1_70b", "mi300x", **how, bound=True).step_s < 0.01
    h20 = decode_step_s("llama_3_1_70b", "h20", **how, transfer_from="h200_sxm")
    h200 = decode_step_s("llama_3_1_70b", "h200_sxm", **how)
    assert h20.step_s > h200.step_s  # 4.0 against 4.8 TB/s
    with pytest.raises(ValueError, match="bound=True"):
        decode_step_s("llama_3_1_70b", "h20", **how, transfer_from="h200_sxm", bound=True)


def test_the_ends_of_a_pipeline_send_as_well():
    """Two layers and one: the first stage has the embedding's all-reduce, the last the head and the logits."""
    net, at = exchange.Network(chip=hardware.chip("gb200")), Layout(tp_attention=4, tp_ffn=4, pp=2)
    short = of_config("short", hidden_size=8192, intermediate_size=8192, num_hidden_layers=3, num_attention_heads=64,
                      num_key_value_heads=8, vocab_size=512_000)  # fmt: skip
    for vocabulary in (512, 512_000):
        of = replace(short, config=replace(short.config, n_vocab=vocabulary))
        step = decode_step_s(of, "gb200", layout=at, batch=2, n_context=100, precision=IN_BF16)
        embedding = exchange.embedding_s(1, 8192, layout=at, on=net)
        logits = exchange.logits_s(1, vocabulary, layout=at, on=net)
        hop = exchange.hand_over_s(1, 8192, layout=at, on=net)
        layers = step.projections_s + step.attention_s + step.ffn_s + step.communication_s - embedding - logits - hop
        first, last = 2 / 3 * layers + embedding, layers / 3 + step.head_s + logits
        assert (first > last) == (vocabulary == 512)
        assert step.step_s == pytest.approx(2 * (max(first, last) + hop), rel=1e-12)


def test_merging_is_as_wide_as_values_are():
    """MiMo's keys are 192 wide, its values 128."""
    net = exchange.Network(chip=hardware.chip("gb200"))
    of = models.MODELS["mimo_v2_flash"]
    wide, plain = (
        decode_step_s(of, "gb200", layout=x, batch=8, n_context=10**5, precision=IN_BF16).communication_s
        for x in (Layout(kvp=2, tp_attention=4, ep=8), Layout(tp_attention=8, ep=8))
    )
    merged = sum(n * net.all_to_all_s(8 * m.n_heads / 4 * (2 * 128 + 8), 2) for m, n in shards.kinds(of).mixers)
    assert wide - plain == pytest.approx(float(merged))


def test_hop_b_overlaps_the_sequences_of_one_micro_batch():
    of, at = models.MODELS["llama_3_1_70b"], Layout(kvp=2, dp=2, tp_ffn=4, pp=2)
    how = dict(layout=at, batch=16, n_context=10**5, precision=IN_FP8)
    one, two = (decode_step_s(of, "gb200", **how, hop_b=x) for x in (False, True))
    here = 16 / 2 / 2
    net = exchange.Network(chip=hardware.chip("gb200"))
    merge = exchange.merge_s(here, 64, 128, layout=at, on=net)
    mixing = one.attention_s / 80
    saved = mixing + merge - hop_b_s(mixing, merge, here)
    assert one.communication_s - two.communication_s == pytest.approx(80 * saved)
    assert hop_b_s(mixing, merge, here) != hop_b_s(mixing, merge, 16)


def test_chunks_and_windows_at_their_edges():
    how = dict(chip="gb300", layout=Layout(tp_attention=8, ep=8), batch=64, precision=IN_BF16, bound=True)
    full, next_one = (decode_step_s("llama_4_maverick", n_context=s, **how).attention_s for s in (8192, 8193))
    assert full > 2 * next_one  # the last token of a chunk sees all of it, the first itself
    again = decode_step_s("llama_4_maverick", n_context=16_384, **how).attention_s
    assert again > full
    short, window = (decode_step_s("deepseek_v4_pro", n_context=s, **how).attention_s for s in (8, 128))
    assert short < 0.5 * window


def test_logits_of_drafts_travel_too():
    how = dict(layout=Layout(tp_attention=4, tp_ffn=4), n_context=100, precision=IN_BF16)
    drafts = decode_step_s("llama_3_1_8b", "gb200", batch=4, n_draft=3, **how)
    assert drafts.communication_s == decode_step_s("llama_3_1_8b", "gb200", batch=16, **how).communication_s


def test_a_dense_ffn_over_more_gpus_than_sequences_sees_the_sequences():
    at, on = Layout(dp=8, tp_ffn=8), dict(chip="gb200", fmt="bf16")
    of = models.MODELS["llama_3_1_8b"]
    step = decode_step_s(of, "gb200", layout=at, batch=3, n_context=100, precision=IN_BF16)
    once = gemm_s(3, 4096, 2 * 14_336 / 8, **on) + gemm_s(3, 14_336 / 8, 4096, **on)
    assert step.ffn_s == pytest.approx(32 * once)


@pytest.mark.parametrize("empty", ["batch", "n_context", "n_draft"])
def test_nothing_is_no_size(empty):
    how = dict(layout=Layout(), batch=1, n_context=1, precision=IN_BF16)
    with pytest.raises(ValueError, match=f"decode_step_s: {empty} is empty; allowed: one number, or several"):
        decode_step_s("llama_3_1_8b", "gb300", **(how | {empty: []}))


def test_no_layouts_take_no_steps():
    none = Layout(tp_attention=[1, 2], tp_ffn=[1, 2])[:0]
    step = decode_step_s("llama_3_1_8b", "gb300", layout=none, batch=1, n_context=1, precision=IN_BF16)
    assert step.step_s.shape == (0,) and repr(step) == "DecodeStep: 0 steps of 0 ms"
