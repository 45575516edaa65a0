"""Chips: what one accelerator offers, with the source of every number and the values other sources print.

Rates are dense: where a sheet prints the rate with 2:4 sparsity, the division by two is left visible. Bandwidths of
links are one direction. Capacities are what software can allocate where that is known (an "80 GB" H100 has
81,559 MiB). What is not public is ``None``, and asking for it is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real

from codesign_lib.specs.formats import FORMATS, Format, as_format
from codesign_lib.specs.quantities import look_up

MIB, GIB = 2**20, 2**30
TOPOLOGIES = ("switch", "mesh", "torus")


@dataclass(frozen=True, kw_only=True)
class Other:
    """A value of one field of a chip that another source prints, kept beside the chosen one.

    ``reading`` is how this project reads the difference; the source does not say it.
    """

    field: str
    value: float
    source: str
    reading: str


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One accelerator (a "GPU" as frameworks count them).

    Peaks are FLOP/s per chip, dense, a multiply-add counted as two (``int8_ops_per_s``: integer operations counted
    likewise). ``hbm_bytes_per_s`` is per chip. ``link_bytes_per_s`` is one direction, all scale-up links of a chip
    together; ``link_peer_bytes_per_s`` is what two chips alone reach between them in one direction: the whole rate
    behind a ``switch``, one link in a ``mesh`` or ``torus``. ``n_scale_up`` chips share the scale-up network;
    ``scale_out_bytes_per_s`` is the NIC rate a chip, one direction. ``n_sms`` counts streaming multiprocessors
    (compute units on AMD chips). ``exp_per_s`` is exponentials a second. ``as_of`` is the day the sources were read.

    A field that is not public is ``None``. Negative, zero or non-finite numbers raise ValueError.

    >>> CHIPS["gb300"].peak_flops_per_s("nvfp4")
    1.5e+16
    """

    name: str
    title: str
    bf16_flops_per_s: float
    fp8_flops_per_s: float | None = None
    nvfp4_flops_per_s: float | None = None
    mxfp4_flops_per_s: float | None = None
    mxfp8_flops_per_s: float | None = None
    int8_ops_per_s: float | None = None
    hbm_bytes: float
    hbm_bytes_per_s: float
    n_sms: int | None = None
    l2_bytes: float | None = None
    link_bytes_per_s: float
    link_peer_bytes_per_s: float
    link_topology: str
    n_scale_up: int
    scale_out_bytes_per_s: float | None = None
    exp_per_s: float | None = None
    power_w: float | None = None
    clock_hz: float | None = None
    source: str
    as_of: str
    others: tuple[Other, ...] = ()

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type.removesuffix(" | None") not in ("float", "int") or (value is None and f.type.endswith("None")):
                continue
            kind, or_none = "whole" if f.name.startswith("n_") else "finite", ", or None" * f.type.endswith("None")
            number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value) and value > 0
            if not number or (kind == "whole" and value != int(value)):
                raise ValueError(f"{self.title}.{f.name} is {value!r}; allowed: a {kind} number above 0{or_none}")
        known = {f.name for f in fields(self)}
        for other in self.others:
            if other.field not in known:
                raise ValueError(f"{self.title}: another value of {other.field!r}; allowed: a field of Chip")
        if self.link_topology not in TOPOLOGIES:
            raise ValueError(f"{self.title}.link_topology is {self.link_topology!r}; allowed: {', '.join(TOPOLOGIES)}")

    @property
    def formats(self) -> tuple[str, ...]:
        """Names of the formats this chip multiplies at a rate that is public."""
        return tuple(f.name for f in FORMATS.values() if getattr(self, f.peak, None) is not None)

    def peak_flops_per_s(self, fmt: Format | str) -> float:
        """Dense peak FLOP/s in that format.

        Raises ValueError for an unknown format, and for one this chip has no public peak in: never another format's.

        >>> chip("h100_sxm").peak_flops_per_s("nvfp4")
        Traceback (most recent call last):
        ValueError: H100 SXM has no nvfp4 peak; it has bf16, fp8, fp8_block, int8
        """
        fmt = as_format(fmt)
        peak = getattr(self, fmt.peak, None)
        if peak is None:
            raise ValueError(f"{self.title} has no {fmt.name} peak; it has {', '.join(self.formats)}")
        return peak

    def __str__(self) -> str:
        return self.title


