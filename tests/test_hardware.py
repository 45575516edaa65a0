import dataclasses

import numpy as np
import pytest

from codesign_lib.specs import hardware
from codesign_lib.specs.hardware import CHIPS, chip

WANTED = ["a100_sxm", "h100_sxm", "h200_sxm", "h20", "b200_sxm", "b300_sxm", "gb200", "gb300"]
WANTED += ["mi300x", "mi355x", "tpu_v5p", "tpu_v6e"]


def test_the_chips_of_the_book():
    assert list(CHIPS) == WANTED
    assert all(CHIPS[name].name == name for name in CHIPS)


@pytest.mark.parametrize("bad", ["h100", "GB300", "", None, 300])
def test_unknown_chip(bad):
    with pytest.raises(ValueError, match=r"unknown chip .*; known: a100_sxm, h100_sxm"):
        chip(bad)


@pytest.mark.parametrize(
    ("name", "fmt"),
    [("h100_sxm", "nvfp4"), ("h200_sxm", "nvfp4"), ("a100_sxm", "fp8"), ("mi300x", "mxfp4"), ("gb300", "mxfp4")],
)
def test_a_format_without_peak_is_refused(name, fmt):
    with pytest.raises(ValueError, match=rf"{CHIPS[name].title} has no {fmt} peak; it has bf16"):
        chip(name).peak_flops_per_s(fmt)


def test_unknown_format_is_refused():
    with pytest.raises(ValueError, match="unknown format 'fp16'"):
        chip("gb300").peak_flops_per_s("fp16")


def test_int8_of_blackwell_ultra_is_cut_but_there():
    assert chip("gb300").peak_flops_per_s("int8") == 165e12
    assert chip("b300_sxm").peak_flops_per_s("int8") == 153.5e12


def test_fp8_block_multiplies_at_the_rate_of_fp8():
    assert chip("h100_sxm").peak_flops_per_s("fp8_block") == chip("h100_sxm").peak_flops_per_s("fp8")


@pytest.mark.parametrize(
    ("name", "per_clock"),
    [("h100_sxm", 4 * 512 * 2), ("a100_sxm", 4 * 256 * 2), ("mi300x", 2048), ("mi355x", 4096)],
)
def test_bf16_peak_is_units_times_clock(name, per_clock):
    # published: FLOP a clock and SM (or compute unit); H100: 989.43e12
    c = chip(name)
    assert c.n_sms * c.clock_hz * per_clock == pytest.approx(c.bf16_flops_per_s, rel=1e-2)


def test_sparse_peaks_are_not_taken_for_dense_ones():
    for c in CHIPS.values():
        if c.fp8_flops_per_s and not c.name.startswith("tpu"):
            assert c.fp8_flops_per_s == pytest.approx(2 * c.bf16_flops_per_s, rel=1e-3), c.name


TOPOLOGY = {"mi300x": "mesh", "mi355x": "mesh", "tpu_v5p": "torus", "tpu_v6e": "torus"}


@pytest.mark.parametrize("name", WANTED)
def test_links_are_one_direction_and_fit_their_topology(name):
    c = chip(name)
    assert c.link_topology == TOPOLOGY.get(name, "switch")
    n_links = c.link_bytes_per_s / c.link_peer_bytes_per_s
    assert n_links == {"mesh": 7, "tpu_v5p": 6, "tpu_v6e": 4}.get(name, {"mesh": 7}.get(c.link_topology, 1))


def test_nvl72_is_one_domain_and_hgx_one_of_eight():
    assert {name: chip(name).n_scale_up for name in ("gb200", "gb300", "h100_sxm", "b200_sxm")} == {
        "gb200": 72, "gb300": 72, "h100_sxm": 8, "b200_sxm": 8,
    }  # fmt: skip


def test_other_values_differ_from_the_chosen_one():
    for c in CHIPS.values():
        for other in c.others:
            assert getattr(c, other.field) != other.value, (c.name, other)
            assert other.source
            assert other.reading


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("gb200", "nvfp4_flops_per_s", 9e15),
        ("b300_sxm", "nvfp4_flops_per_s", 13e15),
        ("b300_sxm", "nvfp4_flops_per_s", 12.6e15),
        ("b200_sxm", "nvfp4_flops_per_s", 10e15),
        ("b200_sxm", "hbm_bytes_per_s", 8.0e12),
        ("gb200", "hbm_bytes", 186e9),
        ("gb300", "hbm_bytes", 288e9),
        ("gb300", "int8_ops_per_s", 5e15),
        ("b300_sxm", "power_w", 1000.0),
        ("b200_sxm", "nvfp4_flops_per_s", 18e15),
        ("b300_sxm", "nvfp4_flops_per_s", 18e15),
        ("gb200", "nvfp4_flops_per_s", 20e15),
        ("gb300", "nvfp4_flops_per_s", 20e15),
        ("b300_sxm", "nvfp4_flops_per_s", 15e15),
        ("gb200", "bf16_flops_per_s", 2.25e15),
        ("gb200", "fp8_flops_per_s", 4.5e15),
        ("b300_sxm", "fp8_flops_per_s", 7e15),
        ("b300_sxm", "bf16_flops_per_s", 3.5e15),
        ("gb300", "bf16_flops_per_s", 5e15),
        ("gb300", "fp8_flops_per_s", 10e15),
        ("b200_sxm", "hbm_bytes", 192e9),
        ("gb200", "hbm_bytes", 189e9),
        ("gb200", "hbm_bytes", 192e9),
        ("gb300", "hbm_bytes", 279e9),
        ("gb300", "int8_ops_per_s", 319e12),
        ("gb300", "link_bytes_per_s", 1.8e12),
        ("b200_sxm", "link_bytes_per_s", 1.8e12),
        ("b200_sxm", "l2_bytes", 126e6),
    ],
)
def test_known_disagreements_are_kept(name, field, value):
    assert any((o.field, o.value) == (field, value) for o in chip(name).others)


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf")])
def test_what_if_with_nonsense_is_refused(bad):
    with pytest.raises(ValueError, match=r"GB300.hbm_bytes_per_s is .*; allowed: a finite number above 0"):
        dataclasses.replace(chip("gb300"), hbm_bytes_per_s=bad)


@pytest.mark.parametrize(
    ("field", "bad"),
    [("hbm_bytes_per_s", None), ("hbm_bytes_per_s", "8e12"), ("n_sms", True), ("n_sms", 1.5), ("n_scale_up", 0)],
)
def test_what_if_with_another_type_is_refused(field, bad):
    with pytest.raises(ValueError, match=rf"GB300.{field} is .*; allowed: a (finite|whole) number above 0"):
        dataclasses.replace(chip("gb300"), **{field: bad})


def test_numpy_scalars_are_numbers():
    assert dataclasses.replace(chip("gb300"), n_sms=np.int64(148)).n_sms == 148


def test_other_values_stand_for_a_field():
    other = hardware.Other(field="hbm", value=1.0, source="x", reading="y")
    with pytest.raises(ValueError, match="another value of 'hbm'; allowed: a field of Chip"):
        dataclasses.replace(chip("gb300"), others=(other,))


def test_what_if_topology_is_checked():
    with pytest.raises(ValueError, match="allowed: switch, mesh, torus"):
        dataclasses.replace(chip("gb300"), link_topology="star")


def test_a_what_if_chip_passes_through():
    faster = dataclasses.replace(chip("gb300"), hbm_bytes_per_s=22e12)
    assert hardware.chip(faster) is faster
