"""NVFP4 to the bit: vectors of others, policies, faults known in the field, properties; elements, checkpoints."""

import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from codesign_lib.lowbit import blocks, checkpoint, elements, nvfp4, recipes, variants
from codesign_lib.lowbit.elements import E2M1, E4M3, E5M2
from codesign_lib.lowbit.error_law import relative_mse
from codesign_lib.specs.formats import NVFP4
from codesign_lib.specs.published import table

VECTORS = np.load(Path(__file__).parent / "data" / "nvfp4_vectors.npz")
KEYS = {"TE_ref": "transformer_engine", "vllm_ref": "vllm"}
FIVE = ("modelopt", "torchao", "compressed_tensors", "TE_ref", "vllm_ref")
ALL = tuple(variants.VARIANTS)
F32 = np.finfo(np.float32)
LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
ordinary = st.floats(min_value=-1e4, max_value=1e4, width=32)
any_block = arrays(np.float32, st.tuples(st.integers(1, 3), st.just(32)), elements=st.one_of(finite, ordinary))


def gaussian(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ulps(a, b):
    return abs(int(np.float32(a).view(np.int32)) - int(np.float32(b).view(np.int32)))


def computed(keys):
    """Pairs of a class and an implementation of which there are blocks."""
    found = []
    for key in keys:
        scales = VECTORS["scales"][list(VECTORS["keys"]).index(key)]
        found += [(str(VECTORS["cases"][i]), key) for i in np.unique(VECTORS["case"][scales != 255])]
    return found


def vector(case, key):
    """Blocks of one class, and what one implementation makes of them."""
    i, j = list(VECTORS["cases"]).index(case), list(VECTORS["keys"]).index(key)
    here = (VECTORS["case"] == i) & (VECTORS["scales"][j] != 255)
    parts = {name: VECTORS[name][j, here] for name in ("packed", "scales", "values_crc32")}
    return VECTORS["x"][here], float(VECTORS["amax"][i]), VECTORS["global_scale"][j, i], parts


def differing(q, parts):
    values = nvfp4.dequantise(q).reshape(-1, 16).astype("<f4")
    crc = np.array([zlib.crc32(row.tobytes()) for row in values])
    return (
        int((q.packed.reshape(-1, 8) != parts["packed"]).sum()),
        int((q.scales.reshape(-1) != parts["scales"]).sum()),
        int((crc != parts["values_crc32"]).sum()),
    )


class TestVectors:
    @pytest.mark.parametrize(("case", "key"), computed(FIVE))
    def test_codes_scales_and_values_to_the_bit(self, case, key):
        x, amax, global_scale, parts = vector(case, key)
        q = nvfp4.quantise(x, variant=KEYS.get(key, key), amax=amax)
        assert differing(q, parts) == (0, 0, 0)
        assert ulps(q.global_scale, global_scale) <= 1

    def test_rounding_to_bfloat16(self):
        """compressed-tensors decodes to bfloat16, ties to the even one."""
        values = nvfp4.dequantise(nvfp4.quantise(gaussian(8, 32), variant="compressed_tensors"))
        assert not (values.view(np.uint32) & 0xFFFF).any()
        tie = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], np.float32)
        nvfp4._round_to_bfloat16(tie)
        assert tie.tolist() == [1.0, 1 + 2**-6, 1 + 2**-7]

    def test_blocks_below_the_smallest_scale(self):
        """Nothing of them is left in any variant, but what is stored differs."""
        x = np.concatenate([gaussian(16) * 1e-9, [1.0], np.zeros(15)]).astype(np.float32)
        stored = {v: nvfp4.quantise(x, variant=v) for v in ALL}
        assert {v: int(q.scales[0]) for v, q in stored.items()} == {
            "modelopt": 0x01,
            "torchao": 0x08,
            "compressed_tensors": 0x20,
            "transformer_engine": 0,
            "vllm": 0,
            "fouroversix": 0,
        }
        assert not (nvfp4.codes(stored["vllm"])[:16] & 7).any()
        assert all(not nvfp4.dequantise(q)[:16].any() for q in stored.values())

    def test_an_infinite_global_scale_becomes_1(self):
        q = nvfp4.quantise(gaussian(2, 16) * 1e-37, variant="compressed_tensors")
        assert q.global_scale == 1 and not nvfp4.dequantise(q).any()
        assert nvfp4.quantise(gaussian(2, 16) * 1e-37, variant="transformer_engine").global_scale < 1e-37

    def test_variants_disagree_somewhere(self):
        x = (gaussian(64, 512) * np.exp2(-np.arange(32) / 2).repeat(16)).astype(np.float16) + np.float32(0)
        found = [nvfp4.quantise(x, variant=v) for v in ALL]
        assert len({nvfp4.dequantise(q).tobytes() for q in found}) == 6

    def test_the_packages_differ_nowhere_without_a_reason(self):
        rows = table("validation/nvfp4")
        assert {"modelopt", "torchao", "compressed_tensors"} == set(rows["package"])
        assert len(set(rows["input"])) >= 12
        differ = np.zeros(len(rows), bool)
        for column in ("codes_differ", "scales_differ", "values_differ"):
            differ |= rows[column].astype(str) != "0"
        assert ((rows["reason"] != "") == differ).all()
        assert not np.char.startswith(rows["reason"], "NOT EXPLAINED").any()
        assert (~differ).sum() >= 60
        assert "nvidia-modelopt 0.47.0" in rows.header["version"]


