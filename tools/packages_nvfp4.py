"""Hold NVFP4 against three packages, to the bit (part of `make validate-packages`).

nvidia-modelopt, torchao and compressed-tensors quantise and decode the same arrays on a CPU; codes, scales and values
are compared with those of the variant that bears their name. Every difference must have a reason here. The loops that
numba compiles must give the bits of ours in every variant. Writes
``data/validation/nvfp4.csv``; with --check it fails instead when the committed table differs.
"""

from __future__ import annotations

import csv
import io
import os
import sys
import warnings
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor  # noqa: E402
from compressed_tensors.quantization import QuantizationScheme  # noqa: E402
from compressed_tensors.quantization.quant_scheme import NVFP4A16  # noqa: E402
from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam  # noqa: E402
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor  # noqa: E402
from torchao.prototype.mx_formats import nvfp4_tensor as ao  # noqa: E402

from codesign_lib.lowbit import compiled, nvfp4, variants  # noqa: E402

OUT = Path(str(files("codesign_lib"))) / "data" / "validation" / "nvfp4.csv"
DATE = "2026-11-30"
UNEXPLAINED = "NOT EXPLAINED"
PACKAGES = {"modelopt": "nvidia-modelopt", "torchao": "torchao", "compressed_tensors": "compressed-tensors"}
REASONS = {
    ("all zeros", "modelopt"): "G is 0 there and everything NaN; ours stays zero",
    ("all zeros", "torchao"): "G is 0 there and values NaN; ours stays zero",
    ("1e-44, a few subnormals", "modelopt"): "G underflows to 0 there; ours is the smallest float32",
    ("1e-44, a few subnormals", "torchao"): "G underflows to 0 there; ours is the smallest float32",
    ("1e-40, subnormal", "torchao"): "1/G overflows there and 0 times infinity becomes a code; ours stays zero",
    (
        "near the largest float32",
        "compressed_tensors",
    ): "the largest becomes an infinite bfloat16 there; ours is finite",
    ("Gaussian, bfloat16 tensor", "compressed_tensors"): "scales are computed in bfloat16 there, in float32 here",
    ("float16 values, float16 tensor", "compressed_tensors"): "scales are computed in float16 there, in float32 here",
    ("float16 values, float16 tensor", "torchao"): "refuses float16",
    ("last axis of 40", "modelopt"): "quantises as ours with pad=True, to the bit; cannot decode it",
    ("last axis of 40", "torchao"): "refuses it, as ours without pad=True",
    ("last axis of 40", "compressed_tensors"): "refuses it, as ours without pad=True",
    ("one NaN", "modelopt"): "accepts it and everything becomes NaN; ours refuses",
    ("one NaN", "torchao"): "accepts it and everything becomes NaN; ours refuses",
    ("one NaN", "compressed_tensors"): "accepts it, and G of the tensor becomes 1; ours refuses",
    ("one infinity", "modelopt"): "accepts it and everything becomes NaN; ours refuses",
    ("one infinity", "torchao"): "accepts it and everything becomes NaN; ours refuses",
    ("one infinity", "compressed_tensors"): "accepts it and everything becomes NaN; ours refuses",
}


