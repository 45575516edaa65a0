"""Closed forms of Helix: the paper's table, limits, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign_lib.serving import exchange, helix
from codesign_lib.serving.layout import Layout
from codesign_lib.specs import hardware

CHIP = {"chip": "gb200", "fmt": "fp4_payload"}
CACHE = {"n_batch": 8, "n_kv_heads": 8, "d_head": 128} | CHIP
WEIGHTS = {"n_heads": 128, "n_kv_heads": 8, "d_head": 128, "d_ffn": 65_536} | CHIP
TP = np.array([1, 2, 4, 8, 16, 32, 64])


class TestPublished:
    def test_figure_1(self):
        np.testing.assert_allclose(1e6 * helix.kv_read_s(1e6, **CACHE, tp=TP), [1024, 512, 256, 128, 128, 128, 128])
        np.testing.assert_allclose(
            1e6 * helix.kv_read_s(1e6, **CACHE, tp=8, kvp=[1, 2, 4, 8, 16]), [128, 64, 32, 16, 8]
        )
        all_the_way = [236.98, 118.49, 59.24, 29.62, 14.94, 7.60, 3.93]
        np.testing.assert_allclose(
            1e6 * helix.weight_read_s(**WEIGHTS, tp_attention=TP, tp_ffn=TP), all_the_way, atol=0.00501
        )
        capped = [236.98, 118.49, 59.24, 29.62, 17.04, 10.75, 7.60]
        np.testing.assert_allclose(
            1e6 * helix.weight_read_s(**WEIGHTS, tp_attention=np.minimum(TP, 8), tp_ffn=TP), capped, atol=0.00501
        )


@given(st.integers(1, 512), st.integers(0, 5), st.integers(0, 5), st.sampled_from(["gb200", "h200_sxm"]))
def test_at_the_crossover_both_take_equally_long(batch, log_tp, log_kvp, chip):
    tp, kvp = 2**log_tp, 2**log_kvp
    how = dict(n_kv_heads=8, d_head=128, chip=chip, fmt="fp8")
    s = helix.crossover_tokens(n_batch=batch, n_heads=64, d_ffn=28_672, tp=tp, kvp=kvp, **how)
    cache = helix.kv_read_s(s, n_batch=batch, tp=tp, kvp=kvp, **how)
    weights = helix.weight_read_s(n_heads=64, d_ffn=28_672, tp_attention=tp, tp_ffn=tp, **how)
    assert cache == pytest.approx(weights)


class TestExchange:
    def test_nothing_is_sent_alone(self):
        assert helix.exchange_bytes(n_batch=8, n_heads=128, d_value=128, kvp=1) == 0

    def test_payload_by_hand_and_its_limit(self):
        # 2 requests, 4 heads of 3 in BF16 and 8 bytes each; three quarters leave
        assert helix.exchange_bytes(n_batch=2, n_heads=8, d_value=3, tp=2, kvp=4) == 2 * 4 * (6 + 8) * 3 / 4
        wide = helix.exchange_bytes(n_batch=2, n_heads=8, d_value=3, kvp=10**9)
        assert wide == pytest.approx(2 * 8 * 14)


class TestBatchwise:
    @given(st.integers(1, 40), st.floats(0, 10), st.floats(0, 10))
    def test_against_two_stations_in_a_row(self, n, a, c):
        attention = exchange = 0.0
        for _ in range(n):
            attention += a
            exchange = max(exchange, attention) + c
        assert helix.batchwise_s(n, a, c, overlapped=True) == pytest.approx(exchange)
        assert helix.batchwise_s(n, a, c, overlapped=False) == pytest.approx(n * (a + c))


class TestAttentionDp:
    @given(st.integers(1, 16), st.integers(1, 70), st.floats(1e3, 1e12), st.floats(1, 1e6))
    def test_both_read_the_same_there(self, heads, n, w, k):
        t = helix.attention_dp_tokens(weight_bytes=w, kv_bytes_per_token=k, n_kv_heads=heads, n_gpus=n)
        if heads % n == 0:
            assert t == np.inf
        else:
            assert w / n + t * k * np.ceil(heads / n) / heads == pytest.approx(w + t * k / n)

    def test_heads_that_gpus_do_not_divide(self):
        # three heads on two GPUs: one reads two of three, DP half
        t = helix.attention_dp_tokens(weight_bytes=6.0, kv_bytes_per_token=1.0, n_kv_heads=3, n_gpus=2)
        assert t == pytest.approx(18) and 6 / 2 + 18 * 2 / 3 == 6 + 18 / 2

    def test_three_heads_on_two_gpus_are_two_and_two(self):
        how = CACHE | {"n_kv_heads": 3}
        assert helix.kv_read_s(1e6, **how, tp=2) == 2 / 3 * helix.kv_read_s(1e6, **how)
        three, four = (helix.weight_read_s(**WEIGHTS | {"n_kv_heads": k}, tp_attention=2) for k in (3, 4))
        assert three == four

    def test_one_head_whatever_the_gpus(self):
        how = dict(weight_bytes=3e8, kv_bytes_per_token=1e3)
        np.testing.assert_allclose(helix.attention_dp_tokens(**how, n_gpus=[2, 8, 64]), 3e5)
        assert helix.attention_dp_tokens(**how, n_gpus=1) == np.inf


@pytest.mark.parametrize(
    ("call", "change", "message"),
    [
        (helix.kv_read_s, {"n_context": 0}, "kv_read_s: n_context is 0.0"),
        (helix.kv_read_s, {"tp": 1.5}, "kv_read_s: tp is 1.5"),
        (helix.kv_read_s, {"kvp": True}, "kvp is True"),
        (helix.kv_read_s, {"fmt": "fp5"}, "unknown format"),
    ],
)
def test_refuses(call, change, message):
    with pytest.raises(ValueError, match=message):
        call(**({"n_context": 1e6} | CACHE | change))


def test_refuses_more():
    with pytest.raises(ValueError, match=r"exchange_s is -1\.0"):
        helix.batchwise_s(8, 2.0, -1.0, overlapped=True)
    with pytest.raises(ValueError, match=r"weight_bytes is 0\.0"):
        helix.attention_dp_tokens(weight_bytes=0, kv_bytes_per_token=1, n_gpus=8)


def test_refuses_flags_shapes_and_half_heads():
    with pytest.raises(ValueError, match="overlapped is 'no'; allowed: True, False"):
        helix.batchwise_s(8, 2.0, 1.0, overlapped="no")
    with pytest.raises(ValueError, match="tp_attention is 256; allowed: at most n_heads, 128"):
        helix.weight_read_s(**WEIGHTS, tp_attention=256)
    with pytest.raises(ValueError, match="do not broadcast"):
        helix.kv_read_s([1, 2], **CACHE, tp=[1, 2, 4])
    with pytest.raises(ValueError, match="do not broadcast"):
        helix.attention_dp_tokens(weight_bytes=[1, 2], kv_bytes_per_token=1, n_gpus=[1, 2, 3])


def test_the_exchange_of_a_decode_step_carries_these_bytes():
    layout, chip = Layout(kvp=8, tp_attention=8, tp_ffn=64), hardware.chip("gb200")
    bound_s = exchange.merge_s(8, 16, 128, layout=layout, on=exchange.Network(chip=chip, bound=True))
    sent = helix.exchange_bytes(n_batch=8, n_heads=128, d_value=128, tp=8, kvp=8)
    assert bound_s * chip.link_bytes_per_s == pytest.approx(sent)
