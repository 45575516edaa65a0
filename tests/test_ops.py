import numpy as np
import pytest

from codesign_lib.cost import ops

BF16 = {"inputs": "bf16", "weights": "bf16", "outputs": "bf16"}


def test_square_case_of_the_article():
    # 2H³ FLOPs on 3H² elements
    work = ops.linear(4096, 4096, 4096, **BF16)
    assert work.flops == 2 * 4096.0**3
    assert work.bytes == 2 * 3 * 4096.0**2


def test_each_operand_has_its_own_format():
    work = ops.linear(10, 100, 1000, inputs="fp8", weights="nvfp4", outputs="bf16")
    assert work.bytes == 10 * 100 * 1 + 100 * 1000 * 0.5625 + 10 * 1000 * 2


def test_output_is_a_part_of_linear():
    whole = ops.linear(7, 5, 3, inputs="fp8", weights="fp8", outputs="bf16")
    assert whole.bytes == 7 * 5 + 5 * 3 + ops.output(7, 3, outputs="bf16").bytes


def test_quantise_reads_and_writes():
    assert ops.quantise(8, 16, outputs="nvfp4").bytes == 8 * 16 * (2 + 0.5625)
    assert ops.quantise(8, 16, inputs="fp8", outputs="nvfp4").bytes == 8 * 16 * (1 + 0.5625)


def test_sizes_broadcast():
    work = ops.linear(np.arange(1, 4)[:, None], 8, np.arange(1, 6), **BF16)
    assert work.flops.shape == work.bytes.shape == (3, 5)


def test_int32_sizes_do_not_overflow():
    n = np.array([65536], dtype=np.int32)
    assert ops.linear(n, n, n, **BF16).flops[0] == 2.0**49


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), "512", None])
@pytest.mark.parametrize("which", ["m", "k", "n"])
def test_linear_refuses(which, bad):
    sizes = {"m": 1, "k": 1, "n": 1} | {which: bad}
    with pytest.raises(ValueError, match=rf"linear: {which} is .*; allowed: (finite|real) numbers"):
        ops.linear(**sizes, **BF16)


def test_sizes_that_do_not_broadcast_are_named():
    with pytest.raises(ValueError, match=r"linear: m of shape \(2,\) and k of shape \(3,\) do not broadcast"):
        ops.linear([1, 2], [1, 2, 3], 4, **BF16)


def test_formats_are_keyword_only():
    with pytest.raises(TypeError):
        ops.linear(1, 1, 1, "bf16", "bf16", "bf16")