class TestBlockByHand:
    def test_one_block(self):
        x = np.array([[0.5, -3.0, 6.0, 2.5, 0.0, -0.1, 5.1, 1.0] * 2])
        q = nvfp4.quantise(x)
        assert q.global_scale == float(np.float32(6 / 2688)) and q.scales.tolist() == [[0x7E]]
        assert nvfp4.codes(q)[0, :8].tolist() == [1, 13, 7, 4, 0, 8, 7, 2]
        assert q.packed[0, :4].tolist() == [0xD1, 0x47, 0x80, 0x27]  # the even element is the low half
        assert nvfp4.dequantise(q)[0, :8].tolist() == [0.5, -3.0, 6.0, 2.0, 0.0, 0.0, 6.0, 1.0]

    @pytest.mark.parametrize("variant", ALL)
    def test_ties_go_to_the_even_code(self, variant):
        x = np.zeros(32)
        x[:7], x[8:15], x[7], x[16] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], -x[:7], 6, 2688
        x[8:15] = [-0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0]
        got = nvfp4.codes(nvfp4.quantise(x, variant=variant))
        assert got[:7].tolist() == [0, 2, 2, 4, 4, 6, 6]
        assert got[8:15].tolist() == [8, 10, 10, 12, 12, 14, 14]
        x[:7] = np.nextafter(x[:7].astype(np.float32), np.float32(9))
        up = nvfp4.codes(nvfp4.quantise(x, variant=variant))
        assert up[:7].tolist() == [1, 2, 3, 4, 5, 6, 7]

    def test_ties_of_the_scale_go_to_the_even_code(self):
        s = elements.values(E4M3)[:127].astype(np.float64)
        middle = (s[1:] + s[:-1]) / 2
        x = np.repeat(6 * middle, 16).reshape(-1, 16)
        got = nvfp4.quantise(np.concatenate([x, np.full((1, 16), 2688)])).scales[:-1, 0]
        even = np.arange(126) + np.arange(126) % 2
        even[0] = 1  # 2^-10 ties to 0, and ModelOpt keeps the scale at 2^-9 or above
        assert got.tolist() == even.tolist()