def inputs() -> dict[str, torch.Tensor]:
    """One tensor a class of input, seeded; float32 unless the name says otherwise."""
    rng = np.random.default_rng(8)
    shape = (64, 512)
    gauss = rng.standard_normal(shape).astype(np.float32)
    found = {
        "Gaussian": gauss,
        "Laplace": rng.laplace(size=shape),
        "Student t, 5": rng.standard_t(5, size=shape),
        "Student t, 1": rng.standard_t(1, size=shape),
        "weights, std 0.02, bfloat16 values": torch.from_numpy(gauss * 0.02).bfloat16().float().numpy(),
        "float16 values": gauss.astype(np.float16),
        "outlier columns": gauss * np.where(np.arange(512) % 97 == 0, 100, 1),
        "rows from 1e-6 to 1e6": gauss * np.logspace(-6, 6, 64)[:, None],
        "subnormal block scales": gauss * np.exp2(-np.arange(32) / 2).repeat(16),
        "near the largest float32": gauss / np.abs(gauss).max() * np.finfo(np.float32).max,
        "1e-34": gauss * 1e-34,
        "1e-37": gauss * 1e-37,
        "1e-40, subnormal": gauss * 1e-40,
        "1e-44, a few subnormals": gauss * 1e-44,
        "zero blocks": gauss * (rng.random((64, 32)) < 0.7).repeat(16, axis=1),
        "sparse, both signs of zero": gauss * (rng.random(shape) < 0.1),
        "ties of elements": ties(),
        "ties of scales": scale_ties(),
        "powers of two": np.exp2(rng.integers(-20, 20, shape)) * rng.choice([-1, 1], shape),
        "one value": np.full(shape, -0.3),
        "all zeros": np.zeros(shape),
    }
    found["one NaN"] = np.where(np.arange(512) == 100, np.nan, gauss)
    found["one infinity"] = np.where(np.arange(512) == 100, np.inf, gauss)
    found["last axis of 40"] = gauss[:, :40]
    found = {name: torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)) for name, x in found.items()}
    found["Gaussian, bfloat16 tensor"] = found["Gaussian"].bfloat16()
    found["float16 values, float16 tensor"] = found["float16 values"].half()
    return found


def ties() -> np.ndarray:
    """Every midpoint of E2M1, its neighbours and its mirror image, at G = 1 and scales that are powers of two."""
    middle = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
    around = np.concatenate([np.nextafter(middle, np.float32(s)) for s in (0, 9)] + [middle, [6.0, 0.0, 5.5]])
    x = np.zeros((24, 16), np.float32)
    for row, scale in enumerate(np.exp2(np.arange(-4, 8))):
        x[2 * row, :15], x[2 * row + 1, :15] = np.resize(around[:12], 15) * scale, -np.resize(around[12:], 15) * scale
        x[2 * row : 2 * row + 2, 15] = 6 * scale
    x[0, 0] = 2688
    return x


def scale_ties() -> np.ndarray:
    """Blocks whose ideal scale lies halfway between two E4M3 codes, at G = 1."""
    from codesign_lib.lowbit import elements

    scales = elements.values(elements.E4M3)[:127]
    middle = (scales[1:] + scales[:-1]) / 2
    x = 6 * middle[:, None] * np.linspace(-1, 1, 16, dtype=np.float32)
    return np.concatenate([x, np.full((2, 16), 2688)]).astype(np.float32)


def modelopt(x: torch.Tensor):
    q, scale, double_scale = NVFP4QTensor.quantize(x, 16)
    values = None
    if x.shape[-1] % 16 == 0:
        values = q.dequantize(torch.float32, scale=scale, double_scale=double_scale, block_sizes={-1: 16})
    return q._quantized_data, scale, values


def torchao(x: torch.Tensor):
    per_tensor = ao.per_tensor_amax_to_scale(x.abs().max())
    q = ao.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=per_tensor)
    return q.qdata, q.scale, q.dequantize(torch.float32)


def compressed_tensors(x: torch.Tensor):
    scheme = QuantizationScheme(targets=["Linear"], **NVFP4A16)
    blocks = x.reshape(len(x), -1, 16)
    global_scale = generate_gparam(x.min(), x.max())
    scale, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), scheme.weights, global_scale)
    state = {"weight": x, "weight_scale": scale, "weight_global_scale": global_scale}
    state = NVFP4PackedCompressor.compress(state, scheme)
    values = NVFP4PackedCompressor.decompress(dict(state), scheme)["weight"].float()
    return state["weight_packed"], state["weight_scale"], values