_AIC = "AIConfigurator 0.12.0 systems/*.yaml, which cites NVIDIA's datasheets (github.com/ai-dynamo/aiconfigurator)"
_STAS = "stas00/ml-engineering 744d01e1, compute/accelerator (github.com/stas00/ml-engineering)"
_NVFP4_BLOG = "NVIDIA, Introducing NVFP4 for Efficient and Accurate Low-Precision Inference, 2025, figure 1"
_ULTRA_BLOG = "NVIDIA, Inside NVIDIA Blackwell Ultra, 2025"
_ULTRA = f"{_ULTRA_BLOG}: EX2 10.7 T/s against 5 T/s on Blackwell"
_VERDA = "Verda, GB300 NVL72 architecture, 2025 (verda.com/blog/gb300-nvl72-architecture)"
_FA3 = "FlashAttention-3, arXiv:2407.08608: 16 special-function operations a clock and SM"
_CUTLASS = "CUTLASS, Blackwell SM100 GEMMs: MXFP4 runs at NVFP4's rate, MXFP8 at FP8's"
_STAIRS = "SM count identified from the steps of measured GEMM times"
_ANT = "LMSYS and Ant Group, DeepSeek-R1 on H20-96G, 2025"
_TPU = "Google Cloud TPU documentation; jax-ml/scaling-book (jax-ml.github.io/scaling-book)"
_READ = "2026-11-30"

# fmt: off
# One switch domain of 8 (HGX boards) or of 72 (NVL72 racks).
_NVLINK4_HGX = dict(link_bytes_per_s=900e9 / 2, link_peer_bytes_per_s=900e9 / 2, link_topology="switch", n_scale_up=8)
_NVLINK5_HGX = dict(link_bytes_per_s=1.8e12 / 2, link_peer_bytes_per_s=1.8e12 / 2, link_topology="switch", n_scale_up=8)
_NVLINK5_NVL72 = _NVLINK5_HGX | dict(n_scale_up=72)
_L2 = Other(field="l2_bytes", value=126e6, source=_STAS, reading="takes 126 MB as 1e6; caches count in MiB")
_BOTH = Other(field="link_bytes_per_s", value=1.8e12, source="product pages", reading="both directions")
_CUT = Other(field="bf16_flops_per_s", value=989e12, source=_AIC, reading="cut after three digits")
_DOWN = Other(field="fp8_flops_per_s", value=1978e12, source=_AIC, reading="rounded down from 3958 / 2")
_HOPPER = dict(
    bf16_flops_per_s=1979e12 / 2, fp8_flops_per_s=3958e12 / 2, int8_ops_per_s=3958e12 / 2, n_sms=132, l2_bytes=50 * MIB,
    exp_per_s=16 * 132 * 1830e6, power_w=700.0, clock_hz=1830e6, scale_out_bytes_per_s=400e9 / 8, as_of=_READ,
)