class TestPolicies:
    @pytest.mark.parametrize("variant", ALL)
    def test_zeros_stay_zeros(self, variant):
        x = np.zeros((2, 32), np.float32)
        q = nvfp4.quantise(x, variant=variant)
        assert q.global_scale == 1 and q.amax == 0 and not nvfp4.codes(q).any()
        assert (nvfp4.dequantise(q) == 0).all()
        x[1] = gaussian(32)
        q = nvfp4.quantise(x, variant=variant)
        stored = {"modelopt": 0x38, "torchao": 0x08, "compressed_tensors": 0x20}.get(variant, 0)
        assert q.scales[0].tolist() == [stored] * 2 and (nvfp4.dequantise(q)[0] == 0).all()

    @pytest.mark.parametrize("variant", ALL)
    def test_sign_of_zero(self, variant):
        x = np.array([-0.0, 0.0, -1e-3, 1e-3] + [1.0] * 12, np.float32)
        kept = 8 if variant == "torchao" else 0
        assert nvfp4.codes(nvfp4.quantise(x, variant=variant))[:4].tolist() == [kept, 0, 8, 0]
        value = nvfp4.dequantise(nvfp4.quantise(x, variant=variant))[2]
        assert np.signbit(value) == (variant != "modelopt")

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_refuses_what_is_not_finite_and_says_where(self, bad, dtype):
        x = np.zeros((3, 2, 16), dtype)
        x[2, 1, 5] = bad
        with pytest.raises(ValueError, match=rf"quantise: x is {bad} at index \(2, 1, 5\); allowed: finite float32"):
            nvfp4.quantise(x)

    def test_refuses_float64_beyond_float32(self):
        with pytest.raises(ValueError, match=r"x is 1e\+39 at index \(3\)"):
            nvfp4.quantise([0.0, 0, 0, 1e39] + [0.0] * 12)

    @pytest.mark.parametrize("bad", [np.zeros(16, np.uint8), np.zeros(16, int), ["a"] * 16, [True] * 16, None])
    def test_refuses_what_is_no_real_array(self, bad):
        with pytest.raises(ValueError, match=r"quantise: x is of dtype .*; allowed: float16, bfloat16"):
            nvfp4.quantise(bad)

    def test_refuses_a_single_number_a_ragged_list_and_an_unknown_variant(self):
        with pytest.raises(ValueError, match="x is a single number"):
            nvfp4.quantise(1.0)
        with pytest.raises(ValueError, match="x is not rectangular"):
            nvfp4.quantise([[1.0], [1.0, 2.0]])
        with pytest.raises(ValueError, match="unknown variant 'te'; known: modelopt, torchao"):
            nvfp4.quantise(np.zeros(16), variant="te")

    @pytest.mark.parametrize("bad", ["yes", 1, None])
    def test_refuses_such_a_pad(self, bad):
        with pytest.raises(ValueError, match=r"pad is .*; allowed: True, False"):
            nvfp4.quantise(np.zeros(17), pad=bad)

    def test_refuses_a_masked_array(self):
        with pytest.raises(ValueError, match="x is a masked array"):
            nvfp4.quantise(np.ma.array(np.ones(16), mask=[True] + [False] * 15))

    @pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, 1e39, [1.0, 2.0], True, "1.0"])
    def test_refuses_such_an_amax(self, bad):
        with pytest.raises(ValueError, match=r"amax is .*; allowed: a finite float32 above 0"):
            nvfp4.quantise(np.ones(16), amax=bad)

    @pytest.mark.parametrize("quantise", [nvfp4.quantise, recipes.four_over_six, recipes.best_scale])
    def test_dead_layers_fused(self, quantise):
        """The amax that they share is 0, without a sign, and they stay zeros with G = 1."""
        zeros = np.zeros((2, 16))
        amax = checkpoint.shared_amax(zeros, -zeros)
        assert amax == 0 and not np.signbit(amax)
        q = quantise(zeros, amax=amax)
        assert q.global_scale == 1 and not nvfp4.dequantise(q).any()
        assert checkpoint.fuse([q, q]).shape == (4, 16)

    def test_nothing_shares_no_amax(self):
        with pytest.raises(ValueError, match="shared_amax: no tensors; allowed: at least one"):
            checkpoint.shared_amax()

    @pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, 449, True, "448"])
    def test_refuses_such_a_scale_max(self, bad):
        for call in (
            lambda: recipes.best_scale(np.ones((1, 16)), scale_max=bad),
            lambda: nvfp4.quantise_with(np.ones((1, 16)), np.full((1, 1), 0x38, np.uint8), amax=1, scale_max=bad),
        ):
            with pytest.raises(ValueError, match="scale_max is .*; allowed: above 0, at most 448"):  # noqa: RUF043
                call()

    @pytest.mark.parametrize("shape", [(0,), (0, 16), (3, 0), (2, 0, 32)])
    def test_empty(self, shape):
        q = nvfp4.quantise(np.zeros(shape))
        assert q.packed.shape == (*shape[:-1], shape[-1] // 2)
        assert nvfp4.dequantise(q).shape == nvfp4.codes(q).shape == shape

    @pytest.mark.parametrize("shape", [(1,), (17,), (3, 40), (2, 3, 5), (70_000, 3), (3, 300_001)])
    def test_padding_gives_the_shape_back(self, shape):
        x = gaussian(*shape)
        q = nvfp4.quantise(x, pad=True)
        width = -(-shape[-1] // 16) * 16
        padded = np.zeros((*shape[:-1], width), np.float32)
        padded[..., : shape[-1]] = x
        whole = nvfp4.quantise(padded)
        assert (q.packed == whole.packed).all() and (q.scales == whole.scales).all()
        assert nvfp4.dequantise(q).shape == nvfp4.codes(q).shape == shape
        assert (nvfp4.dequantise(q) == nvfp4.dequantise(whole)[..., : shape[-1]]).all()

    def test_storage_is_the_formats(self):
        q = nvfp4.quantise(gaussian(4, 40), pad=True)
        assert q.storage_bytes == 4 * 48 * NVFP4.bytes_per_element + 4 == q.packed.nbytes + q.scales.nbytes + 4

    @pytest.mark.parametrize("variant", ALL)
    def test_strides_and_dtypes_do_not_matter(self, variant):
        x = gaussian(48, 64).astype(np.float16).astype(np.float32)
        q = nvfp4.quantise(x, variant=variant)
        wide = np.zeros((48, 2, 128), np.float32)
        wide[:, 1, ::2] = x
        frozen = x.copy()
        frozen.flags.writeable = False
        same = [x.astype(">f4"), x.astype(np.float64), x.astype(np.float16), x.tolist(), frozen]
        for other in [x.T.copy().T, wide[:, 1, ::2], x[::-1].copy()[::-1], *same]:
            again = nvfp4.quantise(other, variant=variant)
            assert (again.packed == q.packed).all() and (again.scales == q.scales).all()

    def test_pieces_do_not_matter(self, monkeypatch):
        x = gaussian(37, 80)
        expected = nvfp4.quantise(x), nvfp4.quantise(x.T, pad=True)
        monkeypatch.setattr(blocks, "PIECE_ELEMENTS", 48)
        for q, again in zip(expected, (nvfp4.quantise(x), nvfp4.quantise(x.T, pad=True)), strict=True):
            assert (q.packed == again.packed).all() and (q.scales == again.scales).all()
            assert (nvfp4.dequantise(q) == nvfp4.dequantise(again)).all()

    def test_input_is_not_changed(self):
        x = gaussian(8, 32)
        before = x.copy()
        for variant in ALL:
            nvfp4.quantise(x, variant=variant)
        assert (x == before).all()

    def test_bfloat16_arrays(self):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        x = gaussian(8, 32).astype(ml_dtypes.bfloat16)
        q, same = nvfp4.quantise(x), nvfp4.quantise(x.astype(np.float32))
        assert (q.packed == same.packed).all() and (q.scales == same.scales).all()

    def test_working_memory(self):
        x = np.ones((4096, 4096), np.float32)
        tracemalloc.start()
        q = nvfp4.quantise(x)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak - q.packed.nbytes - q.scales.nbytes <= 0.1 * x.nbytes

    def test_quantised_refuses_parts_that_do_not_fit(self):
        q = nvfp4.quantise(gaussian(2, 32))
        parts = dict(packed=q.packed, scales=q.scales, global_scale=1.0, amax=1.0, shape=(2, 32), variant="modelopt")
        for change, message in (
            (dict(packed=q.packed[:, :-1]), r"packed is uint8 of shape \(2, 15\)"),
            (dict(scales=q.scales.astype(float)), "scales is float64"),
            (dict(global_scale=0.0), "global_scale is 0.0; allowed: finite, above 0"),
            (dict(global_scale=np.nan), "global_scale is nan"),
            (dict(amax=np.inf), "amax is inf"),
            (dict(variant="x"), "unknown variant"),
            (dict(amax=2688.0, scale_max=np.nan), "scale_max is nan; allowed: above 0, at most 448"),
            (dict(), r"global_scale is 1\.0, and amax 1\.0 with scale_max 448 makes it 0\.000372"),
            (dict(shape=()), r"shape is \(\); allowed: at least one axis"),
        ):
            with pytest.raises(ValueError, match=message):
                nvfp4.Quantised(**{**parts, **change})

    @pytest.mark.parametrize("off", [1e-5, -1e-5, 1e-3])
    def test_a_global_scale_that_is_nearly_that_of_amax_is_refused(self, off):
        """It comes out of two roundings to float32, 1e-7 each."""
        q = nvfp4.quantise(gaussian(2, 32))
        assert replace(q, global_scale=q.global_scale * (1 + 2e-7)).shape == q.shape
        with pytest.raises(ValueError, match="global_scale is .*, and amax .* makes it"):  # noqa: RUF043
            replace(q, global_scale=q.global_scale * (1 + off))

    def test_minus_zero_is_no_range(self):
        assert not np.signbit(nvfp4.checked_amax(-0.0, zero=True))

    def test_given_scales_are_the_callers_own(self):
        """What is written into them afterwards does not reach the tensor."""
        given = np.full((1, 1), 0x38, np.uint8)
        q = nvfp4.quantise_with(np.full((1, 16), 4.0), given, amax=2688.0)
        given[:] = 0x40
        assert q.scales.tolist() == [[0x38]] and not np.shares_memory(q.scales, given)

    def test_given_scales_must_fit(self):
        with pytest.raises(ValueError, match=r"scales is uint8 of shape \(1,\); allowed: uint8 of shape \(2,\)"):
            nvfp4.quantise_with(np.zeros(32), np.zeros(1, np.uint8), amax=1.0)


class TestFaultsKnownInTheField:
    def test_unrounded_scale(self):
        """Dividing by the scale before its rounding to E4M3 costs 4 to 6 % of error; ours divides by the stored one."""
        x = gaussian(256, 1024)
        q = nvfp4.quantise(x)
        step = elements.decode(q.scales, E4M3).repeat(16, axis=-1) * np.float32(q.global_scale)
        largest = np.abs(x.reshape(256, -1, 16)).max(-1).repeat(16, axis=-1)
        faulty = elements.decode(elements.encode(x / (largest / 6), E2M1), E2M1) * step
        assert 1.04 < relative_mse(x, faulty) / relative_mse(x, nvfp4.dequantise(q)) < 1.06
        assert (nvfp4.codes(q) & 7 == elements.encode(x / step, E2M1) & 7).all()

    @pytest.mark.parametrize("variant", ALL)
    def test_double_rounding_through_bfloat16(self, variant):
        """2.500004 is 3, and 2 when it becomes bfloat16 first."""
        x = np.array([2.500004, -2.500004, 6.0] + [0.0] * 13 + [2688.0] + [0.0] * 15, np.float32)
        assert nvfp4.codes(nvfp4.quantise(x, variant=variant))[:2].tolist() == [5, 13]

    @pytest.mark.parametrize("variant", ALL)
    def test_nan_scale_bytes(self, variant):
        """A scale beyond 448 is 448, not NaN, when a calibrated amax is smaller than the data."""
        q = nvfp4.quantise(gaussian(4, 64) * 100, variant=variant, amax=1.0)
        assert q.scales.max() == 0x7E and np.isfinite(nvfp4.dequantise(q)).all()
        with pytest.raises(ValueError, match=r"scales holds 0x7F at index \(0, 1\); allowed: 0x00 to 0x7E"):
            tensors = checkpoint.to_modelopt(q)
            scales = tensors["weight_scale"].copy()
            scales[0, 1] = 0x7F
            checkpoint.from_modelopt({**tensors, "weight_scale": scales})

    @pytest.mark.parametrize("variant", ALL)
    def test_all_zero_tensor(self, variant):
        values = nvfp4.dequantise(nvfp4.quantise(np.zeros((4, 32)), variant=variant))
        assert (values == 0).all()

    def test_swapped_convention_of_the_global_scale(self):
        """Taking the divisor for the multiplier is wrong by 1/G²; names decide, and the wrong names are refused."""
        x = gaussian(4, 64) * 0.02
        q = nvfp4.quantise(x)
        divides = checkpoint.to_compressed_tensors(q)
        with pytest.raises(ValueError, match=r"names are weight_global_scale, .*; allowed: exactly weight, "):
            checkpoint.from_modelopt(divides)
        with pytest.raises(ValueError, match="allowed: exactly weight_packed"):
            checkpoint.from_compressed_tensors(checkpoint.to_modelopt(q))
        assert relative_mse(nvfp4.dequantise(q), nvfp4.dequantise(checkpoint.from_compressed_tensors(divides))) < 1e-5
        names = dict(zip(checkpoint.MODELOPT_NAMES, divides.values(), strict=True))
        swapped = nvfp4.dequantise(checkpoint.from_modelopt(names))
        ratio = np.median(np.abs(swapped[x != 0]) / np.maximum(np.abs(nvfp4.dequantise(q)[x != 0]), 1e-9))
        assert ratio == pytest.approx(q.global_scale**-2, rel=0.01)

    def test_per_expert_mismatch(self):
        """Experts that do not share a global scale are refused; sharing one is all but free."""
        small, large = gaussian(64, 256), 30 * gaussian(64, 256, seed=1)
        alone = [nvfp4.quantise(w) for w in (small, large)]
        with pytest.raises(ValueError, match=r"fuse: part 1 has global_scale .*; allowed: one shared"):
            checkpoint.fuse(alone)
        amax = checkpoint.shared_amax(small, large)
        together = checkpoint.fuse([nvfp4.quantise(w, amax=amax) for w in (small, large)])
        error = relative_mse(small, nvfp4.dequantise(together)[:64])
        assert error == pytest.approx(relative_mse(small, nvfp4.dequantise(alone[0])), rel=0.01)
        with pytest.raises(ValueError, match=r"encode_scale is 0\.0; allowed: above 0"):
            checkpoint.decode_from_encode(0.0)  # an expert that calibration never reached

    @pytest.mark.parametrize("variant", ALL)
    def test_missing_clamp_at_6(self, variant):
        """A scale of 2.4·2^-9 is stored as 2·2^-9, and 7.2 must become 6, not 8, whose code is that of −0."""
        x = np.zeros(32)
        x[:16], x[16] = 6 * 2.4 * 2**-9 * np.tile([1, -1], 8), 2688
        q = nvfp4.quantise(x, variant=variant)
        if variant != "torchao":  # which has no scale below 2^-6
            assert q.scales[0] == 2 and nvfp4.codes(q)[:2].tolist() == [7, 15]
        assert (np.sign(nvfp4.dequantise(q)[:16]) == np.sign(x[:16])).all()

    def test_silent_regrouping(self):
        """K = 40 is neither 2 groups of 20 nor 2 groups of 16: refused, or 3 groups with the last filled up."""
        x = gaussian(2, 40)
        with pytest.raises(
            ValueError, match="last axis of x holds 40 elements; allowed: a multiple of 16, or pad=True"
        ):
            nvfp4.quantise(x)
        q = nvfp4.quantise(x, pad=True, amax=float(np.abs(x).max()))
        assert q.scales.shape == (2, 3)
        assert (q.scales[:, :2] == nvfp4.quantise(x[:, :32], amax=q.amax).scales).all()


class TestProperties:
    @settings(max_examples=60, deadline=None)
    @given(x=any_block, variant=st.sampled_from(ALL))
    def test_scales_are_numbers_and_values_finite(self, x, variant):
        q = nvfp4.quantise(x, variant=variant)
        assert q.scales.max() <= 0x7E and 0 < q.global_scale < np.inf
        assert np.isfinite(nvfp4.dequantise(q)).all()

    @settings(max_examples=60, deadline=None)
    @given(x=any_block, amax=st.floats(min_value=2**-126, max_value=2**126, width=32), variant=st.sampled_from(ALL))
    def test_with_any_amax(self, x, amax, variant):
        q = nvfp4.quantise(x, variant=variant, amax=amax)
        assert q.scales.max() <= 0x7E and np.isfinite(nvfp4.dequantise(q)).all()

    @settings(max_examples=60, deadline=None)
    @given(x=arrays(np.float32, (2, 32), elements=ordinary), variant=st.sampled_from(ALL))
    def test_brute_force_nearest(self, x, variant):
        x = np.where(np.abs(x) < 1e-20, 0, x).astype(np.float32)  # so that G is no subnormal, which has few digits
        q = nvfp4.quantise(x, variant=variant)
        step = elements.decode(q.scales, E4M3).astype(np.float64).repeat(16, axis=-1) * q.global_scale
        of_code = np.array([*LEVELS, *-LEVELS])[nvfp4.codes(q)]
        error = np.abs(of_code * step - x)
        best = np.abs(LEVELS * step[..., None] - np.abs(x)[..., None].astype(np.float64)).min(-1)
        # three roundings to float32 may decide a near tie the other way
        assert (error <= best + 4e-7 * np.maximum(np.abs(x), 6 * step)).all()

    @settings(max_examples=60, deadline=None)
    @given(x=arrays(np.float32, (2, 32), elements=ordinary), variant=st.sampled_from(ALL))
    def test_idempotent(self, x, variant):
        q = nvfp4.quantise(x, variant=variant)
        values = nvfp4.dequantise(q)
        if q.amax == 0 or not values.any():
            return
        again = nvfp4.quantise(values, variant=variant, amax=q.amax)
        normal = (q.scales >= 0x08).repeat(16, axis=-1)  # a subnormal scale may have been rounded up by a half
        assert (nvfp4.dequantise(again) == values)[normal].all()

    @settings(max_examples=60, deadline=None)
    @given(x=arrays(np.float32, (3, 16), elements=st.one_of(finite, ordinary)), variant=st.sampled_from(ALL))
    def test_monotone_within_a_block(self, x, variant):
        values = nvfp4.dequantise(nvfp4.quantise(np.sort(x, axis=-1), variant=variant))
        assert (np.diff(values, axis=-1) >= 0).all()

    @settings(max_examples=40, deadline=None)
    @given(x=arrays(np.float32, (2, 32), elements=ordinary), variant=st.sampled_from(ALL))
    def test_odd(self, x, variant):
        """−x has the same scales and the opposite values."""
        q, minus = (nvfp4.quantise(v, variant=variant) for v in (x, -x))
        assert (q.scales == minus.scales).all() and (nvfp4.dequantise(minus) == -nvfp4.dequantise(q)).all()

    @settings(max_examples=40, deadline=None)
    @given(x=arrays(np.float32, (2, 32), elements=ordinary), power=st.integers(-20, 20))
    def test_a_power_of_two_moves_through(self, x, power):
        x = np.where(np.abs(x) < 1e-20, 0, x).astype(np.float32)
        q, moved = nvfp4.quantise(x), nvfp4.quantise(np.ldexp(x, power))
        if q.amax:
            assert (q.packed == moved.packed).all() and (q.scales == moved.scales).all()
            assert moved.global_scale == q.global_scale * 2.0**power

    @settings(max_examples=30, deadline=None)
    @given(x=any_block, variant=st.sampled_from(ALL))
    def test_codes_are_packed_and_unpacked(self, x, variant):
        q = nvfp4.quantise(x, variant=variant)
        assert (nvfp4.pack(nvfp4.codes(q)) == q.packed).all()

    def test_extremes(self):
        for x in (np.full((2, 16), F32.max), gaussian(2, 16) * F32.tiny, np.full(16, F32.smallest_subnormal)):
            for variant in ALL:
                values = nvfp4.dequantise(nvfp4.quantise(x, variant=variant))
                assert np.isfinite(values).all()
        values = nvfp4.dequantise(nvfp4.quantise(np.full((2, 16), -F32.max)))
        assert values == pytest.approx(-float(F32.max), rel=1e-6)


HUGE = {
    "normal": gaussian(8, 64) * np.float32(7e37),
    "one at the end": np.where(np.arange(64) == 5, F32.max, gaussian(4, 64) * np.float32(1e37)).astype(np.float32),
    "half the end": np.full((2, 32), F32.max / 2, np.float32),
    "zeros beside": np.where(np.arange(64) < 32, 0, gaussian(4, 64) * np.float32(5e37)).astype(np.float32),
}


class TestHuge:
    """Where the product of a scale and amax leaves float32 on the way, though no value does."""

    @pytest.mark.parametrize("variant", ALL)
    @pytest.mark.parametrize("case", HUGE)
    def test_decoded_values_are_finite_and_near(self, case, variant):
        x = HUGE[case]
        values = nvfp4.dequantise(nvfp4.quantise(x, variant=variant)).astype(np.float64)
        assert np.isfinite(values).all() and relative_mse(x / F32.max, values / F32.max) < 0.02

    @pytest.mark.parametrize("variant", ALL)
    @pytest.mark.parametrize("power", range(110, 128))
    def test_as_near_as_with_small_numbers(self, variant, power):
        """A power of two moves through; TransformerEngine and fouroversix decode by another order where it overflows,
        and compressed-tensors may round its factor otherwise, each by a rounding.
        """
        x = np.clip(gaussian(8, 64), -1.9, 1.9)
        values = nvfp4.dequantise(nvfp4.quantise(x, variant=variant))
        huge = nvfp4.dequantise(nvfp4.quantise(np.ldexp(x, power), variant=variant))
        assert np.ldexp(huge, -power) == pytest.approx(values, rel=2**-7 if variant == "compressed_tensors" else 3e-7)

    @pytest.mark.parametrize("recipe", [recipes.four_over_six, recipes.square, recipes.best_scale])
    def test_recipes_too(self, recipe):
        x = np.clip(gaussian(16, 64), -1.9, 1.9) * np.float32(2.0**127)
        values = nvfp4.dequantise(recipe(x)).astype(np.float64)
        assert np.isfinite(values).all() and relative_mse(x / F32.max, values / F32.max) < 0.02


class TestSubnormalGlobalScale:
    """Below an amax of 2688/3.4e38 = 7.9e-36 the reciprocal of G is infinite: what is left of a Gaussian tensor."""

    def error(self, amax, variant):
        x = gaussian(8, 64)
        x = (x / np.abs(x).max()).astype(np.float64) * amax
        q = nvfp4.quantise(x, variant=variant)
        values = nvfp4.dequantise(q).astype(np.float64)
        return relative_mse(x / amax, values / amax), q

    @pytest.mark.parametrize("variant", ALL)
    def test_all_are_well_just_above(self, variant):
        assert self.error(8e-36, variant)[0] < 0.01

    @pytest.mark.parametrize("amax", [1e-36, 1e-37, 1e-38, 1e-40, 1e-41])
    def test_modelopt_stays_as_good(self, amax):
        assert self.error(amax, "modelopt")[0] == pytest.approx(self.error(1e-20, "modelopt")[0], rel=0.05)

    @pytest.mark.parametrize("amax", [1e-36, 1e-38, 1e-41])
    def test_torchao_makes_every_element_the_largest(self, amax):
        """torchao 0.18.0 multiplies by (1/G)/s, which is infinite here."""
        error, q = self.error(amax, "torchao")
        assert (nvfp4.codes(q) & 7 == 7).all() and error > 1

    @pytest.mark.parametrize("variant", ["transformer_engine", "fouroversix"])
    def test_transformer_engine_loses_small_elements_first(self, variant):
        """E is held at 3.4e38, so quotients come out too small, by 7.9e-36 over amax."""
        error, q = self.error(1e-36, variant)
        x = (gaussian(8, 64) / np.abs(gaussian(8, 64)).max()).astype(np.float64) * 1e-36
        s = elements.decode(q.scales, E4M3).astype(np.float64).repeat(16, axis=-1)
        assert (nvfp4.codes(q) == elements.encode(x / s * float(F32.max), E2M1)).mean() > 0.99  # but near ties
        assert 0.5 < error < self.error(1e-37, variant)[0] < 1 == self.error(1e-40, variant)[0]

    def test_vllm_is_as_good_then_all_the_largest_then_nothing(self):
        """It holds 1/E at 2.9e-39: s·(1/E) has no reciprocal below s = 1, and there is no s below 2^-10."""
        assert self.error(1e-37, "vllm")[1].global_scale == float(np.float32(1) / F32.max)
        assert self.error(1e-37, "vllm")[0] == pytest.approx(self.error(1e-20, "vllm")[0], rel=0.05)
        assert (nvfp4.codes(self.error(1.7e-38, "vllm")[1]) & 7 == 7).all()
        error, q = self.error(1.7e-41, "vllm")
        assert error == 1 and not q.scales.any()

    def test_compressed_tensors_takes_1_for_an_infinite_scale(self):
        """compressed-tensors 0.20.1, quantization/utils/helpers.py: so the blocks' scales underflow, too."""
        q = self.error(1e-36, "compressed_tensors")[1]
        assert q.global_scale == 1 and not (nvfp4.codes(q) & 7).any()

    @pytest.mark.parametrize("variant", ["transformer_engine", "fouroversix"])
    def test_the_reciprocal_is_cut_at_the_largest_float32(self, variant):
        """So what is left of an element is at most 3.4e38 of it, not infinitely much; 0 stays 0."""
        x = np.array([7e-36, 1e-40, -1e-40, 0.0] * 4, np.float32)
        assert (nvfp4.codes(nvfp4.quantise(x, variant=variant))[1:4] & 7).tolist() == [0, 0, 0]
        alone = nvfp4.quantise(np.full(16, 1e-40, np.float32), variant=variant)  # 1e-40 · 3.4e38 = 0.03
        assert alone.scales[0] > 0 and not nvfp4.codes(alone).any()


class TestOrderOfOperations:
    """Where two orders of the same product differ, codes and values are those of the package's."""

    AMAXES = (5.0, 0.7, 3.3, 11.1)

    def grid(self, variant, amax):
        """Every scale twice: elements at the seven bounds between codes by the step s/E, and what E is."""
        s = elements.values(E4M3)[8:127]
        e = nvfp4.quantise(np.full(16, amax), variant=variant).globals().encode_scale
        bounds = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6], np.float32)
        x = (bounds * (s / e)[:, None]).repeat(2, axis=1)
        return x, s, e, np.arange(8, 127, dtype=np.uint8)[:, None]

    @pytest.mark.parametrize("amax", AMAXES)
    def test_compressed_tensors_divides_by_the_quotient(self, amax):
        x, s, e, scales = self.grid("compressed_tensors", amax)
        q = nvfp4.quantise_with(x, scales, amax=amax, variant="compressed_tensors")
        by_quotient = elements.encode(x / (s / e)[:, None], E2M1)
        assert (nvfp4.codes(q) == by_quotient).all()
        other = elements.encode(x / (s * (np.float32(1) / e))[:, None], E2M1)
        assert (other != by_quotient).any()  # so that this test can tell them apart

    @pytest.mark.parametrize("amax", AMAXES)
    def test_vllm_decodes_by_the_quotient(self, amax):
        x, s, e, scales = self.grid("vllm", amax)
        q = nvfp4.quantise_with(x, scales, amax=amax, variant="vllm")
        v = elements.decode(nvfp4.codes(q), E2M1)
        assert (nvfp4.dequantise(q) == v * (s / e)[:, None]).all()
        assert (v * (s / e)[:, None] != v * (s * (np.float32(1) / e))[:, None]).any()

    @pytest.mark.parametrize("amax", (*AMAXES, 5.503551483154297))  # the last of them tells the two orders apart
    def test_compressed_tensors_decodes_by_the_quotient(self, amax):
        x, s, e, scales = self.grid("compressed_tensors", amax)
        q = nvfp4.quantise_with(x, scales, amax=amax, variant="compressed_tensors")
        bits = (elements.decode(nvfp4.codes(q), E2M1) * (s / e)[:, None]).view(np.uint32)
        near = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        assert (nvfp4.dequantise(q).view(np.uint32) == near).all()

    def test_vllm_multiplies_by_1e_8_where_a_scale_is_zero(self):
        """1/(x + (x == 0)·1e8): 1e7 becomes 0.1, and the code 0."""
        x = np.concatenate([np.full(16, 1e7), [1e14], np.zeros(15)])
        q = nvfp4.quantise(x, variant="vllm")
        assert q.scales[0] == 0 and not nvfp4.codes(q)[:16].any()
        more = nvfp4.quantise(np.where(x == 1e7, 6e7, x), variant="vllm")
        assert more.scales[0] == 0 and (nvfp4.codes(more)[:16] == 1).all()  # 0.6 is nearest to 0.5

    def test_one_over_amax_is_rounded_first_by_torch(self):
        """2688·(1/amax), as torch computes a number over a tensor: not always 2688/amax."""
        amax = np.abs(gaussian(300))
        got = [nvfp4.quantise(np.full(16, a), variant="compressed_tensors").globals().encode_scale for a in amax]
        assert got == (np.float32(1) / amax * np.float32(2688)).tolist()
        assert got != (np.float32(2688) / amax).tolist()


