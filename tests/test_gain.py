"""What a narrower format gains: the law and its inverse, parts that add up, users' numbers, measured rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign_lib.cost import gain, kernels
from codesign_lib.report.claims import gemm as measured
from codesign_lib.specs import models
from codesign_lib.specs.formats import FP8, NVFP4

CHIPS = ("b200_sxm", "gb300")
shares = st.floats(min_value=0, max_value=1)


def test_ceilings_by_hand():
    assert gain.most() == pytest.approx(1 / 0.5625) and gain.most("bf16") == pytest.approx(2 / 0.5625)
    assert gain.speedup(1.0) == pytest.approx(gain.most()) and gain.speedup(0.0) == 1
    assert gain.speedup(0.5, before="bf16") == pytest.approx(1 / (0.5 + 0.5 * 0.28125))


@given(share=shares)
def test_there_and_back(share):
    for before in ("bf16", "fp8"):
        assert gain.reading_share(gain.speedup(share, before=before), before=before) == pytest.approx(share, abs=1e-9)


def test_what_users_saw():
    """flashinfer issue 2268: 1.3, 1.35 and 1.4 times mean 53, 59 and 65 % of the step."""
    assert gain.reading_share([1.3, 1.35, 1.4]).round(2).tolist() == [0.53, 0.59, 0.65]
    assert gain.reading_share(0.9) < 0  # slower: something else grew


def test_a_wider_format():
    """From FP8 to BF16 0.6× means (1/0.6 − 1)/(2 − 1) = 2/3 of the time, and 1.25× something else that shrank."""
    assert gain.reading_share([0.6, 0.5, 1.0], before="fp8", after="bf16") == pytest.approx([2 / 3, 1, 0])
    assert gain.reading_share(1.25, before="fp8", after="bf16") == pytest.approx(-0.2)
    assert gain.speedup(2 / 3, before="fp8", after="bf16") == pytest.approx(0.6)


def test_more_than_bytes_allow_is_an_error():
    with pytest.raises(ValueError, match=r"gained is 1\.9×.*FP8 to NVFP4.*1\.778×; allowed: at most that"):
        gain.reading_share([1.2, 1.9])
    assert gain.reading_share(gain.most()) == pytest.approx(1)
    with pytest.raises(ValueError, match=r"gained is 1\.779×.*; allowed: at most that"):
        gain.reading_share(gain.most() * 1.0005)
    with pytest.raises(ValueError, match=r"gained is 0\.499.×.*; allowed: at least that"):
        gain.reading_share(0.4999, before="fp8", after="bf16")
    with pytest.raises(ValueError, match=r"gained is 0\.4×.*FP8 to BF16.*0\.5×; allowed: at least that"):
        gain.reading_share([0.6, 0.4], before="fp8", after="bf16")
    with pytest.raises(ValueError, match="FP8 and FP8 take the same bytes"):
        gain.reading_share(1.0, before="fp8", after="fp8")
    for bad in (-0.1, 1.1):
        with pytest.raises(ValueError, match="share is .*; allowed: 0 to 1"):  # noqa: RUF043
            gain.speedup(bad)


@pytest.mark.parametrize("engine", kernels.ENGINES)
@pytest.mark.parametrize("chip", CHIPS)
def test_parts_of_a_product_add_up(chip, engine):
    m, k, n = np.array([1, 64, 8192])[:, None], 7168, np.array([256, 2048, 16384])
    found = gain.gemm(m, k, n, chip=chip, engine=engine, before="bf16")
    for fmt, parts in (("bf16", found.before_s), ("nvfp4", found.after_s)):
        assert all(np.all(p >= 0) for p in parts.values())
        whole = kernels.gemm_s(m, k, n, chip=chip, fmt=fmt, engine=engine)
        assert sum(parts.values()) == pytest.approx(whole, rel=1e-12)
    assert found.speedup.shape == found.most.shape == (3, 3)
    assert sum(found.share(part) for part in found.after_s) == pytest.approx(np.ones((3, 3)))
    missing = sum(found.after_s.values()) - sum(found.before_s.values()) / found.most
    assert sum(found.kept_s().values()) == pytest.approx(missing)


def test_the_most_is_the_ratio_of_the_bounds():
    found = gain.gemm([1, 8192], 8192, 8192, chip="gb300", before="bf16")
    assert found.most == pytest.approx([2 / 0.5625, 6], rel=1e-2)  # bytes of weights; peaks


@pytest.mark.parametrize("engine", kernels.ENGINES)
def test_never_4_over_bf16_in_any_measured_row(engine):
    times = measured._times()
    both = [(times[c, e, "bf16", *s] / t, *s) for (c, e, f, *s), t in times.items() if e == engine and f == "nvfp4"
            and (c, e, "bf16", *s) in times]  # fmt: skip
    assert len(both) > 200 and 3 < max(both)[0] < 4


def test_the_share_of_the_quantisation_pass_falls_with_n():
    found = gain.gemm(8192, 8192, [256, 1024, 4096, 16384], chip="gb300")
    share = found.share("quantisation")
    assert np.all(np.diff(share) < 0) and share[0] > 0.5 > share[-1]


def test_a_step_by_hand():
    model, where = models.model("llama_3_1_8b"), {"chip": "gb300", "engine": "sglang"}
    found = gain.decode_step(model, 4096, n_batch=8, **where)
    body = [x for x in model.linear_layers() if x.name != "head"]
    linear = {f: sum(x.count * kernels.gemm_s(8, x.k, x.n, fmt=f, **where) for x in body) for f in ("fp8", "nvfp4")}
    for fmt, parts in (("fp8", found.before_s), ("nvfp4", found.after_s)):
        assert parts["launch"] + parts["quantisation"] + parts["products"] == pytest.approx(linear[fmt])
        assert parts["head"] == kernels.gemm_s(8, 4096, 128256, fmt="bf16", **where)
    assert found.before_s["attention"] == found.after_s["attention"]
    assert 1 < found.speedup < found.most < gain.most()
    fixed = found.before_s["head"] + found.before_s["attention"]
    whole = sum(found.before_s.values())
    assert found.most == pytest.approx(gain.speedup(1 - fixed / whole))


def test_what_the_change_cannot_touch_is_not_missing():
    parts = dict(weights=np.float64(8.0), attention=np.float64(2.0))
    now = dict(weights=np.float64(3.0), attention=np.float64(2.0))
    found = gain.Gain(before=FP8, after=NVFP4, before_s=parts, after_s=now, ratio=np.float64(2), fixed=("attention",))
    assert found.most == 10 / 6 and found.speedup == 2
    assert found.kept_s() == dict(weights=-1.0, attention=0.0)
    assert found.why().endswith("Missing of the time now: −20 %; weights −20 %.")


def test_both_sides_have_the_same_parts():
    one, two = dict(a=np.float64(1)), dict(a=np.float64(1), b=np.float64(1))
    with pytest.raises(ValueError, match="Gain: before_s holds a, after_s a, b; allowed: the same parts"):
        gain.Gain(before=FP8, after=NVFP4, before_s=one, after_s=two, ratio=np.float64(2))
    with pytest.raises(ValueError, match="Gain: fixed holds c; allowed: a"):
        gain.Gain(before=FP8, after=NVFP4, before_s=one, after_s=one, ratio=np.float64(2), fixed=("c",))


def test_attention_dilutes_the_gain():
    gains = [gain.decode_step("qwen3_32b", s, n_batch=32, chip="gb300").speedup for s in (128, 4096, 65_536)]
    assert gains == sorted(gains, reverse=True) and gains[-1] < 1.03


def test_a_narrower_head_gains():
    head = {h: gain.decode_step("llama_3_1_8b", 4096, n_batch=1, chip="gb300", engine="sglang", head=h)
            for h in ("bf16", "nvfp4")}  # fmt: skip
    assert sum(head["nvfp4"].after_s.values()) < sum(head["bf16"].after_s.values())


def test_why():
    told = gain.gemm(1, 8192, 8192, chip="gb300").why()
    assert told.startswith("1.22× from FP8 to NVFP4; 1.78× was possible. In µs, before → now: tiles 2.4 → 8.7")
    step = gain.decode_step("qwen3_32b", 4096, n_batch=16, chip="gb300").why()
    assert "launch 3,464 → 1,911" in step and "attention 1,933 → 1,933" in step
    found = gain.gemm(16, 8192, 8192, chip="gb300", engine="sglang")
    kept, now = found.kept_s(), sum(found.after_s.values())
    assert sum(kept.values()) / now == pytest.approx(1 - found.speedup / found.most)
    assert found.why().endswith("Missing of the time now: 16 %; tiles 14 %, launch 8 %, weights −6 %.")
    with pytest.raises(ValueError, match=r"Gain\.why: sizes are arrays"):
        gain.gemm([1, 2], 8192, 8192, chip="gb300").why()


def test_refusals():
    with pytest.raises(ValueError, match="part is 'host'; allowed: launch, quantisation, tiles, weights, activations"):
        gain.gemm(1, 8192, 8192, chip="gb300").share("host")
    for name in ("deepseek_r1", "gpt_oss_20b", "nemotron_h_56b"):
        with pytest.raises(ValueError, match=r"decode_step: .* has other layers than attention and dense FFNs"):
            gain.decode_step(name, 4096, n_batch=1, chip="gb300")
    with pytest.raises(ValueError, match="H100 SXM has no nvfp4"):
        gain.gemm(1, 8192, 8192, chip="h100_sxm")
