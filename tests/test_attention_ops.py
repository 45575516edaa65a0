"""Work of attention, recurrence, experts and whole layers: closed forms, limits, published counts."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign_lib.cost import ops, roofline
from codesign_lib.cost.ops import attention, layer, moe, recurrent
from codesign_lib.cost.roofline import Work
from codesign_lib.specs import models
from codesign_lib.specs.formats import Precision
from codesign_lib.specs.hf_config.fields import Recurrent

GQA = dict(n_heads=64, n_kv_heads=8, d_head=128)
V3 = dict(kv_rank=512, d_rope=64)
MAMBA = Recurrent(kind="mamba2", n_heads=128, n_key_heads=8, d_key=128, d_value=64, n_conv=10240, conv_tokens=4)
FAR = 10**9  # a context that makes the bytes of queries and outputs vanish


class TestPairs:
    def test_a_chunk_behind_a_prefix(self):
        assert attention.pairs(100, 1000) == 100 * 1000 + 100**2 / 2
        assert attention.pairs(100, 1000, causal=False) == 100 * 1100

    def test_chunks_add_up_to_the_whole_prompt(self):
        for how in ({}, {"window_tokens": 700}, {"chunk_tokens": 512}):
            starts = np.arange(0, 4000, 250)
            assert attention.pairs(250, starts, **how).sum() == pytest.approx(attention.pairs(4000, **how))

    @given(n=st.integers(1, 300), p=st.integers(0, 300), w=st.integers(1, 400))
    @settings(max_examples=60, deadline=None)
    def test_windows_against_a_sum_over_tokens(self, n, p, w):
        # a token at x sees x + ½ tokens on average of the interval it fills
        x = p + np.linspace(0, n, 2001)
        by_hand = np.trapezoid(np.minimum(x, w), x)
        assert attention.pairs(n, p, window_tokens=w) == pytest.approx(by_hand, rel=1e-3)

    def test_a_window_wider_than_everything_does_nothing(self):
        assert attention.pairs(64, 1000, window_tokens=5000) == attention.pairs(64, 1000)

    def test_refuses(self):
        with pytest.raises(ValueError, match="one of them, or neither"):
            attention.pairs(1, window_tokens=1, chunk_tokens=1)
        with pytest.raises(ValueError, match="causal=False takes no window"):
            attention.pairs(1, window_tokens=1, causal=False)
        with pytest.raises(ValueError, match=r"pairs: n_new is 0\.0"):
            attention.pairs(0)


class TestLadder:
    """Decode intensity in FLOP a byte, 16-bit cache (arXiv 2505.21487)."""

    def test_mha_and_gqa(self):
        for groups in (1, 4, 8, 16):
            work = attention.decode(FAR, n_heads=64, n_kv_heads=64 // groups, d_head=128)
            assert work.intensity == pytest.approx(groups, rel=1e-5)

    def test_mla_and_its_half(self):
        assert attention.latent_decode(FAR, n_heads=128, **V3).intensity == pytest.approx(241.8, abs=0.05)
        without_rope = attention.latent_decode(FAR, n_heads=128, kv_rank=512, d_rope=1e-9)
        assert without_rope.intensity == pytest.approx(2 * 128, rel=1e-5)
        # grouped latent attention: two latents of half the rank, each read by half the heads
        half = attention.latent_decode(FAR, n_heads=64, kv_rank=256, d_rope=1e-9)
        assert (2 * half).intensity == pytest.approx(128, rel=1e-5)

    def test_gta_ties_keys_to_values(self):
        # keys are the values but for a rotary half shared by all: (K + ½) d elements a token instead of 2 K d
        work, k, d = attention.decode(FAR, n_heads=64, n_kv_heads=8, d_head=128), 8, 128
        tied = Work(work.flops, work.bytes * (k + 0.5) * d / (2 * k * d))
        assert tied.intensity == pytest.approx(2 * 8 * 8 / 8.5, rel=1e-5)

    def test_fp8_doubles_it_whatever_the_sizes(self):
        for sizes in (dict(n_batch=1), dict(n_batch=64), dict(n_batch=8, window_tokens=10**7)):
            assert attention.decode(FAR, **GQA, **sizes, kv="fp8").intensity == pytest.approx(16, rel=1e-3)
        assert attention.decode(FAR, n_heads=8, n_kv_heads=1, d_head=256, kv="fp8").intensity == pytest.approx(16)


def test_decode_by_hand():
    work = attention.decode(1000, n_heads=8, n_kv_heads=2, d_head=64, d_value=32, n_batch=3, kv="fp8")
    assert work.flops == 2 * 3 * 8 * 1000 * 96
    assert work.bytes == 3 * (2 * 1000 * 96 * 1 + 8 * 96 * 2)
    assert work.exps == 3 * 8 * 1000


def test_softmax_does_not_know_the_head_size():
    one, two = (attention.prefill(4096, n_heads=64, n_kv_heads=8, d_head=d) for d in (64, 256))
    assert one.exps == two.exps and two.flops == 4 * one.flops


def test_the_article_counts_the_whole_square():
    b, q, k, n, d = 4, 64, 8, 8192, 128
    whole = attention.prefill(
        n, n_heads=q, n_kv_heads=k, d_head=d, n_batch=b, causal=False, kv="fp8", activations="fp8"
    )
    assert whole.flops == 4 * b * q * n**2 * d
    assert whole.bytes == 2 * b * k * d * n * (q / k + 1)
    causal = attention.prefill(n, n_heads=q, n_kv_heads=k, d_head=d, n_batch=b)
    assert causal.flops == whole.flops / 2


def test_prefill_of_one_token_is_decode():
    chunk = attention.prefill(1, 10**6, **GQA)
    one = attention.decode(10**6 + 1, **GQA)
    assert chunk.bytes == one.bytes
    assert chunk.flops == pytest.approx(one.flops, rel=1e-6)
    assert attention.prefill(1, **GQA).flops == attention.decode(1, **GQA).flops / 2  # a token sees half of itself


def test_a_window_leaves_the_far_prefix_unread():
    near, far = (attention.prefill(10, p, **GQA, window_tokens=100).bytes for p in (100, 10_000))
    assert near == far
    assert attention.prefill(10, 1030, **GQA, chunk_tokens=100).bytes == attention.prefill(10, 30, **GQA).bytes


def test_latent_crossover():
    sizes = dict(n_heads=16, kv_rank=512, d_nope=128, d_rope=64, d_value=128)
    limit = float(attention.latent_crossover(kv_rank=512, d_nope=128, d_value=128))
    assert limit == pytest.approx(170.67, abs=0.01)
    assert attention.latent_crossover(kv_rank=512, d_nope=192, d_value=256) == pytest.approx(398.2, abs=0.05)
    assert attention.latent_crossover(kv_rank=64, d_nope=128, d_value=128) == np.inf
    for n, absorbed_wins in ((limit * 0.99, True), (limit * 1.01, False)):
        absorbed, expanded = (attention.latent_prefill(n, 10**7, **sizes, absorbed=x) for x in (True, False))
        assert (absorbed.flops < expanded.flops) == absorbed_wins


def test_step3_attention_flops_of_deepseek_v3():
    # arXiv 2507.19427 counts 576 for the values too: 2·128·1152·8192·61
    ours = 61 * attention.latent_decode(8192, n_heads=128, **V3).flops
    assert ours == pytest.approx(1.3924e11, rel=1e-3)
    assert ours * 1152 / 1088 == pytest.approx(1.4737e11, rel=1e-3)
    assert 94 * attention.decode(8192, n_heads=64, n_kv_heads=4, d_head=128).flops == pytest.approx(2.52e10, rel=2e-3)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"attention\.decode: n_heads is 10; allowed: a multiple of n_kv_heads, 4"):
        attention.decode(100, n_heads=10, n_kv_heads=4, d_head=64)


class TestThirdRoof:
    def test_prefill_on_gb300_and_gb200(self):
        # 277 against 205 ms at the same BF16 peak and HBM
        work = attention.prefill(32_768, n_heads=128, n_kv_heads=128, d_head=192, d_value=128)
        roofs = {c: (roofline.compute_s(work, c, "fp8"), roofline.exp_s(work, c)) for c in ("gb200", "gb300")}
        assert roofs["gb200"][1] > roofs["gb200"][0] and roofs["gb300"][1] < roofs["gb300"][0]
        assert roofline.time_s(work, "gb200", "fp8") > 1.35 * roofline.time_s(work, "gb300", "fp8")

    def test_decode_is_not_bound_by_it(self):
        work = attention.decode(8192, **GQA, n_batch=64)
        assert roofline.time_s(work, "gb200", "bf16") == roofline.memory_s(work, "gb200")

    def test_added_and_scaled(self):
        work = Work(1.0, 2.0, 3.0) + 2 * Work(0.0, 0.0, 1.0)
        assert work.exps == 5 and (Work(1.0, 1.0) + Work(1.0, 1.0)).exps == 0

    def test_a_rate_that_is_not_public(self):
        work = Work(flops=1e12, bytes=1e9, exps=1e20)
        assert roofline.time_s(work, "mi300x", "bf16") == roofline.memory_s(
            Work(0, 1e12 * 5.3e12 / 1307.4e12), "mi300x"
        )
        with pytest.raises(ValueError, match="MI300X has no exp_per_s"):
            roofline.exp_s(work, "mi300x")


class TestBytesByHand:
    def test_prefill_with_values_of_another_size(self):
        w = attention.prefill(10, 30, n_heads=6, n_kv_heads=2, d_head=192, d_value=128, n_batch=3)
        assert w.bytes == 3 * 320 * 2 * (2 * 40 + 6 * 10)
        assert w.flops == 2 * 3 * 6 * (10 * 30 + 50) * 320

    def test_latent_decode(self):
        w = attention.latent_decode(100, n_heads=6, kv_rank=512, d_rope=64, n_batch=3, kv="fp8")
        assert w.bytes == 3 * (100 * 576 + 2 * 6 * 1088)

    def test_latent_prefill(self):
        sizes = dict(n_heads=6, kv_rank=512, d_nope=128, d_rope=64, d_value=96, n_batch=3, kv="fp8")
        absorbed = attention.latent_prefill(10, 30, **sizes, absorbed=True)
        assert absorbed.bytes == 3 * (40 * 576 + 2 * 6 * 10 * 1088)
        expanded = attention.latent_prefill(10, 30, **sizes)
        # queries and outputs; the prefix written and read, the new tokens' keys and values read; latents of the prefix
        heads = 10 * (192 + 96) + 30 * (192 + 96) + 40 * (192 + 96)
        assert expanded.bytes == 3 * (30 * 576 + 2 * 6 * heads)
        assert expanded.flops == 2 * 3 * 6 * ((10 * 30 + 50) * 288 + 512 * 30 * 224)
        new = attention.latent_prefill(10, **sizes)
        assert new.bytes == 3 * 2 * 6 * 10 * 2 * 288  # latents are the linear layer's

    def test_a_selection_reads_what_it_selects(self):
        sizes = dict(n_heads=6, kv_rank=512, d_nope=128, d_rope=64, d_value=128, window_tokens=2048)
        for absorbed in (True, False):
            near, far = (attention.latent_prefill(4, p, **sizes, absorbed=absorbed) for p in (8192, 10**6))
            assert near.bytes == far.bytes and near.flops == far.flops

    def test_an_indexer(self):
        w = attention.index(10, 90, n_heads=4, d_head=128, tokens_per_entry=4, n_batch=3, kv="fp8")
        assert w.flops == 2 * 3 * 4 * (10 * 90 + 50) * 128 / 4
        assert w.bytes == 3 * 128 * 100 / 4


class TestRecurrentPrefillByHand:
    def test_mamba2(self):
        w = recurrent.prefill(MAMBA, 1000, n_batch=3, chunk_tokens=100)
        per_token = 4 * 128 * 128 * 64 + 100 * (8 * 128 + 128 * 64) + 2 * 4 * 10240
        assert w.flops == 3 * 1000 * per_token
        assert w.bytes == 3 * (2 * 1000 * (10240 + 8192) + 2 * 4 * 2**20)

    @pytest.mark.parametrize("kind", ["gated_delta", "kimi_delta"])
    def test_delta_rule(self, kind):
        mixer = Recurrent(kind=kind, n_heads=16, n_key_heads=8, d_key=128, d_value=64)
        w = recurrent.prefill(mixer, 1000, n_batch=3, chunk_tokens=64)
        assert w.flops == pytest.approx(3 * 1000 * (6 * 16 * 128 * 64 + 64 * 16 * (3 * 128 + 2 * 64) + 64**2 * 16 / 3))
        assert recurrent.decode(mixer).flops == 7 * 16 * 128 * 64

    def test_mamba1_costs_a_token_what_decoding_does(self):
        mamba1 = Recurrent(kind="mamba1", n_heads=1, d_key=16, d_value=8192)
        assert recurrent.prefill(mamba1, 10).flops == 10 * recurrent.decode(mamba1).flops == 10 * 6 * 16 * 8192

    def test_a_chunk_is_no_longer_than_the_prompt(self):
        assert recurrent.prefill(MAMBA, 10).flops == recurrent.prefill(MAMBA, 10, chunk_tokens=10).flops


class TestRecurrent:
    def test_state_traffic(self):
        one, two = recurrent.decode(MAMBA, 1), recurrent.decode(MAMBA, 2)
        assert one.bytes == 2 * 4 * 2**20 + 2 * (2 * 3 * 10240 + 10240 + 8192)
        assert two.bytes == 2 * one.bytes and two.intensity == one.intensity < 1

    def test_the_delta_rule_reads_once_more(self):
        delta = Recurrent(kind="gated_delta", n_heads=128, n_key_heads=8, d_key=128, d_value=64)
        plain = Recurrent(kind="lightning", n_heads=128, n_key_heads=8, d_key=128, d_value=64)
        assert recurrent.decode(delta).flops - recurrent.decode(plain).flops == 2 * 128 * 128 * 64

    def test_prefill_is_linear_and_nears_compute_bound(self):
        work = recurrent.prefill(MAMBA, [4096, 8192])
        assert work.flops[1] == 2 * work.flops[0]
        assert work.intensity[1] > 100 > recurrent.decode(MAMBA).intensity

    def test_only_mamba1_needs_exponentials(self):
        mamba1 = Recurrent(kind="mamba1", n_heads=1, d_key=16, d_value=8192)
        assert recurrent.prefill(mamba1, 10).exps == 10 * 16 * 8192 and recurrent.prefill(MAMBA, 10).exps == 0

    def test_refuses(self):
        with pytest.raises(ValueError, match="kind is 'rwkv'; allowed: mamba1, mamba2"):
            recurrent.decode(Recurrent(kind="rwkv", n_heads=1, d_key=1, d_value=1))
        with pytest.raises(ValueError, match=r"n_batch is 0\.0"):
            recurrent.decode(MAMBA, 0)


class TestMoe:
    def test_distinct_experts(self):
        assert moe.woken(34, n_experts=256, n_chosen=8, routing="random") == pytest.approx(169, abs=0.5)
        assert moe.woken(3, n_experts=8, n_chosen=2, routing="random") == pytest.approx(4.625)
        assert moe.woken([1, 16, 32, 64], n_experts=256, n_chosen=8).tolist() == [8, 128, 256, 256]

    @given(m=st.integers(1, 20_000), skew=st.floats(1.01, 1.9))
    @settings(max_examples=60, deadline=None)
    def test_skew_wakes_no_more_than_balance(self, m, skew):
        how = dict(n_experts=256, n_chosen=8)
        assert 8 <= moe.woken(m, **how, routing="skewed", skew=skew) <= moe.woken(m, **how)

    def test_skew_against_draws(self):
        rng = np.random.default_rng(0)
        m, e, c, a = 512, 256, 8, 1.2
        high = 0.8 * m
        x = ((high ** (1 - a) - 1) * rng.random((4000, e)) + 1) ** (1 / (1 - a))
        load = x / x.sum(axis=1, keepdims=True) * m * c
        assert moe.woken(m, n_experts=e, n_chosen=c, routing="skewed") == pytest.approx(
            (load >= 0.5).sum(axis=1).mean(), rel=0.05
        )
        for ranks, within in ((2, 0.03), (8, 0.05), (32, 0.1), (64, 0.2), (256, 0.2)):
            busiest = load.reshape(4000, ranks, e // ranks).sum(axis=2).max(axis=1).mean() / (m * c / ranks)
            ours = moe.busiest_share(m, n_experts=e, n_chosen=c, n_ranks=ranks, routing="skewed")
            assert ours == pytest.approx(min(busiest, ranks), rel=within)

    def test_few_skewed_tokens_against_draws(self):
        # up to one pair an expert the law is another; pairs that rounding loses go to experts of their own
        rng = np.random.default_rng(1)
        e, c, a = 256, 8, 1.2
        for m in (8, 16, 32):
            x = ((2.0 ** (1 - a) - 0.01 ** (1 - a)) * rng.random((4000, e)) + 0.01 ** (1 - a)) ** (1 / (1 - a))
            load = np.round(x / x.sum(axis=1, keepdims=True) * m * c)
            awake = (load > 0).sum(axis=1) + np.maximum(m * c - load.sum(axis=1), 0)
            ours = moe.woken(m, n_experts=e, n_chosen=c, routing="skewed")
            assert ours == pytest.approx(awake.mean(), rel=0.04)

    @pytest.mark.parametrize(("m", "low", "high"), [(16, 0.01, 2.0), (512, 1.0, 0.8 * 512)])
    def test_a_rank_of_one_expert_has_what_the_busiest_expert_has(self, m, low, high):
        e, a = 256, 1.2
        x = np.geomspace(low, high, 100_001)
        chance = np.concatenate([[0.0], np.cumsum((x[1:] - x[:-1]) * (x[1:] ** -a + x[:-1] ** -a) / 2)])
        load = np.concatenate([[0.0], np.cumsum((x[1:] - x[:-1]) * (x[1:] ** (1 - a) + x[:-1] ** (1 - a)) / 2)])
        largest = np.interp(e / (e + 1), chance / chance[-1], x)
        ours = moe.busiest_share(m, n_experts=e, n_chosen=8, n_ranks=e, routing="skewed")
        assert ours == pytest.approx(largest / (load[-1] / chance[-1]), rel=1e-3)

    def test_the_share_falls_and_experts_awake_jump_where_the_law_changes(self):
        sizes = dict(n_experts=256, n_chosen=8, routing="skewed")
        assert moe.busiest_share([32, 33], n_ranks=32, **sizes).round(2).tolist() == [2.55, 1.87]
        assert moe.woken([32, 33], **sizes).round().tolist() == [117, 164]

    def test_a_token_counts_once_an_expert(self):
        # the busiest rank never has more than every token on each of its experts
        how = dict(n_experts=8, n_chosen=4, n_ranks=8, routing="skewed")
        assert moe.busiest_share(4096, **how) == 2

    def test_balance_and_one_rank(self):
        assert moe.busiest_share(99, n_experts=256, n_chosen=8, n_ranks=[1, 64]).tolist() == [1, 1]
        assert moe.busiest_share(99, n_experts=256, n_chosen=8, n_ranks=1, routing="skewed") == 1

    def test_byte_parity_of_latent_experts(self):
        # arXiv 2601.18089: 6 experts of 4096 read as many bytes as 24 of 1024
        one = moe.experts(1, 6, d_model=4096, d_expert=2688)
        four = moe.experts(1, 24, d_model=1024, d_expert=2688)
        assert one.flops == 4 * four.flops
        assert one.bytes - 4 * (4096 + 2688) == four.bytes - 4 * (1024 + 2688)

    def test_gates_are_a_third_matrix(self):
        two, three = (moe.experts(10, 5, d_model=64, d_expert=32, gated=g) for g in (False, True))
        assert three.flops == 1.5 * two.flops == 2 * 3 * 64 * 32 * 10

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: moe.woken(1, n_experts=8, n_chosen=9), "n_chosen is 9; allowed: at most n_experts, 8"),
            (lambda: moe.woken(1, n_experts=8, n_chosen=2, skew="1.2"), "skew is '1.2'; allowed: real numbers"),
            (lambda: moe.woken([1, 2], n_experts=[8, 8, 8], n_chosen=2), "n_experts of shape .3"),
            (lambda: attention.pairs(1, causal="no"), "causal is 'no'; allowed: True, False"),
            (lambda: attention.index([1, 2], n_heads=[1, 2, 3], d_head=4), "attention.index: n_new of shape .2"),
            (lambda: recurrent.prefill(MAMBA, [1, 2], n_batch=[1, 2, 3]), "n_batch of shape .3"),
            (lambda: moe.woken(1, n_experts=8, n_chosen=2, routing="fair"), "allowed: balanced, random, skewed"),
            (lambda: moe.woken(1, n_experts=8, n_chosen=2, routing="skewed", skew=1), "skew is 1; allowed"),
            (
                lambda: moe.busiest_share([1, 2], n_experts=8, n_chosen=2, n_ranks=[1, 2, 4]),
                "busiest_share: m of shape .2,. and n_ranks of shape .3,. do not broadcast",
            ),
            (
                lambda: attention.pairs([1, 2], window_tokens=[1, 2, 3]),
                "pairs: n_new of shape .2,. and window_tokens of shape .3",
            ),
            (lambda: attention.pairs([1, 2], chunk_tokens=[1, 2, 3]), "pairs: n_new of shape .2,. and chunk_tokens of"),
            (
                lambda: attention.latent_prefill([1, 2], n_heads=[1, 2, 3], kv_rank=2, d_nope=2, d_rope=2, d_value=2),
                "latent_prefill: n_new of shape .2,. and n_heads of shape .3",
            ),
            (lambda: moe.busiest_share(1, n_experts=8, n_chosen=2, n_ranks=3), "n_ranks is 3; allowed: a divisor"),
            (lambda: moe.busiest_share(1, n_experts=8, n_chosen=2, n_ranks=2, routing="random"), "balanced, skewed"),
        ],
    )
    def test_refuses(self, call, message):
        with pytest.raises(ValueError, match=message):
            call()


class TestLayer:
    @pytest.mark.parametrize("name", models.MODELS)
    def test_every_layer_of_every_model(self, name):
        config = models.MODELS[name].config
        for one in dict.fromkeys(config.layers):
            for parts in (
                layer.decode(one, config.d_model, [100, 10_000, 200_000], n_batch=4),
                layer.prefill(one, config.d_model, [100, 5000, 5000], [0, 0, 200_000]),
            ):
                total = sum(parts.values(), start=layer.NOTHING)
                assert (total.flops > 0).all() and (total.bytes > 0).all()
                assert np.all(np.diff(np.broadcast_to(total.bytes, 3)) >= 0)

    def test_decode_reads_the_weights_and_the_cache_that_the_model_says(self):
        for name in ("llama_3_1_70b", "gemma_3_27b", "qwen3_32b"):
            m = models.MODELS[name]
            parts = layer.model_decode(m, 50_000)
            read = sum(float(w.bytes) for w in parts.values())
            expected = 2 * m.n_active_params + float(models.kv_bytes(m, 50_000, "bf16"))
            assert read == pytest.approx(expected, rel=3e-3)

    def test_flops_a_token_are_twice_the_active_parameters(self):
        m = models.MODELS["deepseek_r1"]
        parts = layer.model_decode(m, 1)
        flops = sum(float(w.flops) for part, w in parts.items() if part != "mixing")
        assert flops == pytest.approx(2 * m.n_active_params, rel=1e-3)

    def test_experts_read_what_the_batch_wakes(self):
        m = models.MODELS["deepseek_r1"]
        one, d = m.config.layers[-1], m.config.d_model
        nvfp4 = Precision(weights="nvfp4", activations="nvfp4", kv="fp8")
        for b in (1, 34):
            read = layer.decode(one, d, 100, n_batch=b, precision=nvfp4)["expert"].bytes
            awake = moe.woken(b, n_experts=256, n_chosen=8, routing="random")
            assert read == pytest.approx(float(awake) * 3 * 7168 * 2048 * 0.5625, rel=0.01)

    def test_windows_stop_growing_and_full_layers_do_not(self):
        config = models.MODELS["gemma_3_27b"].config
        sliding, full = config.layers[0], config.layers[5]
        near, far = (
            [float(layer.decode(x, config.d_model, s)["mixing"].bytes) for x in (sliding, full)] for s in (2048, 65536)
        )
        assert near[0] == far[0] and far[1] > 30 * near[1]

    def test_chunked_attention_starts_again_at_every_chunk(self):
        config = models.MODELS["llama_4_maverick"].config
        one = next(x for x in config.layers if x.mixers[0].kind == "chunked")
        size = one.mixers[0].window_tokens
        parts = layer.decode(one, config.d_model, [1, size, size + 1])["mixing"]
        assert parts.exps[0] == parts.exps[2] == one.mixers[0].n_heads and parts.exps[1] == size * parts.exps[0]

    def test_latent_prefill_absorbs_only_short_chunks(self):
        config = models.MODELS["deepseek_r1"].config
        how = dict(n_heads=128, d_nope=128, d_value=128, **V3)
        for n, absorbed in ((100, True), (200, False)):
            ours = layer.prefill(config.layers[0], config.d_model, n, 10**5)["mixing"]
            assert ours.flops == attention.latent_prefill(n, 10**5, **how, absorbed=absorbed).flops

    @pytest.mark.parametrize("name", ["deepseek_v3_2", "glm_5"])
    def test_sparse_latent_prefill_is_absorbed_where_that_is_cheaper(self, name):
        config = models.MODELS[name].config
        one, d = config.layers[-1], config.d_model
        mixer = one.mixers[0]
        sizes = dict(n_heads=mixer.n_heads, kv_rank=mixer.kv_rank, d_rope=mixer.d_rope, d_nope=mixer.d_nope,
                     d_value=mixer.d_value, window_tokens=mixer.n_selected_tokens)  # fmt: skip
        for n, p in ((1, 131_071), (200, 131_072), (4096, 131_072), (8192, 0)):
            ours = layer.prefill(one, d, n, p)["mixing"]
            forms = [attention.latent_prefill(n, p, **sizes, absorbed=x) for x in (True, False)]
            assert ours.flops == min(w.flops for w in forms)
        chunk = layer.prefill(one, d, 200, 131_072)["mixing"]
        assert chunk.flops == pytest.approx(2 * mixer.n_heads * 200 * 2048 * 1088, rel=1e-3)
        one_token, decoded = layer.prefill(one, d, 1, 131_071)["mixing"], layer.decode(one, d, 131_072)["mixing"]
        assert one_token.bytes == pytest.approx(decoded.bytes, rel=1e-3)

    def test_compressed_attention_sees_the_entries_before_it(self):
        config = models.MODELS["deepseek_v4_flash"].config
        one = next(x for x in config.layers if x.mixers[0].n_selected_tokens)
        a = one.mixers[0]
        n = np.arange(1, 8193)
        seen = np.minimum(n, a.window_tokens) + np.minimum(n / a.tokens_per_entry, a.n_selected_tokens)
        ours = layer.prefill(one, config.d_model, 8192)["mixing"]
        assert ours.exps == pytest.approx(a.n_heads * seen.sum(), rel=1e-3)
        assert ours.flops == 4 * a.d_head * ours.exps
        kept = 8192 + min(8192 / a.tokens_per_entry, 8192 * a.n_selected_tokens)
        assert ours.bytes == a.d_head * 2 * (kept + 2 * a.n_heads * 8192)

    def test_a_token_reads_the_entries_that_it_selects_and_no_others(self):
        config = models.MODELS["deepseek_v4_flash"].config
        one = next(x for x in config.layers if x.mixers[0].n_selected_tokens)
        a = one.mixers[0]
        ours = layer.prefill(one, config.d_model, 1, 10**6)["mixing"]
        kept = a.window_tokens + 1 + a.n_selected_tokens
        assert a.n_selected_tokens < 10**6 / a.tokens_per_entry
        assert ours.bytes == a.d_head * 2 * (kept + 2 * a.n_heads)

    def test_indexers_score_entries_and_mixers_every_sequence(self):
        config = models.MODELS["deepseek_v4_flash"].config
        one = next(x for x in config.layers if x.mixers and getattr(x.mixers[0], "indexer", None))
        x = one.mixers[0].indexer
        how = dict(n_heads=x.n_heads, d_head=x.d_head, tokens_per_entry=x.tokens_per_entry, n_batch=3)
        ours = layer.prefill(one, config.d_model, 100, 4096, n_batch=3)["indexing"]
        assert x.tokens_per_entry > 1 and ours.bytes == attention.index(100, 4096, **how).bytes
        config = models.MODELS["nemotron_3_super"].config
        one = next(x for x in config.layers if x.mixers and isinstance(x.mixers[0], Recurrent))
        single, three = (layer.prefill(one, config.d_model, 100, n_batch=b)["mixing"] for b in (1, 3))
        assert three.flops == 3 * single.flops and three.bytes == 3 * single.bytes

    def test_experts_in_a_latent_size_read_it(self):
        config = models.MODELS["nemotron_3_super"].config
        one = next(x for x in config.layers if any(f.n_experts for f in x.ffns))
        f = next(f for f in one.ffns if f.n_experts)
        assert f.d_latent == 1024 < config.d_model
        work = layer.decode(one, config.d_model, 10)["expert"]
        assert work.flops == 2 * 2 * f.n_active_experts * f.d_latent * f.d_expert

    def test_idle_experts_take_tokens_and_compute_nothing(self):
        config = models.MODELS["qwen3_235b_a22b"].config
        one = next(x for x in config.layers if x.ffns[0].n_experts)
        f = one.ffns[0]
        lazy = dataclasses.replace(one, ffns=(dataclasses.replace(f, n_idle_experts=f.n_experts),))
        busy, half = (layer.decode(x, config.d_model, 10, n_batch=8)["expert"] for x in (one, lazy))
        assert half.flops == busy.flops / 2
        awake = moe.woken(8, n_experts=2 * f.n_experts, n_chosen=f.n_active_experts, routing="random") / 2
        pairs = 8 * f.n_active_experts / 2
        expected = moe.experts(pairs, awake, d_model=config.d_model, d_expert=f.d_expert, gated=f.gated)
        assert half.bytes == pytest.approx(expected.bytes)

    def test_an_indexer_reads_everything_and_attention_what_it_selects(self):
        config = models.MODELS["deepseek_v3_2"].config
        parts = layer.decode(config.layers[-1], config.d_model, [10_000, 100_000])
        assert parts["mixing"].bytes[0] == parts["mixing"].bytes[1]
        assert parts["indexing"].bytes[1] == pytest.approx(10 * parts["indexing"].bytes[0])


def test_shapes_broadcast():
    work = attention.decode(np.arange(1, 4)[:, None], n_heads=8, n_kv_heads=8, d_head=64, n_batch=np.arange(1, 6))
    assert work.flops.shape == work.bytes.shape == (3, 5)
    assert ops.linear(1, 1, 1, inputs="bf16", weights="bf16", outputs="bf16").exps == 0