class TestWhatIsNoTensor:
    @pytest.mark.parametrize("bad", [None, 1, "a", np.zeros((2, 8), np.uint8), [1, 2]])
    @pytest.mark.parametrize(
        "call",
        [nvfp4.dequantise, nvfp4.codes, checkpoint.to_modelopt, checkpoint.to_compressed_tensors],
        ids=lambda f: f.__name__,
    )
    def test_is_refused_by_name(self, call, bad):
        with pytest.raises(ValueError, match=f"{call.__name__}: q is of type .*; allowed: a Quantised"):
            call(bad)

    @pytest.mark.parametrize(
        "parts, says",
        [
            ([1], "part 0: q is of type int"),
            (None, "parts is None"),
            (7, "parts is 7"),
            ([None], "part 0: q is of type None"),
        ],
    )
    def test_fuse(self, parts, says):
        with pytest.raises(ValueError, match=f"fuse: {says}.*; allowed: a"):
            checkpoint.fuse(parts)
        if parts == [1]:
            with pytest.raises(ValueError, match="fuse: part 1: q is of type int"):
                checkpoint.fuse([nvfp4.quantise(np.ones(16)), *parts])

    @pytest.mark.parametrize(
        "codes",
        [
            np.zeros(4, np.int64),
            np.zeros(4),
            np.zeros(3, np.uint8),
            np.zeros((2, 5), np.uint8),
            np.array([0, 16], np.uint8),
            [1, 2],
            None,
        ],
    )
    def test_pack(self, codes):
        with pytest.raises(ValueError, match=r"pack: codes are .*; allowed: uint8 from 0 to 15, an even number"):
            nvfp4.pack(codes)

    def test_pack_of_nothing(self):
        assert nvfp4.pack(np.zeros((3, 0), np.uint8)).shape == (3, 0)

    @pytest.mark.parametrize(
        "change",
        [
            dict(packed=None), dict(packed=[1]), dict(scales="a"), dict(shape=None), dict(shape=32), dict(amax="1"),
            dict(amax=None), dict(global_scale="1"), dict(global_scale=[1.0]), dict(scale_max=None), dict(variant=None),
        ],
    )  # fmt: skip
    def test_parts(self, change):
        q = nvfp4.quantise(gaussian(2, 32))
        with pytest.raises(ValueError, match=r"allowed|known"):
            replace(q, **change)

    @pytest.mark.parametrize("tensors", [None, 1, "weight", [], {}, {1: 2}])
    def test_names(self, tensors):
        for call in (checkpoint.from_modelopt, checkpoint.from_compressed_tensors):
            with pytest.raises(ValueError, match=f"{call.__name__}: names are .*; allowed: exactly weight"):
                call(tensors)

    def test_numbers_of_a_checkpoint(self):
        for convert in (checkpoint.encode_from_decode, checkpoint.decode_from_encode):
            for bad in ("a", None, [1.0], True, 0.0, -1.0, np.nan):
                with pytest.raises(ValueError, match=r"code_scale is .*; allowed: above 0"):
                    convert(bad)
        tensors = checkpoint.to_modelopt(nvfp4.quantise(np.ones(16)))
        for change in (dict(weight_scale_2="a"), dict(weight_scale_2=None), dict(weight_scale=np.uint8(1)),
                       dict(weight=np.uint8(1)), dict(weight=None)):  # fmt: skip
            with pytest.raises(ValueError, match="allowed"):
                checkpoint.from_modelopt(tensors | change)

    @pytest.mark.parametrize("bad", [(-1, 4), (1.5, 4), ("a", 4), (4, None), (True, 4)])
    def test_unswizzle(self, bad):
        with pytest.raises(ValueError, match=r"unswizzle: (rows|columns) is .*; allowed: a whole number"):
            checkpoint.unswizzle(np.zeros(512, np.uint8), *bad)

    def test_swizzle_takes_bytes(self):
        with pytest.raises(ValueError, match=r"scales is int64 of shape \(2, 4\); allowed: bytes"):
            checkpoint.swizzle(np.zeros((2, 4), np.int64))


