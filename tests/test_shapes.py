"""Layers compared by shape, and the claims built on them."""

import numpy as np
import pytest

from codesign_lib.cost import kernels
from codesign_lib.report import claims
from codesign_lib.report.claims import dimensioning, gemm, shapes
from codesign_lib.specs import published


class TestReached:
    def test_interpolates(self):
        assert shapes.reached([100, 200, 300], [0.0, 60.0, 100.0]) == pytest.approx(250)
        assert shapes.reached([100, 200, 300], [0.0, 60.0, 100.0], share=0.6) == pytest.approx(200)

    def test_from_the_first_size_on(self):
        assert shapes.reached([5, 6], [90, 100]) == 5

    def test_a_dip_below_counts(self):
        # 90 is above, but 70 falls below again
        assert shapes.reached([1, 2, 3, 4], [50, 90, 70, 100]) == pytest.approx(3 + 1 / 3)

    def test_refuses_a_sweep_that_ends_below(self):
        with pytest.raises(ValueError, match="ends above"):
            shapes.reached([1, 2], [100, 50])


@pytest.mark.parametrize("engine", gemm.ENGINES)
@pytest.mark.parametrize("along", ["k", "n"])
def test_a_sweep_is_the_tables_and_the_models(engine, along):
    found = shapes.sweep(engine, "nvfp4", along)
    fixed, size = shapes.SWEPT[along]
    k, n = (found.size, size) if fixed == "n" else (size, found.size)
    flops = 2 * gemm.TOKENS * np.multiply(k, n)
    assert np.all(np.diff(found.size) > 0) and found.size[-1] == 16384
    np.testing.assert_allclose(found.measured, flops / gemm.measured_s(engine, "nvfp4", k, n))
    ours_s = kernels.gemm_s(gemm.TOKENS, k, n, chip="gb300", fmt="nvfp4", engine=engine)
    np.testing.assert_allclose(found.module, flops / ours_s)
    assert np.all(found.kernel > found.module)


def test_sweep_refuses_m():
    with pytest.raises(ValueError, match="along is 'm'; allowed: k, n"):
        shapes.sweep("trtllm", "nvfp4", "m")


def test_an_ffn_is_its_two_layers():
    up, down = (shapes.layer_s("sglang", "bf16", *x) for x in ((4096, 1024), (1024, 4096)))
    found = shapes.ffn_flops_per_s("sglang", "bf16", 4096, 1024)
    flops = 2 * 8192 * 4096 * 1024 * 2
    assert found.measured == pytest.approx(flops / (up.measured + down.measured))
    assert found.ours == pytest.approx(flops / (up.ours + down.ours))
    square = shapes.layer_flops_per_s("sglang", "bf16", 4096, 4096)
    assert shapes.ffn_flops_per_s("sglang", "bf16", 4096, 4096) == pytest.approx(square)


def test_one_token_more_is_two_measured_rows():
    rows = published.table("gemm_staircase").where(engine="sglang", fmt="nvfp4")
    took = [rows.where(m=m)["latency_s"][0] for m in (512.0, 513.0)]
    assert shapes.one_more("sglang", 512).measured == pytest.approx(took[1] / took[0])


def test_stacks_of_equal_parameters_have_equal_flops():
    weights = sum(k * n for k, n in shapes.LAYER.values())
    assert weights == 6.5  # qkv 1.5, out 1, up 2, down 2
    assert shapes.stack_s("trtllm", 8192, 64) == pytest.approx(2 * shapes.stack_s("trtllm", 8192, 32))
    assert shapes.measured_stack_s("trtllm", 8192, 2) == pytest.approx(2 * shapes.measured_stack_s("trtllm", 8192, 1))
    with pytest.raises(ValueError, match="no row"):
        shapes.measured_stack_s("trtllm", 2048, 1)


def test_dense_moe_is_two_products():
    n_experts, hidden, width = 256, 7168, 256
    on = {"chip": "b200_sxm", "fmt": "nvfp4", "engine": "sglang"}
    up_s = kernels.gemm_s(64, hidden, n_experts * 2 * width, **on)
    down_s = kernels.gemm_s(64, n_experts * width, hidden, **on)
    assert shapes.dense_moe_s("sglang", 64) == pytest.approx(up_s + down_s)
    assert shapes.dense_moe_s("sglang", [[1, 2, 3]]).shape == (1, 3)


def test_the_square_is_measured_best_in_both_engines_and_ours_in_one():
    k, n = np.array(dimensioning.ASPECT).T
    best = {e: shapes.layer_flops_per_s(e, "nvfp4", k, n) for e in gemm.ENGINES}
    assert [n[np.argmax(found.measured)] for found in best.values()] == [4096, 4096]
    # the day SGLang's becomes 4096, its order is a claim and the study's sentence goes
    assert [n[np.argmax(found.ours)] for found in best.values()] == [4096, 8192]


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("waves/ratio/304", 1.333),
        ("waves/a100", 1.0),
        ("shards/2880/waste", 0.067),
        ("shards/2048/128", 352.0),
        ("shards/redundant", 0.9),
        ("sm_counts/gb300", 153.0),
        ("figure4/n/trtllm/kernel", 2560.0),
        ("one_more/trtllm/m512", 2.0),
        ("misaligned/ffn/10922", 0.69),
    ],
)
def test_a_wrong_number_fails(key, wrong):
    assert not claims.find(key).claim.check(wrong).ok


def test_an_order_that_is_not_the_measured_one_fails():
    held = claims.find("aspect_order/trtllm/small_n")
    ours = held.ours()
    assert held.claim.check(ours).ok
    assert not held.claim.check((*ours[1::-1], *ours[2:])).ok
