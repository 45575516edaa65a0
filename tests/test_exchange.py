"""What GPUs send each other: bytes by hand, the published kernels, limits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign_lib.cost import collectives
from codesign_lib.serving import exchange, shards
from codesign_lib.serving.exchange import Network
from codesign_lib.serving.layout import Layout, layouts
from codesign_lib.specs import hardware, models
from codesign_lib.specs.formats import BF16, NVFP4

GB200, H200 = (Network(chip=hardware.chip(x)) for x in ("gb200", "h200_sxm"))
BOUND = Network(chip=hardware.chip("gb200"), bound=True)
(MOE,) = (f for f, _ in shards.kinds(models.MODELS["deepseek_r1"]).ffns if f.n_experts)
ROUTED = dict(ffn=MOE, d_model=7168, activations=BF16, routing="balanced")


def test_one_gpu_sends_nothing():
    alone = dict(layout=Layout(), on=GB200)
    assert exchange.dense_s(64, 7168, n_ranks=1, **alone) == 0 and exchange.logits_s(64, 129_280, **alone) == 0
    assert exchange.embedding_s(64, 7168, **alone) == 0
    assert exchange.merge_s(8, 128, 512, **alone) == 0 and exchange.hand_over_s(8, 7168, **alone) == 0
    assert exchange.experts_s(64, **ROUTED, **alone) == 0


@pytest.mark.parametrize("ep", [8, 16, 32, 64])
def test_dispatch_and_combine_are_the_published_kernels(ep):
    tokens = np.array([1, 32, 128, 512, 2048])
    ours = exchange.dispatch_combine_s(tokens * ep, **ROUTED, layout=Layout(dp=ep, ep=ep), on=GB200)
    theirs = sum(collectives.moe_all_to_all_s(tokens, phase=p, ep=ep) for p in ("dispatch", "combine"))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    in_fp4 = exchange.dispatch_combine_s(
        tokens * ep, **ROUTED | {"activations": NVFP4}, layout=Layout(dp=ep, ep=ep), on=GB200
    )
    fewer = collectives.moe_all_to_all_s(tokens, phase="dispatch", ep=ep, bytes_per_element=0.5625)
    np.testing.assert_allclose(in_fp4, fewer + collectives.moe_all_to_all_s(tokens, phase="combine", ep=ep), rtol=1e-12)


def test_between_published_numbers_of_ranks():
    at = Layout(dp=[2, 4, 8, 12, 16, 24, 32, 64, 72], ep=[2, 4, 8, 12, 16, 24, 32, 64, 72])
    for per_rank in (1, 2048):
        found = exchange.dispatch_combine_s(per_rank * at.n_stage, **ROUTED, layout=at, on=GB200)
        assert np.all(np.diff(found) >= 0) and found[-1] < 1.2 * found[2] + 1e-3
    b200 = exchange.dispatch_combine_s(
        8, **ROUTED, layout=Layout(dp=8, ep=8), on=Network(chip=hardware.chip("b200_sxm"))
    )
    assert b200 == exchange.dispatch_combine_s(8, **ROUTED, layout=Layout(dp=8, ep=8), on=GB200)


def test_all_to_all_does_not_grow_with_ranks_and_all_gather_does():
    # marin#7012: all ranks together send T·k·h·b·(1 − 1/EP), against EP·T·h·b·(1 − 1/EP)
    ranks, tokens = np.array([16, 32, 64]), 64 * 1024
    at, link = Layout(dp=ranks, ep=ranks), GB200.chip.link_bytes_per_s
    sent = exchange.dispatch_combine_s(tokens, **ROUTED, layout=at, on=BOUND) * ranks * link
    chosen = ranks * (1 - (1 - 1 / ranks) ** 8)  # GPUs that eight experts at random are on
    np.testing.assert_allclose(sent, 2 * tokens * chosen * 7168 * 2 * (1 - 1 / ranks), rtol=1e-12)
    assert np.all(sent <= 2 * tokens * 8 * 7168 * 2)
    gathered = exchange.dense_s(tokens, 7168, layout=at, n_ranks=ranks, on=BOUND) * ranks * link
    np.testing.assert_allclose(gathered, 2 * tokens * 7168 * 2 * (ranks - 1), rtol=1e-12)
    assert np.all(
        exchange.experts_s(tokens, **ROUTED, layout=at, on=BOUND) * ranks * link <= np.minimum(sent, gathered)
    )


def test_tensor_parallel_experts_end_in_an_all_reduce():
    at = Layout(tp_attention=8, ep=8)
    assert exchange.experts_s(64, **ROUTED, layout=at, on=H200) == collectives.all_reduce_s(
        64 * 7168 * 2, n_ranks=8, chip="h200_sxm", engine="trtllm"
    )
    assert exchange.dense_s(64, 7168, layout=at, n_ranks=8, on=GB200) == exchange.experts_s(
        64, **ROUTED, layout=Layout(tp_attention=8, tp_ffn=8), on=GB200
    )


def test_experts_take_the_faster_way():
    few, many = (Layout(dp=n, ep=n) for n in (2, 64))
    for at, tokens, way in ((few, 2, "gather"), (few, 10**5, "gather"), (many, 64 * 1024, "dispatch")):
        gathered = exchange.dense_s(tokens, 7168, layout=at, n_ranks=at.n_stage, on=GB200)
        sent = exchange.dispatch_combine_s(tokens, **ROUTED, layout=at, on=GB200)
        assert (gathered < sent) == (way == "gather")
        assert exchange.experts_s(tokens, **ROUTED, layout=at, on=GB200) == min(gathered, sent)


def test_after_dispatch_replicas_gather_their_tokens_and_shared_experts_are_reduced():
    at, tokens = Layout(tp_attention=2, dp=32, ep=64), 64 * 1024
    sent = exchange.dispatch_combine_s(tokens, **ROUTED, layout=at, on=GB200)
    own = tokens / 32 * 7168 * 2
    reduced = collectives.all_reduce_s(own, n_ranks=2, chip="gb200", engine="trtllm")
    assert exchange.experts_s(tokens, **ROUTED, layout=at, on=GB200) == pytest.approx(sent + reduced, rel=1e-12)
    alone = ROUTED | {"ffn": replace(MOE, d_shared=0)}
    gathered = collectives.all_gather_s(own, n_ranks=2, chip="gb200")
    assert exchange.experts_s(tokens, **alone, layout=at, on=GB200) == pytest.approx(sent + gathered, rel=1e-12)


def test_what_is_dispatched_by_hand():
    # each of the copies of a token goes to all GPUs that divide the expert's width, in the size experts work in
    link = GB200.chip.link_bytes_per_s
    (latent,) = (f for f, _ in shards.kinds(models.MODELS["nemotron_3_super"]).ffns if f.n_experts)
    assert latent.d_latent == 1024 and latent.n_active_experts == 22
    for ffn, d_model, width, chosen in ((MOE, 7168, 7168, 8), (latent, 4096, 1024, 22)):
        for tp in (1, 4):
            at, how = Layout(dp=16, tp_ffn=tp, ep=16 // tp), dict(activations=BF16, routing="balanced")
            copies = 16 // tp * (1 - (1 - tp / 16) ** chosen) * tp
            sent = exchange.dispatch_combine_s(1600, ffn, d_model, layout=at, **how, on=BOUND)
            assert sent * link == pytest.approx(2 * 100 * copies * width * 2 * 15 / 16)


def test_dense_tokens_that_come_back_are_not_reduced_twice():
    # shared experts over more GPUs than a replica: routed outputs are gathered in the replica, shared ones beside
    at, tokens = Layout(tp_attention=2, dp=8, tp_ffn=4, ep=4), 16 * 1024
    how = dict(layout=at, on=BOUND)
    sent = exchange.dispatch_combine_s(tokens, **ROUTED, **how)
    gathered = BOUND.all_gather_s(tokens / 8 * 7168 * 2, 2)
    shared = exchange.dense_s(tokens, 7168, n_ranks=4, **how)
    all_of_them = exchange.dense_s(tokens, 7168, n_ranks=16, **how)
    assert exchange.experts_s(tokens, **ROUTED, **how) == pytest.approx(min(sent + gathered + shared, all_of_them))
    # in few tokens the way back decides nothing, so the two ways are told apart where dispatch is cheap
    one = ROUTED | {"ffn": replace(MOE, n_active_experts=1)}
    cheap = exchange.dispatch_combine_s(tokens, **one, **how) + gathered + shared
    assert cheap < all_of_them and exchange.experts_s(tokens, **one, **how) == pytest.approx(cheap)


def test_a_dense_ffn_over_replicas_by_hand():
    at, size = Layout(tp_attention=2, dp=4, tp_ffn=8), 7168 * 2
    expected = (
        collectives.all_gather_s(64 * size, n_ranks=4, chip="gb200")
        + collectives.reduce_scatter_s(64 * size, n_ranks=8, chip="gb200")
        + collectives.all_gather_s(16 * size, n_ranks=2, chip="gb200")
    )
    assert exchange.dense_s(64, 7168, layout=at, n_ranks=8, on=GB200) == pytest.approx(expected, rel=1e-12)
    # groups of four GPUs hold half of the tokens
    half = Layout(dp=8, tp_ffn=4, ep=2)
    expected = sum(
        f(32 * size, n_ranks=4, chip="gb200") for f in (collectives.all_gather_s, collectives.reduce_scatter_s)
    )
    assert exchange.dense_s(64, 7168, layout=half, n_ranks=4, on=GB200) == pytest.approx(expected, rel=1e-12)


def test_merging_by_hand():
    # partial outputs of 16 heads of 128 in BF16 and 8 bytes of softmax each, in all-to-all over 8
    at = Layout(kvp=8, tp_attention=8, tp_ffn=64)
    assert exchange.merge_s(8, 16, 128, layout=at, on=GB200) == collectives.all_to_all_s(
        8 * 16 * (2 * 128 + 8), n_ranks=8, chip="gb200"
    )


def test_ends_and_hand_over_by_hand():
    at = Layout(tp_attention=4, tp_ffn=4, pp=3)
    assert exchange.embedding_s(10, 8192, layout=at, on=GB200) == collectives.all_reduce_s(
        10 * 8192 * 2, n_ranks=4, chip="gb200", engine="trtllm"
    )
    assert exchange.logits_s(10, 128_256, layout=at, on=GB200) == collectives.all_gather_s(
        10 * 128_256 * 2, n_ranks=4, chip="gb200"
    )
    one = collectives.point_to_point_s(10 * 8192 * 2, chip="gb200")
    assert exchange.hand_over_s(10, 8192, layout=at, on=GB200) == pytest.approx(2 * one)
    assert exchange.hand_over_s(10, 8192, layout=at, on=BOUND) == pytest.approx(2 * 10 * 8192 * 2 / 900e9)
    # a domain of H200 has 8 GPUs: two stages of four inside, the third beyond one NIC each
    inside = collectives.point_to_point_s(10 * 8192 * 2, chip="h200_sxm")
    assert exchange.hand_over_s(10, 8192, layout=at, on=H200) == pytest.approx(inside + 10 * 8192 * 2 / 50e9)
    both = Layout(tp_attention=4, tp_ffn=4, pp=[1, 2, 3])
    found = exchange.hand_over_s(10, 8192, layout=both, on=H200)
    assert found[0] == 0 and found[1] == inside and found[2] == exchange.hand_over_s(10, 8192, layout=at, on=H200)


@given(n=st.integers(1, 20), pp=st.integers(1, 12), domain=st.sampled_from([4, 8, 72]))
def test_whole_stages_are_put_into_domains_one_after_the_other(n, pp, domain):
    chip = replace(GB200.chip, n_scale_up=domain)
    free, leaves = domain, 0
    for stage in range(pp):
        if stage and free < n:  # the stage does not fit behind the last one: it begins a domain
            free, leaves = domain, leaves + 1
        free -= n
    assert (pp - 1) // exchange.domain_stages(Layout(dp=n, tp_ffn=n, pp=[pp]), chip) == leaves
    took = exchange.hand_over_s(1, 1000, layout=Layout(dp=n, tp_ffn=n, pp=pp), on=replace(BOUND, chip=chip))
    near, far = 2000 / chip.link_peer_bytes_per_s, 2000 / chip.scale_out_bytes_per_s
    assert took == pytest.approx((pp - 1 - leaves) * near + leaves * far)


def test_skewed_routing_sends_more_to_the_busiest():
    at = Layout(dp=32, ep=32)
    even, skewed = (
        exchange.dispatch_combine_s(32 * 2048, **ROUTED | {"routing": r}, layout=at, on=GB200)
        for r in ("balanced", "skewed")
    )
    assert 1.5 * even < skewed < 5 * even


def test_between_the_trays_of_a_rack():
    ranks = np.array([2, 4, 8, 64])
    gb300 = collectives.all_reduce_s(2**20, n_ranks=ranks, chip="gb300", engine="trtllm")
    own = collectives.all_reduce_s(2**20, n_ranks=ranks[:2], chip="gb200", engine="trtllm")
    np.testing.assert_array_equal(GB200.all_reduce_s(2**20, ranks), [*own, *gb300[2:]])
    in_sglang = Network(chip=hardware.chip("gb200"), engine="sglang").all_reduce_s(2**20, ranks)
    np.testing.assert_array_equal(
        in_sglang, collectives.all_reduce_s(2**20, n_ranks=ranks, chip="gb200", engine="sglang")
    )


def test_numbers_of_another_chip():
    faster = Network(chip=replace(GB200.chip, link_bytes_per_s=1.8e12, name="x"), transfer_from="gb200")
    at, many = Layout(dp=16, ep=16), 16 * 4096
    slow, fast = (exchange.dispatch_combine_s(many, **ROUTED, layout=at, on=x) for x in (GB200, faster))
    assert 0.5 * slow < fast < 0.6 * slow
    assert faster.all_reduce_s(2**28, 8) < GB200.all_reduce_s(2**28, 8)


def test_beyond_the_domain_the_nics_are_added():
    inside, beyond = (H200.all_reduce_s(2**20, n) for n in (8, 16))
    assert beyond == pytest.approx(
        inside + collectives.bound_s("all_reduce", 2**20, n_ranks=16, chip="h200_sxm"), rel=1e-12
    )
    both = H200.all_reduce_s(2**20, [8, 16])
    assert both.tolist() == [inside, beyond]


@pytest.mark.parametrize("chip", ["gb200", "gb300", "h200_sxm", "b200_sxm"])
@pytest.mark.parametrize("routing", ["balanced", "skewed"])
@given(tokens=st.integers(1, 100_000), n_gpus=st.sampled_from([2, 8, 16, 64]))
def test_never_below_the_bound(chip, routing, tokens, n_gpus):
    at = layouts(n_gpus, "deepseek_r1")
    real, bound = (Network(chip=hardware.chip(chip), bound=x) for x in (False, True))
    for call in (
        lambda on: exchange.experts_s(tokens, **ROUTED | {"routing": routing}, layout=at, on=on),
        lambda on: exchange.dense_s(tokens, 7168, layout=at, n_ranks=at.n_dense_ranks, on=on),
        lambda on: exchange.merge_s(tokens, 128 // at.tp_attention, 512, layout=at, on=on),
        lambda on: exchange.embedding_s(tokens, 7168, layout=at, on=on),
        lambda on: exchange.logits_s(tokens, 129_280, layout=at, on=on),
    ):
        assert np.all(call(real) >= call(bound) * (1 - 1e-12)) and np.all(call(bound) >= 0)


def test_one_gpu_in_an_array_dispatches_nothing():
    found = exchange.dispatch_combine_s(64, layout=Layout(dp=[1, 8], ep=[1, 8]), on=GB200, **ROUTED)
    assert found[0] == 0 < found[1]


def test_tokens_that_replicas_do_not_divide():
    # five tokens on two replicas: three in one
    at, size = Layout(tp_attention=4, dp=2, tp_ffn=4, ep=2), 7168 * 2
    assert exchange.dense_s(5, 7168, layout=at, n_ranks=4, on=GB200) == GB200.all_reduce_s(3 * size, 4)
    at = Layout(tp_attention=4, dp=2, tp_ffn=8)
    expected = GB200.all_gather_s(5 * size, 2) + GB200.reduce_scatter_s(5 * size, 8) + GB200.all_gather_s(3 * size, 4)
    assert exchange.dense_s(5, 7168, layout=at, n_ranks=8, on=GB200) == pytest.approx(expected, rel=1e-12)
    at, tokens = Layout(tp_attention=2, dp=32, ep=64), 64 * 1024 + 1
    alone = ROUTED | {"ffn": replace(MOE, d_shared=0)}
    sent = exchange.dispatch_combine_s(tokens, **alone, layout=at, on=BOUND)
    gathered = BOUND.all_gather_s(2049 * size, 2)
    assert exchange.experts_s(tokens, **alone, layout=at, on=BOUND) == pytest.approx(sent + gathered, rel=1e-12)