class TestElements:
    @pytest.mark.parametrize("fmt", elements.ELEMENTS.values(), ids=lambda f: f.name)
    def test_every_code_comes_back(self, fmt):
        codes = np.arange(2**fmt.n_bits)
        values = elements.decode(codes, fmt)
        known = np.isfinite(values)
        assert (elements.encode(values[known], fmt) == codes[known]).all()
        assert np.nanmax(values) == fmt.largest and values[1] == fmt.smallest
        assert 2**fmt.largest_exponent <= fmt.largest < 2 ** (fmt.largest_exponent + 1)
        assert known.sum() == {"e2m1": 16, "e4m3": 254, "e5m2": 248}[fmt.name]

    @pytest.mark.parametrize("fmt", elements.ELEMENTS.values(), ids=lambda f: f.name)
    def test_midpoints_and_their_neighbours(self, fmt):
        values = elements.values(fmt)[: 2 ** (fmt.n_bits - 1)]
        values = values[np.isfinite(values)]
        middle = (values[1:] + values[:-1]) / 2
        below = np.arange(len(middle))
        assert (elements.encode(middle, fmt) == below + below % 2).all()
        assert (elements.encode(np.nextafter(middle, np.float32(0)), fmt) == below).all()
        assert (elements.encode(np.nextafter(middle, np.float32(1e9)), fmt) == below + 1).all()

    @settings(max_examples=60, deadline=None)
    @given(x=finite, fmt=st.sampled_from([E2M1, E4M3, E5M2]))
    def test_nearest(self, x, fmt):
        values = elements.values(fmt)
        got = float(values[elements.encode(x, fmt)])
        assert abs(got - x) == np.nanmin(np.abs(values.astype(np.float64) - x))

    def test_against_ml_dtypes(self):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        x = np.concatenate([gaussian(10_000) * s for s in (1e-3, 1, 30)])
        for fmt, dtype in ((E2M1, "float4_e2m1fn"), (E4M3, "float8_e4m3fn"), (E5M2, "float8_e5m2")):
            other = np.clip(x, -fmt.largest, fmt.largest).astype(getattr(ml_dtypes, dtype)).view(np.uint8)
            assert (elements.encode(x, fmt) == other & (2**fmt.n_bits - 1)).all()

    def test_refusals(self):
        with pytest.raises(ValueError, match="codes of e2m1 are whole numbers from 0 to 15"):
            elements.decode([16], E2M1)
        with pytest.raises(ValueError, match="unknown element 'e3m2'"):
            elements.element("e3m2")


