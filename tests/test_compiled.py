"""NVFP4 by compiled loops: numpy's bits. The loops are also run as plain Python, where numba need not be installed."""

import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from codesign_lib.lowbit import blocks, compiled, nvfp4, variants

ALL = tuple(variants.VARIANTS)
F32 = np.finfo(np.float32)
TIES = [0.0, -0.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.2, -0.25, -1.75, -5.0]
SMALL = [float(F32.smallest_subnormal), -3e-45, 1e-40, -1e-38, 1e-37]
HUGE = [float(F32.max), -float(F32.max), 1e38]

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
number = st.one_of(finite, st.floats(min_value=-1e4, max_value=1e4, width=32), st.sampled_from(TIES + SMALL + HUGE))
one_scale = st.one_of(*(st.sampled_from([0.0, -0.0, *kind]) for kind in (TIES, SMALL, HUGE)))
some_blocks = st.one_of(*(arrays(np.float32, st.tuples(st.integers(1, 2), st.just(32)), elements=e)
                          for e in (number, one_scale, st.sampled_from(SMALL))))  # fmt: skip
amaxes = st.one_of(st.none(), st.floats(min_value=2**-149, max_value=2**126, width=32))
examples = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["python", "numba"])
def loops(request, monkeypatch):
    """The loops as they are written, and as numba compiles them."""
    if request.param == "python":
        plain = compiled._largest_of_blocks, compiled._encode, compiled._decode
        monkeypatch.setattr(compiled, "_kernels", lambda: plain)
    else:
        pytest.importorskip("numba", reason="numba is not installed")


def gaussian(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same(x, **options):
    """Everything that is stored, and every decoded value, to the bit."""
    ours, numpys = compiled.quantise(x, **options), nvfp4.quantise(x, **options)
    for name in ("global_scale", "amax", "shape", "variant", "scale_max"):
        assert getattr(ours, name) == getattr(numpys, name)
    assert (ours.packed == numpys.packed).all() and (ours.scales == numpys.scales).all()
    values, expected = compiled.dequantise(ours), nvfp4.dequantise(numpys)
    assert values.shape == expected.shape and (values.view(np.uint32) == expected.view(np.uint32)).all()


@pytest.mark.usefixtures("loops")
class TestSameBits:
    @pytest.mark.parametrize("variant", ALL)
    @examples
    @given(x=some_blocks, amax=amaxes)
    def test_float32(self, variant, x, amax):
        same(x, variant=variant, amax=amax)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
    @examples
    @given(x=arrays(np.float32, (2, 16), elements=number), variant=st.sampled_from(ALL))
    def test_other_dtypes(self, dtype, x, variant):
        if dtype == "bfloat16":
            dtype = pytest.importorskip("ml_dtypes").bfloat16
        with np.errstate(over="ignore"):
            x = x.astype(dtype)
        same(np.where(np.isfinite(x), x, x.dtype.type(1)), variant=variant)

    @pytest.mark.parametrize("variant", ALL)
    def test_every_code_of_an_element_and_of_a_scale(self, variant):
        """Elements around every midpoint, in blocks whose scales run through E4M3."""
        middle = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
        around = np.concatenate([np.nextafter(middle, np.float32(s)) for s in (0, 9)] + [middle, [0.0]])
        x = np.array([6.0, *around, -0.0, *-around, 5.9, 6.1][:48], np.float32).reshape(3, 16)
        x[:, 0] = 6
        scales = np.exp2(np.arange(-12, 9))[:, None, None] * np.array([1, 1.125, 1.5, 1.8125])[:, None, None, None]
        same((x * scales).reshape(-1, 16), variant=variant, amax=2688.0)

    @pytest.mark.parametrize("variant", ALL)
    def test_strides_padding_and_empty_arrays(self, variant):
        wide = gaussian(6, 2, 80)
        frozen = wide.copy()
        frozen.flags.writeable = False
        unaligned = np.frombuffer(b"\0" + wide.tobytes(), np.uint8)[1:].view(np.float32)
        for x in (wide[:, 1, ::2], wide.T, frozen, unaligned, wide.astype(">f4"), np.zeros((2, 0)), np.zeros((0, 16))):
            same(x, variant=variant, pad=True)

    def test_pieces_do_not_matter(self, monkeypatch):
        monkeypatch.setattr(blocks, "PIECE_ELEMENTS", 64)
        same(gaussian(7, 80))

    def test_input_is_not_changed(self):
        x = gaussian(4, 32)
        before = x.copy()
        same(x)
        assert (x == before).all()

    def test_scales_that_somebody_chose(self):
        for variant in ALL:
            q = nvfp4.quantise_with(gaussian(8, 2032), np.resize(np.arange(127, dtype=np.uint8), (8, 127)), amax=9.0,
                                    variant=variant)  # fmt: skip
            assert compiled.dequantise(q).tobytes() == nvfp4.dequantise(q).tobytes()

    def test_ties_of_bfloat16(self):
        n_ties = 0
        for k in range(3, 256, 4):  # 1 + k/256 lies between two bfloat16s, the lower of them odd
            amax = 2688 * (1 + k / 256)
            q = nvfp4.quantise_with(np.ones(16), np.array([0x38], np.uint8), amax=amax, variant="compressed_tensors")
            n_ties += variants.COMPRESSED_TENSORS.steps(q.scales, q.globals())[0] == 1 + k / 256
            assert compiled.dequantise(q).tobytes() == nvfp4.dequantise(q).tobytes()
        assert n_ties > 10

    @pytest.mark.parametrize("variant", ALL)
    def test_all_zeros(self, variant):
        for amax in (None, 0.0, 1.0):
            same(np.zeros((2, 32)), variant=variant, amax=amax)


class TestRefusals:
    @pytest.mark.parametrize("bad", [
        dict(x=[np.nan] * 16), dict(x=[[0.0] * 16, [0.0] * 15 + [np.inf]]), dict(x=[1e39] * 16), dict(x=[1] * 16),
        dict(x=1.0), dict(x=[[1.0], [1.0, 2.0]]), dict(x=[1.0] * 17), dict(x=[1.0] * 17, pad=1),
        dict(x=[1.0] * 16, variant="te"), dict(x=[1.0] * 16, amax=0.0), dict(x=[1.0] * 16, amax=np.nan),
        dict(x=np.ma.array(np.ones(16), mask=[True] + [False] * 15)),
    ])  # fmt: skip
    @pytest.mark.usefixtures("loops")
    def test_the_same_as_numpys(self, bad):
        with pytest.raises(ValueError) as numpys:
            nvfp4.quantise(**bad)
        with pytest.raises(ValueError) as ours:
            compiled.quantise(**bad)
        assert str(ours.value) == str(numpys.value)

    @pytest.mark.parametrize("call", [lambda: compiled.quantise(np.zeros(16)),
                                      lambda: compiled.dequantise(nvfp4.quantise(np.zeros(16)))])  # fmt: skip
    def test_says_that_numba_is_missing(self, call, monkeypatch):
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name == "numba":
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        for name in [n for n in sys.modules if n.split(".")[0] == "numba"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
        compiled._kernels.cache_clear()
        with pytest.raises(
            ModuleNotFoundError, match=r"lowbit\.compiled needs numba: pip install numba; lowbit\.nvfp4"
        ):
            call()


def test_working_memory():
    pytest.importorskip("numba", reason="numba is not installed")
    x = np.ones((4096, 4096), np.float32)
    compiled.quantise(x[:16])
    tracemalloc.start()
    q = compiled.quantise(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - q.packed.nbytes - q.scales.nbytes <= 0.1 * x.nbytes