def compare(x: torch.Tensor, package: str) -> list[int | str]:
    """Differing codes, scales and values; a word where one side has none to compare."""
    ours = theirs = None
    plain = x.float().numpy()
    try:
        ours = nvfp4.quantise(plain, variant=package, pad=True)
    except ValueError:
        return ["ours refuses"] * 3
    values = nvfp4.dequantise(ours)
    try:
        theirs = globals()[package](x.clone())
    except (AssertionError, RuntimeError, ValueError):
        return ["theirs refuses"] * 3
    packed, scale = theirs[0].numpy(), theirs[1].view(torch.uint8).numpy().reshape(ours.scales.shape)
    both = np.stack([packed & 15, packed >> 4], axis=-1)
    mine = np.stack([ours.packed & 15, ours.packed >> 4], axis=-1)
    found: list[int | str] = [int((both != mine).sum()), int((scale != ours.scales).sum())]
    if theirs[2] is None:
        return [*found, "theirs refuses"]
    return [*found, int((theirs[2].numpy().reshape(values.shape).view(np.uint32) != values.view(np.uint32)).sum())]


def table() -> tuple[str, list[list[str]]]:
    """The text of the CSV, and its rows."""
    rows = []
    for name, x in inputs().items():
        for package in PACKAGES:
            differ = compare(x, package)
            reason = "" if differ == [0, 0, 0] else REASONS.get((name, package), UNEXPLAINED)
            rows.append([name, package, str(x.numel()), *map(str, differ), reason])
    versions = ", ".join(f"{p} {version(p).split('+')[0]}" for p in (*PACKAGES.values(), "torch"))
    text = io.StringIO()
    text.write(
        "# title: NVFP4 of three packages and ours: what differs, compared to the bit\n"
        "# source: nvidia-modelopt, torchao and compressed-tensors on a CPU\n"
        f"# version: {versions}\n# date: {DATE}\n"
        "# licence: Apache-2.0 (nvidia-modelopt, compressed-tensors), BSD-3-Clause (torchao)\n"
        "# drawn_by: tools/packages_nvfp4.py\n"
    )
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["input", "package", "n_elements", "codes_differ", "scales_differ", "values_differ", "reason"])
    writer.writerows(rows)
    return text.getvalue(), rows


def compiled_differ() -> list[str]:
    """Inputs and variants of which numba's loops store or decode anything else than numpy."""
    found = []
    for name, x in inputs().items():
        if not x.isfinite().all():
            continue
        for variant in variants.VARIANTS:
            ours, theirs = (q.quantise(x.float().numpy(), variant=variant, pad=True) for q in (nvfp4, compiled))
            same = all(np.array_equal(getattr(ours, part), getattr(theirs, part)) for part in ("packed", "scales"))
            same &= ours.global_scale == theirs.global_scale
            if not same or nvfp4.dequantise(ours).tobytes() != compiled.dequantise(theirs).tobytes():
                found.append(f"{name}, {variant}")
    return found


def main(argv: list[str]) -> int:
    other_bits = compiled_differ()
    print(f"compiled by numba {version('numba')}: {', '.join(other_bits) or 'every input and variant as in numpy'}")
    text, rows = table()
    n_equal = sum(row[-1] == "" for row in rows)
    unexplained = [row for row in rows if row[-1] == UNEXPLAINED]
    print(f"{len(rows)} comparisons: {n_equal} equal to the bit, {len(unexplained)} not explained, the rest as follows")
    for name, package, _, *differ, reason in rows:
        if reason:
            print(f"  {name}, {package}: codes, scales, values {', '.join(differ)}: {reason}")
    if "--check" in argv:
        same = OUT.read_text(encoding="utf-8") == text
        print(f"{OUT.name}: {'as committed' if same else 'differs from the committed table'}")
        return int(bool(unexplained or other_bits) or not same)
    OUT.write_text(text, encoding="utf-8")
    print(f"wrote {OUT.name}: {len(rows)} rows")
    return int(bool(unexplained or other_bits))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