class TestCheckpoint:
    @pytest.mark.parametrize("seed", range(3))
    def test_both_conventions_come_back_to_the_bit(self, seed):
        x = gaussian(16, 64, seed=seed) * 0.02
        q = nvfp4.quantise(x)
        back = checkpoint.from_modelopt(checkpoint.to_modelopt(q))
        assert back.global_scale == q.global_scale and (nvfp4.dequantise(back) == nvfp4.dequantise(q)).all()
        q = nvfp4.quantise(x, variant="compressed_tensors")
        back = checkpoint.from_compressed_tensors(checkpoint.to_compressed_tensors(q))
        assert (nvfp4.dequantise(back) == nvfp4.dequantise(q)).all()

    def test_every_number_survives_compressed_tensors_names(self):
        """E of 300 tensors to the bit: out, in, out again; it is what the package stores, 2688·(1/amax)."""
        for amax in np.abs(gaussian(300, seed=4)).tolist():
            q = nvfp4.quantise(np.full(16, amax), variant="compressed_tensors")
            first = checkpoint.to_compressed_tensors(q)
            back = checkpoint.from_compressed_tensors(first)
            stored = first["weight_global_scale"]
            assert stored == np.float32(1) / np.float32(amax) * np.float32(2688)
            assert checkpoint.to_compressed_tensors(back)["weight_global_scale"] == stored
            assert back.global_scale == q.global_scale
            assert (nvfp4.dequantise(back) == nvfp4.dequantise(q)).all()

    @pytest.mark.parametrize("n", [n for n in range(1, 2689) if 2688 % n == 0])
    def test_a_divisor_that_stands_for_a_float32_amax(self, n):
        """2688/E is a float32 then, from which E would be computed anew, sometimes to another number."""
        q = checkpoint.to_compressed_tensors(nvfp4.quantise(np.ones(16), variant="compressed_tensors"))
        for stored in (np.float32(n), np.float32(n / 1024)):
            back = checkpoint.from_compressed_tensors(q | dict(weight_global_scale=np.array([stored])))
            assert checkpoint.to_compressed_tensors(back)["weight_global_scale"] == stored
            assert np.float32(back.amax) == np.float32(2688) / stored

    def test_names_and_numbers(self):
        q = nvfp4.quantise(gaussian(16, 64))
        theirs, ours = checkpoint.to_compressed_tensors(q), checkpoint.to_modelopt(q)
        assert theirs["weight_global_scale"].shape == (1,) and theirs["weight_global_scale"].dtype == np.float32
        assert float(theirs["weight_global_scale"][0]) == pytest.approx(2688 / q.amax, rel=1e-6)
        assert float(ours["weight_scale_2"]) == pytest.approx(q.amax / 2688, rel=1e-6)
        assert (theirs["weight_packed"] == ours["weight"]).all()

    @pytest.mark.parametrize("bad", [0.0, -1.0, np.inf, np.nan])
    def test_refuses_such_a_global_scale(self, bad):
        tensors = checkpoint.to_modelopt(nvfp4.quantise(gaussian(2, 16)))
        with pytest.raises(ValueError, match=r"weight_scale_2 is .*; allowed: one finite number above 0"):
            checkpoint.from_modelopt({**tensors, "weight_scale_2": np.float32(bad)})

    @pytest.mark.parametrize("shape", [(1, 1), (128, 4), (129, 5), (300, 20), (1, 7)])
    def test_swizzle_and_back(self, shape):
        scales = np.random.default_rng(0).integers(0, 127, shape).astype(np.uint8)
        flat = checkpoint.swizzle(scales)
        n_tiles = -(-shape[0] // 128) * -(-shape[1] // 4)
        assert flat.size == 512 * n_tiles and (checkpoint.unswizzle(flat, *shape) == scales).all()
        for r, c in np.ndindex(shape):  # the formula of cuBLAS's documentation
            at = ((r // 128 * -(-shape[1] // 4) + c // 4) * 32 + r % 32) * 16 + r % 128 // 32 * 4 + c % 4
            assert flat[at] == scales[r, c]

    def test_unswizzle_refuses_another_length(self):
        with pytest.raises(ValueError, match=r"512 scales for \(129, 4\); allowed: 1024"):
            checkpoint.unswizzle(np.zeros(512, np.uint8), 129, 4)
        with pytest.raises(ValueError, match=r"scales is uint8 of shape \(4,\); allowed: bytes"):
            checkpoint.swizzle(np.zeros(4, np.uint8))

    def test_fuse_refuses_rows_of_another_kind(self):
        x = gaussian(2, 32)
        with pytest.raises(ValueError, match="part 1 has another variant"):
            checkpoint.fuse([nvfp4.quantise(x), nvfp4.quantise(x, variant="torchao")])
        with pytest.raises(ValueError, match=r"parts is \[\]; allowed: a list of at least one"):
            checkpoint.fuse([])

    def test_fuse_refuses_another_amax_behind_the_same_global_scale(self):
        """Variants that decode with amax would decode the second part with the first's."""
        amax = next(a for a in np.linspace(1, 2, 999, dtype=np.float32)
                    if a / np.float32(2688) == np.nextafter(a, np.float32(9)) / np.float32(2688))  # fmt: skip
        x = np.ones((1, 16))
        parts = [nvfp4.quantise(x, amax=float(a)) for a in (amax, np.nextafter(amax, np.float32(9)))]
        assert parts[0].global_scale == parts[1].global_scale
        with pytest.raises(ValueError, match="fuse: part 1 has global_scale .*; allowed: one shared"):  # noqa: RUF043
            checkpoint.fuse(parts)

    def test_fuse_refuses_another_scale_max(self):
        """Zeros have the same G whatever the largest scale was meant to be."""
        zeros = np.zeros((1, 16))
        parts = nvfp4.quantise(zeros, variant="transformer_engine"), recipes.four_over_six(zeros)
        with pytest.raises(ValueError, match="part 1 has another variant, scale_max or row shape"):
            checkpoint.fuse(parts)
        with pytest.raises(ValueError, match="part 1 has another variant, scale_max or row shape"):
            checkpoint.fuse([nvfp4.quantise(zeros), nvfp4.quantise(np.zeros((1, 32)))])


@pytest.mark.parametrize("variant", sorted(variants.VARIANTS))
def test_scales_that_lie_beyond_float32_decode_to_finite_values(variant):
    """The step 448·G is infinite in float32 where G is that of a much smaller scale_max."""
    x, scales = np.repeat([[0.0, 1e37]], 8, axis=1), np.array([[0x7E]], np.uint8)
    q = nvfp4.quantise_with(x, scales, amax=1e37, scale_max=1, variant=variant)
    assert np.isfinite(nvfp4.dequantise(q)).all()
    forced = replace(q, packed=np.full_like(q.packed, 0xF7))
    most = float(np.finfo(np.float32).max)
    assert np.abs(nvfp4.dequantise(forced)).tolist() == [[pytest.approx(most, rel=0.01)] * 16]  # bfloat16's is lower
