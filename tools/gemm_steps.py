"""The steps from the roofline to the calibrated form, one concept at a time: what each of them buys.

Step i uses the numbers of all steps up to i. ``tools/calibrate.py`` fits them (``data/gemm_steps.csv``),
``tools/validate_gemm.py`` prints the errors.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from codesign_lib.cost.kernels import MERGE_BYTES, Kernel
from codesign_lib.specs.formats import Format
from codesign_lib.specs.hardware import Chip

STEPS = (
    "roofline",
    "launch",
    "efficiencies",
    "quantisation pass",
    "tiles and their feed",
    "a tile an SM, whole waves",
    "splitting",
    "slow stores",
    "quadrature",
)


def numbers_of(step: str, kernel: Kernel, fmt: Format) -> tuple[str, ...]:
    """The fitted numbers a step needs for that kernel and format."""
    i, low_precision = STEPS.index(step), fmt.name != "bf16"
    use = {
        "launch_s": i >= 1,
        "compute_fraction": i >= 2,
        "memory_fraction": i >= 2,
        "quantise_fraction": i >= 3 and low_precision,
        "operand_bytes_per_s": i >= 4 and len(kernel.tiles) > 1,
        "split_s": i >= 6 and kernel.splits,
    }
    return tuple(name for name, used in use.items() if used)


def step_s(step: str, m, k, n, *, chip: Chip, fmt: Format, kernel: Kernel, numbers: Mapping[str, float]) -> np.ndarray:
    """Seconds by the form of that step; the last step is ``kernels.form_s``."""
    i, b = STEPS.index(step), fmt.bytes_per_element
    e_c, e_m = numbers.get("compute_fraction", 1.0), numbers.get("memory_fraction", 1.0)
    store = kernel.store_bytes if i >= 7 else 2
    memory = (b * (m * k + n * k) + store * m * n) / (e_m * chip.hbm_bytes_per_s)
    compute = 2 * m * n * k / (e_c * chip.peak_flops_per_s(fmt))
    if i >= 4:
        rate, feed = e_c * chip.peak_flops_per_s(fmt) / chip.n_sms, numbers.get("operand_bytes_per_s", np.inf)
        alone = shared = np.inf
        for x, y in kernel.tiles:
            tile_s = k * max(2 * x * y / rate, b * (x + y) / feed)
            waves = np.ceil(m / x) * np.ceil(n / y) / chip.n_sms
            shared = np.minimum(shared, tile_s * waves)
            alone = np.minimum(alone, tile_s * (np.ceil(waves) if kernel.whole_waves else np.maximum(waves, 1)))
        compute = shared if i < 5 else alone
        if i >= 6 and kernel.splits:
            merge = MERGE_BYTES * m * n / (e_m * chip.hbm_bytes_per_s)
            compute = np.minimum(alone, shared + numbers["split_s"] + merge)
    quantise = 0.0
    if i >= 3 and fmt.name != "bf16":
        quantise = m * k * (2 + b) / (numbers["quantise_fraction"] * chip.hbm_bytes_per_s)
    together = np.hypot(compute, memory) if i >= 8 else np.maximum(compute, memory)
    return numbers.get("launch_s", 0.0) + quantise + together