_ALL = (
    Chip(
        name="a100_sxm", title="A100 SXM", bf16_flops_per_s=312e12, int8_ops_per_s=624e12,
        hbm_bytes=80 * GIB, hbm_bytes_per_s=2.039e12, n_sms=108, l2_bytes=40 * MIB,
        link_bytes_per_s=600e9 / 2, link_peer_bytes_per_s=600e9 / 2, link_topology="switch", n_scale_up=8,
        scale_out_bytes_per_s=200e9 / 8, exp_per_s=16 * 108 * 1410e6, power_w=400.0, clock_hz=1410e6,
        source=f"{_AIC}; {_STAS}; exponentials: 16 a clock and SM (CUDA C++ Programming Guide)", as_of=_READ,
        others=(Other(field="hbm_bytes_per_s", value=2.04e12, source=_STAS, reading="rounded"),),
    ),
    Chip(
        name="h100_sxm", title="H100 SXM", hbm_bytes=81_559 * MIB, hbm_bytes_per_s=3.35e12, **_HOPPER, **_NVLINK4_HGX,
        source=f"NVIDIA H100 datasheet (peaks with sparsity, halved); {_AIC}; nvidia-smi (capacity); {_FA3}",
        others=(
            _CUT, _DOWN,
            Other(field="hbm_bytes", value=80 * GIB, source=_AIC, reading="before the driver's share"),
            Other(field="link_bytes_per_s", value=900e9, source="NVIDIA H100 datasheet", reading="both directions"),
        ),
    ),
    Chip(
        name="h200_sxm", title="H200 SXM", hbm_bytes=143_771 * MIB, hbm_bytes_per_s=4.8e12, **_HOPPER, **_NVLINK4_HGX,
        source=f"NVIDIA H200 datasheet (peaks with sparsity, halved); {_AIC}; nvidia-smi (capacity); {_FA3}",
        others=(
            _CUT, _DOWN,
            Other(field="hbm_bytes", value=141 * GIB, source=_AIC, reading="takes the sheet's 141 GB as GiB"),
            Other(field="hbm_bytes", value=141e9, source="NVIDIA H200 datasheet", reading="the product's name"),
            Other(field="link_bytes_per_s", value=900e9, source="NVIDIA H200 datasheet", reading="both directions"),
        ),
    ),
    Chip(
        name="h20", title="H20", bf16_flops_per_s=148e12, fp8_flops_per_s=296e12, int8_ops_per_s=296e12,
        hbm_bytes=96e9, hbm_bytes_per_s=4.0e12, n_sms=78, l2_bytes=60 * MIB, **_NVLINK4_HGX, power_w=400.0,
        scale_out_bytes_per_s=400e9 / 8, exp_per_s=16 * 78 * 1830e6, as_of=_READ,
        source=f"specification tables of 2023-11; device queries (SMs, L2); Step-3 (NICs); {_FA3} at an H100's clock",
        others=(Other(field="scale_out_bytes_per_s", value=25e9, source=_ANT, reading="servers with four NICs"),),
    ),
    Chip(
        name="b200_sxm", title="B200 SXM", bf16_flops_per_s=4500e12 / 2, fp8_flops_per_s=9000e12 / 2,
        nvfp4_flops_per_s=18000e12 / 2, mxfp4_flops_per_s=18000e12 / 2, mxfp8_flops_per_s=9000e12 / 2,
        int8_ops_per_s=9000e12 / 2, hbm_bytes=180 * GIB, hbm_bytes_per_s=7.7e12, n_sms=148, l2_bytes=126 * MIB,
        **_NVLINK5_HGX, scale_out_bytes_per_s=400e9 / 8, exp_per_s=5e12, power_w=1000.0, clock_hz=1965e6,
        source=f"{_AIC}; {_STAS}; {_STAIRS}; {_ULTRA}; {_CUTLASS}; HGX B200 ships ConnectX-7", as_of=_READ,
        others=(
            Other(field="nvfp4_flops_per_s", value=10e15, source=_STAS, reading="GB200's figure"),
            Other(field="nvfp4_flops_per_s", value=18e15, source=_NVFP4_BLOG, reading="with sparsity"),
            _L2, _BOTH,
            Other(field="hbm_bytes_per_s", value=8.0e12, source=_STAS, reading="rounded; the clock gives 8.184e12"),
            Other(field="hbm_bytes", value=192e9, source=_STAS, reading="all stacks, before what is reserved"),
            Other(field="scale_out_bytes_per_s", value=100e9, source=_AIC, reading="assumes ConnectX-8"),
        ),
    ),
    Chip(
        name="b300_sxm", title="B300 SXM", bf16_flops_per_s=4500e12 / 2, fp8_flops_per_s=9000e12 / 2,
        nvfp4_flops_per_s=14000e12, mxfp8_flops_per_s=9000e12 / 2, int8_ops_per_s=307e12 / 2,
        hbm_bytes=275_040 * MIB, hbm_bytes_per_s=62e12 / 8, n_sms=148, l2_bytes=126 * MIB,
        **_NVLINK5_HGX, scale_out_bytes_per_s=800e9 / 8, exp_per_s=10.7e12, power_w=1100.0,
        source=f"{_AIC}; {_STAIRS}; {_ULTRA}; {_CUTLASS}", as_of=_READ,
        others=(
            Other(field="nvfp4_flops_per_s", value=18e15, source=_NVFP4_BLOG, reading="with sparsity: 9/7, not 2"),
            _L2, _BOTH,
            Other(field="nvfp4_flops_per_s", value=13e15, source=_NVFP4_BLOG, reading="the datasheet says 14e15"),
            Other(field="nvfp4_flops_per_s", value=12.6e15, source=_STAS, reading="its fp4 column"),
            Other(field="nvfp4_flops_per_s", value=15e15, source=_STAS, reading="its nvfp4 column; GB300's figure"),
            Other(field="fp8_flops_per_s", value=7.0e15, source="uw.cz product page", reading="contradicts the sheet"),
            Other(field="bf16_flops_per_s", value=3.5e15, source="uw.cz product page", reading="contradicts the sheet"),
            Other(field="power_w", value=1000.0, source=_STAS, reading="configurable up to 1,100 W"),
        ),
    ),
    Chip(
        name="gb200", title="GB200", bf16_flops_per_s=5000e12 / 2, fp8_flops_per_s=10000e12 / 2,
        nvfp4_flops_per_s=20000e12 / 2, mxfp4_flops_per_s=20000e12 / 2, mxfp8_flops_per_s=10000e12 / 2,
        int8_ops_per_s=10000e12 / 2, hbm_bytes=189_471 * MIB, hbm_bytes_per_s=8.0e12, n_sms=152, l2_bytes=126 * MIB,
        **_NVLINK5_NVL72, scale_out_bytes_per_s=400e9 / 8, exp_per_s=5e12, power_w=1200.0, clock_hz=2062e6,
        source=f"{_AIC}; {_NVFP4_BLOG}; {_STAIRS}; {_ULTRA}; {_CUTLASS}; GB200 NVL72 ships ConnectX-7", as_of=_READ,
        others=(
            Other(field="nvfp4_flops_per_s", value=20e15, source=_NVFP4_BLOG, reading="with sparsity"),
            _L2, _BOTH,
            Other(field="hbm_bytes", value=189e9, source=_AIC, reading="189,471 MiB taken as GB"),
            Other(field="nvfp4_flops_per_s", value=9e15, source=_VERDA, reading="B200's figure"),
            Other(field="bf16_flops_per_s", value=2.25e15, source=_VERDA, reading="B200's figure"),
            Other(field="fp8_flops_per_s", value=4.5e15, source=_VERDA, reading="B200's figure"),
            Other(field="hbm_bytes", value=186e9, source="GB200 NVL72 product page", reading="rounded down"),
            Other(field="hbm_bytes", value=192e9, source=_STAS, reading="all stacks, before what is reserved"),
            Other(field="scale_out_bytes_per_s", value=100e9, source=_AIC, reading="assumes ConnectX-8"),
        ),
    ),
    Chip(
        name="gb300", title="GB300", bf16_flops_per_s=5000e12 / 2, fp8_flops_per_s=10000e12 / 2,
        nvfp4_flops_per_s=15000e12, mxfp8_flops_per_s=10000e12 / 2, int8_ops_per_s=330e12 / 2,
        hbm_bytes=284_208 * MIB, hbm_bytes_per_s=8.0e12, n_sms=152, l2_bytes=126 * MIB,
        **_NVLINK5_NVL72, scale_out_bytes_per_s=800e9 / 8, exp_per_s=10.7e12, power_w=1400.0,
        source=f"{_AIC}; {_NVFP4_BLOG}; {_STAIRS}; {_ULTRA}; {_CUTLASS}", as_of=_READ,
        others=(
            Other(field="bf16_flops_per_s", value=5e15, source="product pages", reading="with sparsity"),
            Other(field="fp8_flops_per_s", value=10e15, source="product pages", reading="with sparsity"),
            Other(field="nvfp4_flops_per_s", value=20e15, source=_NVFP4_BLOG, reading="with sparsity: 4/3, not 2"),
            _L2, _BOTH,
            Other(field="int8_ops_per_s", value=5e15, source=_STAS, reading="GB200's; Blackwell Ultra's INT8 is cut"),
            Other(field="int8_ops_per_s", value=319e12, source="Tom's Hardware, 2025", reading="with sparsity"),
            Other(field="hbm_bytes", value=279e9, source=_VERDA, reading="rounded"),
            Other(field="hbm_bytes", value=288e9, source=_ULTRA_BLOG, reading="all stacks, before what is reserved"),
        ),
    ),
    # mesh: seven links, one to each peer. L2 is 4 MiB a die; the 256 MB Infinity Cache behind it is not counted.
    Chip(
        name="mi300x", title="MI300X", bf16_flops_per_s=1307.4e12, fp8_flops_per_s=2614.9e12, int8_ops_per_s=2614.9e12,
        hbm_bytes=192 * GIB, hbm_bytes_per_s=5.3e12, n_sms=304, l2_bytes=8 * 4 * MIB,
        link_bytes_per_s=7 * 64e9, link_peer_bytes_per_s=64e9, link_topology="mesh", n_scale_up=8,
        power_w=750.0, clock_hz=2100e6, source=f"{_STAS}; AMD Instinct MI300X data sheet", as_of=_READ,
        others=(Other(field="hbm_bytes", value=192e9, source=_STAS, reading="takes the sheet's GB as 1e9"),),
    ),
    Chip(
        name="mi355x", title="MI355X", bf16_flops_per_s=2500e12, fp8_flops_per_s=5000e12, mxfp4_flops_per_s=10100e12,
        mxfp8_flops_per_s=5000e12, int8_ops_per_s=5000e12, hbm_bytes=288 * GIB, hbm_bytes_per_s=8.0e12, n_sms=256,
        l2_bytes=8 * 4 * MIB, link_bytes_per_s=7 * 76.5e9, link_peer_bytes_per_s=76.5e9, link_topology="mesh",
        n_scale_up=8, power_w=1400.0, clock_hz=2400e6, source=f"{_STAS}; AMD Instinct MI355X data sheet", as_of=_READ,
        others=(Other(field="hbm_bytes", value=288e9, source=_STAS, reading="takes the sheet's GB as 1e9"),),
    ),
    # torus: 90 GB/s a link and direction; six links in three dimensions, four in two.
    Chip(
        name="tpu_v5p", title="TPU v5p", bf16_flops_per_s=459e12, int8_ops_per_s=918e12, hbm_bytes=95e9,
        hbm_bytes_per_s=2.765e12, link_bytes_per_s=6 * 90e9, link_peer_bytes_per_s=90e9, link_topology="torus",
        n_scale_up=8960, source=_TPU, as_of=_READ,
        others=(
            Other(field="hbm_bytes", value=96e9, source="jax-ml/scaling-book", reading="rounded"),
            Other(field="hbm_bytes_per_s", value=2.8e12, source="jax-ml/scaling-book", reading="rounded"),
        ),
    ),
    Chip(
        name="tpu_v6e", title="TPU v6e", bf16_flops_per_s=918e12, fp8_flops_per_s=918e12, int8_ops_per_s=1836e12,
        hbm_bytes=32e9, hbm_bytes_per_s=1.6e12, link_bytes_per_s=4 * 90e9, link_peer_bytes_per_s=90e9,
        link_topology="torus", n_scale_up=256, as_of=_READ,
        source=f"{_TPU}; {_STAS} (FP8 no faster than BF16; only INT8 doubles)",
        others=(
            Other(field="bf16_flops_per_s", value=920e12, source="jax-ml/scaling-book", reading="rounded"),
            Other(field="int8_ops_per_s", value=1840e12, source="jax-ml/scaling-book", reading="rounded"),
        ),
    ),
)
# fmt: on

CHIPS = {c.name: c for c in _ALL}


def chip(name: Chip | str) -> Chip:
    """The chip of that name; a :py:class:`Chip` (say, a what-if by ``dataclasses.replace``) passes through.

    Raises ValueError for a name that is none of ``CHIPS``: never a neighbour's numbers.

    >>> chip("gb300").hbm_bytes_per_s
    8000000000000.0
    >>> chip("h100")
    Traceback (most recent call last):
    ValueError: unknown chip 'h100'; known: a100_sxm, h100_sxm, h200_sxm, h20, b200_sxm, b300_sxm, gb200, gb300,
    mi300x, mi355x, tpu_v5p, tpu_v6e; did you mean h100_sxm?
    """
    return name if isinstance(name, Chip) else look_up("chip", name, CHIPS)
