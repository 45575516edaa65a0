"""What a token costs: prices a FLOP and a byte, the printed table, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from codesign_lib.serving import rental
from codesign_lib.specs import published


def test_prices_as_printed():
    flop = [rental.accelerator(x).usd_per_flop for x in ("h800", "h20", "a800", "ascend_910b")]
    byte = [rental.accelerator(x).usd_per_byte for x in ("h800", "h20", "a800", "ascend_910b")]
    np.testing.assert_allclose(flop, [2.81e-19, 7.51e-19, 6.68e-19, 6.65e-19], atol=0.5e-21)
    np.testing.assert_allclose(byte, [1.66e-16, 5.56e-17, 1.04e-16, 1.16e-16], rtol=4e-3)


BEST = [(0.055, 0.129, "step3"), (0.068, 0.211, "dsv3"), (0.062, 0.193, "qwen3_moe")]


@pytest.mark.parametrize(("best_8k", "best_32k", "model"), BEST)
def test_best_totals_as_printed(best_8k, best_32k, model):
    for n_context, best in ((8192, best_8k), (32_768, best_32k)):
        row = published.table("step3_models").where(name=model, n_context=float(n_context))
        ask = {x: float(row[x][0]) for x in ("attention_flops", "kv_bytes", "linear_flops")}
        attention = min(rental.attention_usd(**ask, on=x) for x in rental.ACCELERATORS)
        ffn = min(rental.ffn_usd(row["ffn_flops"][0], on=x) for x in rental.ACCELERATORS)
        assert 1e6 * (attention + ffn) == pytest.approx(best, abs=0.002)


def test_the_larger_of_arithmetic_and_traffic():
    h800 = rental.accelerator("h800")
    ask = dict(attention_flops=0, kv_bytes=1e9, linear_flops=0, on=h800)
    assert rental.attention_usd(**ask) == pytest.approx(1e9 * h800.usd_per_byte)
    assert rental.attention_usd(**(ask | {"attention_flops": 1e15})) == pytest.approx(1e15 * h800.usd_per_flop)
    assert rental.attention_usd(**(ask | {"kv_bytes": [0, 1e9]})).shape == (2,)


def test_sparsity_bound_as_printed():
    found = [float(rental.least_active_share(7168, 61, on=x)) for x in ("h800", "h20", "a800", "ascend_910b")]
    np.testing.assert_allclose(found, [0.058, 0.007, 0.031, 0.034], atol=0.0005)


def test_sparsity_bound_grows_with_the_model_and_shrinks_with_the_network():
    h800 = rental.accelerator("h800")
    one = rental.least_active_share(7168, 61, on=h800)
    assert rental.least_active_share(2 * 7168, 61, on=h800) == pytest.approx(2 * one)
    assert rental.least_active_share(7168, 61, on=replace(h800, network_bytes_per_s=800e9)) == pytest.approx(one / 2)


def test_refuses():
    with pytest.raises(ValueError, match=r"unknown accelerator 'h100'; known: h800, h20, a800, ascend_910b"):
        rental.ffn_usd(1e9, on="h100")
    with pytest.raises(ValueError, match=r"Accelerator 'h800': usd_per_hour is 0.0"):
        replace(rental.accelerator("h800"), usd_per_hour=0.0)
    with pytest.raises(ValueError, match=r"kv_bytes is -1.0"):
        rental.attention_usd(attention_flops=1, kv_bytes=-1, linear_flops=1, on="h800")
