import dataclasses

import numpy as np
import pytest

from codesign_lib.specs import formats
from codesign_lib.specs.formats import FORMATS, Precision, as_format
from codesign_lib.specs.hardware import chip


@pytest.mark.parametrize(
    ("name", "bytes_per_element"),
    [
        ("bf16", 2.0),
        ("fp8", 1.0),
        ("fp8_block", 1 + 4 / 128**2),
        ("nvfp4", 0.5625),  # 4.5 bits: NVIDIA, Introducing NVFP4
        ("mxfp4", 0.53125),
        ("mxfp8", 1.03125),
        ("int8", 1.0),
        ("fp4_payload", 0.5),
    ],
)
def test_bytes_with_scales(name, bytes_per_element):
    assert as_format(name).bytes_per_element == bytes_per_element


def test_every_format_is_listed_under_its_name():
    assert all(FORMATS[name].name == name for name in FORMATS)
    assert {f for f in vars(formats).values() if isinstance(f, formats.Format)} == set(FORMATS.values())


@pytest.mark.parametrize("bad", ["fp16", "BF16", "", None, 4, np.float32])
def test_unknown_format(bad):
    with pytest.raises(ValueError, match=r"unknown format .*; known: bf16, fp8"):
        as_format(bad)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"payload_bits": 0}, "payload_bits is 0; allowed: whole numbers of at least 1"),
        ({"payload_bits": 4.5}, "payload_bits is 4.5"),
        ({"scale_bits": -8}, "scale_bits is -8"),
        ({"block_elements": 0}, "block_elements is 0"),
        ({"peak": "power_w"}, "peak is 'power_w'; allowed: a rate of a chip"),
    ],
)
def test_a_format_is_checked(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(formats.NVFP4, **change)


def test_a_format_that_no_chip_multiplies_is_refused():
    fp3 = dataclasses.replace(formats.NVFP4, name="fp3", payload_bits=3, peak="fp3_flops_per_s")
    with pytest.raises(ValueError, match="GB300 has no fp3 peak"):
        chip("gb300").peak_flops_per_s(fp3)


def test_fp4_payload_runs_at_the_rate_of_nvfp4():
    assert formats.FP4_PAYLOAD.peak == formats.NVFP4.peak


class TestPrecision:
    def test_arithmetic_is_the_activations(self):
        assert Precision(weights="nvfp4", activations="nvfp4", kv="fp8").arithmetic is formats.NVFP4
        assert Precision(weights="nvfp4", activations="bf16", kv="bf16").arithmetic is formats.BF16

    def test_head_stays_bf16_unless_said(self):
        assert Precision(weights="fp8", activations="fp8", kv="fp8").head is formats.BF16
        assert Precision(weights="fp8", activations="fp8", kv="fp8", head="fp8").head is formats.FP8

    def test_refuses_weights_wider_than_activations(self):
        with pytest.raises(ValueError, match="weights in bf16 are wider than activations in fp8"):
            Precision(weights="bf16", activations="fp8", kv="fp8")

    def test_refuses_unknown_format(self):
        with pytest.raises(ValueError, match="unknown format 'int4'"):
            Precision(weights="int4", activations="bf16", kv="bf16")
