"""Padding, tiles, waves, scale layouts, alignment, ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign_lib.cost import tiling

SIZES = st.integers(1, 100_000)
TILES = st.sampled_from([(16, 128), (64, 128), (128, 64), (128, 256), (256, 128)])
CALLS = {
    "padded": lambda x: tiling.padded(x, 128),
    "padding_waste": lambda x: tiling.padding_waste(x, 128),
    "n_tiles": lambda x: tiling.n_tiles(x, 1024, tile=(128, 256)),
    "tile_efficiency": lambda x: tiling.tile_efficiency(1024, x, tile=(128, 256)),
    "n_waves": lambda x: tiling.n_waves(x, 152),
    "wave_efficiency": lambda x: tiling.wave_efficiency(x, 152),
    "gemm_efficiency": lambda x: tiling.gemm_efficiency(x, 1024, tile=(128, 256), n_sms=152),
    "scale_bytes": lambda x: tiling.scale_bytes(x, 4096),
    "scale_waste": lambda x: tiling.scale_waste(x, 4096),
    "alignment": tiling.alignment,
    "row_alignment_bytes": lambda x: tiling.row_alignment_bytes(x, "bf16"),
    "per_rank": lambda x: tiling.per_rank(x, 1),
    "per_rank_waste": lambda x: tiling.per_rank_waste(x, 1, multiple=64),
}


@pytest.mark.parametrize(
    ("n_tiles", "speedup"), [(148, 1.0), (152, 2.0), (296, 1.0), (304, 1.5), (3584, 1.042), (50_000, 1.027)]
)
def test_published_speedup_of_four_more_sms(n_tiles, speedup):
    ratio = tiling.n_waves(n_tiles, 148) / tiling.n_waves(n_tiles, 152)
    assert round(float(ratio), 3) == speedup


def test_published_tile_counts():
    assert tiling.n_tiles(8192, 14336, tile=(128, 256)) == 3584  # Llama-3.1-8B's MLP at 8192 tokens
    assert tiling.n_tiles(1792, 1792, tile=(256, 128)) == 98  # fewer than an A100's 108 SMs
    assert tiling.n_waves(109, 108) == 2


def test_published_scale_padding_of_gpt_oss():
    assert tiling.scale_bytes(2880, 2880) == 2944 * 180
    assert tiling.scale_waste(2880, 2880) == pytest.approx(2944 / 2880 - 1, rel=1e-12)
    assert tiling.scale_waste(128, 2880) == 0  # 2880 is a multiple of 64
    assert tiling.scale_bytes(128, 16) == 4 * 128  # a row's scales come in fours
    assert tiling.scale_bytes(1, 4096) / tiling.scale_bytes(1, 4096, layout="8x4") == 16


def test_published_alignments():
    assert tiling.alignment([10922, 10944, 11008, 50257, 50304]).tolist() == [1, 64, 256, 1, 128]
    assert tiling.row_alignment_bytes([588, 592], "bf16").tolist() == [8, 32]  # the first falls back, 3.5 times slower
    assert tiling.row_alignment_bytes(33, "nvfp4") == 0.5


def test_published_rank_widths():
    assert tiling.alignment(tiling.per_rank([1856, 704], 4)).tolist() == [16, 16]
    assert tiling.per_rank(2048, 6, multiple=32) == 352
    assert tiling.padded(tiling.per_rank(2048, 6, multiple=32), 128) == 384


def test_efficiency_is_one_at_multiples_and_in_the_limit():
    assert tiling.gemm_efficiency(128 * 152, 256, tile=(128, 256), n_sms=152) == 1
    near = tiling.gemm_efficiency(10**9 + 1, 8191, tile=(128, 256), n_sms=152)
    assert near == pytest.approx(8191 / 8192, rel=1e-6)


def test_sawtooth_peaks_at_multiples_of_the_tile():
    n = np.arange(2048, 4097, 64)
    eta = tiling.tile_efficiency(8192, n, tile=(128, 256))
    assert (n[eta == 1] % 256 == 0).all() and (eta[n % 256 == 0] == 1).all()


def test_one_token_more_is_one_wave_more():
    tiles = tiling.n_tiles([512, 513], 8192, tile=(128, 256))
    assert tiling.n_waves(tiles, 152).tolist() == [1, 2]


def test_shapes_broadcast():
    m, n = np.arange(1, 4)[:, None], np.array([100, 200])
    for found in (
        tiling.gemm_efficiency(m, n, tile=(128, 256), n_sms=152),
        tiling.scale_waste(m, n * 16),
        tiling.per_rank(n * 100, m, multiple=64),
        tiling.padded(m, n),
    ):
        assert found.shape == (3, 2) and found.dtype == np.float64
    assert tiling.n_tiles(np.int32(2**30), np.int32(2**30), tile=(1, 1)) == 2.0**60


@given(rows=SIZES | st.integers(1, 99).map(lambda i: 128 * i), blocks=st.integers(1, 5000))
def test_nothing_is_padded_exactly_at_multiples_of_128_and_64(rows, blocks):
    k = 16 * blocks
    assert (tiling.scale_waste(rows, k) == 0) == (rows % 128 == 0 and k % 64 == 0)


@given(m=SIZES, n=SIZES, tile=TILES, n_sms=st.integers(1, 300))
@settings(deadline=None)
def test_waste_is_never_negative(m, n, tile, n_sms):
    tiles = tiling.n_tiles(m, n, tile=tile)
    assert tiles * tile[0] * tile[1] >= m * n
    assert 0 < tiling.tile_efficiency(m, n, tile=tile) <= 1
    assert 0 < tiling.wave_efficiency(tiles, n_sms) <= 1
    assert tiling.n_waves(tiles, n_sms) * n_sms >= tiles
    assert tiling.padding_waste(m, tile[1]) >= 0


@given(size=SIZES, n_ranks=st.integers(1, 64), multiple=st.sampled_from([1, 32, 64, 128]))
def test_ranks_hold_the_whole_dimension(size, n_ranks, multiple):
    if n_ranks > size:
        with pytest.raises(ValueError, match="n_ranks ≤ size"):
            tiling.per_rank(size, n_ranks)
        return
    rank = tiling.per_rank(size, n_ranks, multiple=multiple)
    assert rank % multiple == 0 and rank * n_ranks >= size
    assert (tiling.per_rank_waste(size, n_ranks, multiple=multiple) == 0) == (size % (n_ranks * multiple) == 0)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("bad", [0, -128, 1.5, float("nan"), float("inf"), True, "128"])
def test_sizes_that_are_none_are_refused(name, bad):
    with pytest.raises(ValueError, match="allowed"):
        CALLS[name]([1024, bad] if not isinstance(bad, str | bool) else bad)


@pytest.mark.parametrize("tile", [(128, 0), (128, 1.5), 128, (128, 256, 2), (128, float("nan")), ([1, 2], 3)])
def test_tiles_that_are_none_are_refused(tile):
    with pytest.raises(ValueError, match="tile"):
        tiling.n_tiles(1024, 1024, tile=tile)


def test_scales_refuse_what_has_no_blocks_or_layout():
    with pytest.raises(ValueError, match="k is 1000; allowed: multiples of 16"):
        tiling.scale_bytes(128, 1000)
    with pytest.raises(ValueError, match="allowed: 128x4, 8x4"):
        tiling.scale_bytes(128, 1024, layout="4x4")


def test_one_size_of_many_with_too_many_ranks_is_refused():
    with pytest.raises(ValueError, match="per_rank"):
        tiling.per_rank([4096, 4], 8)


def test_drafts_that_fill_a_tile():
    group = np.array([1, 4, 8, 16, 64])
    assert (group * (tiling.draft_tokens(group) + 1) == 128).all()
    assert tiling.draft_tokens(200) == 0
    assert tiling.draft_tokens(8, rows=64) == 7
