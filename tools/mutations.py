"""Break things on purpose, in a copy, and see which check of `make test` notices.

  python tools/mutations.py            every mutation; fails when one gets through
  python tools/mutations.py WORD ...   those whose name holds one of the words

The checks run in the order of `make test` until one fails; its name and the line that says what was wrong are printed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = str(ROOT / ".venv" / "bin" / "python")
PYTEST = [PYTHON, "-m", "pytest", "-q", "-n", "auto"]
NBVAL = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with", "tests/nbval_sanitize.cfg"]
NOTEBOOKS = [str(p.relative_to(ROOT)) for f in ("studies", "book") for p in (ROOT / f).rglob("*.ipynb")]
CHECKS = {
    "pairs": [PYTHON, "tools/studies.py", "check"],
    "tests": [*PYTEST, "tests", "codesign_lib", "--ignore", "tests/site"],
    "nbval": [*PYTEST, "--dist", "loadscope", *NBVAL, *NOTEBOOKS],
    "site build": [f"{ROOT}/.venv/bin/jupyter-book", "build", ".", "--all", "-n", "-W", "--keep-going"],
    "site": [*PYTEST, "--dist", "loadscope", "tests/site"],
}
# the lines of a check's output that tell a person where to look, and what was wrong there
WHERE = re.compile(r"^(FAILED|ERROR)|differs from|not executed|stored error|no \.py beside|WARNING")
WHAT = re.compile(r"^E +(?!assert|\+)\S|mismatch")

Edit = Callable[[str], str]


def swap(old: str, new: str) -> Edit:
    def edit(text: str) -> str:
        assert old in text, f"nothing to break: {old!r}"
        return text.replace(old, new, 1)

    return edit


def swap_match(pattern: str, new: str | Callable[[re.Match], str]) -> Edit:
    def edit(text: str) -> str:
        changed, n = re.subn(pattern, new, text, count=1)
        assert n, f"nothing to break: {pattern}"
        return changed

    return edit


def peaks() -> Iterator[tuple[str, str, Edit]]:
    """Every peak and bandwidth of hardware.py, one at a time, 5 % too high."""
    source = (ROOT / "codesign_lib/specs/hardware.py").read_text(encoding="utf-8")
    for match in re.finditer(r"\b(\w+_(?:flops|ops)_per_s|hbm_bytes_per_s)=([\d.e/ +]+\d)", source):
        line = source.count("\n", 0, match.start()) + 1

        def edit(text: str, at=match) -> str:
            return f"{text[: at.start()]}{at[1]}=1.05 * {at[2]}{text[at.end() :]}"

        yield f"peak: {match[0]} (line {line})", "codesign_lib/specs/hardware.py", edit


MUTATIONS: list[tuple[str, str, Edit]] = [
    ("one printed digit of a table", "studies/01_roofline.ipynb", swap("2,403", "2,404")),
    ("one printed digit of a sentence", "studies/01_roofline.ipynb", swap("18.3 µs", "18.4 µs")),
    ("one number inside a figure", "studies/01_roofline.ipynb", swap_match(r"L (\d+)\.(\d)", r"L \1.9\2")),
    ("one cell of the .py, not run again", "studies/01_roofline.py", swap("8192, 4096, 4096", "8192, 4096, 4097")),
    ("one text cell of the .py", "studies/01_roofline.py", swap("The third prediction is wrong", "It is right")),
    ("a cell that was never executed", "studies/01_roofline.ipynb", swap('"execution_count": 3', '"execution_count": null')),
    ("a stored error", "studies/01_roofline.ipynb", swap('"output_type": "execute_result"', '"output_type": "error"')),
    ("a format's bytes", "codesign_lib/specs/formats.py", swap("scale_bits=8, block_elements=16", "scale_bits=8, block_elements=32")),
    ("linear: the output forgotten", "codesign_lib/cost/ops/__init__.py", swap("m * (a * k + o * n)", "m * a * k")),
    ("linear: a multiply-add counted once", "codesign_lib/cost/ops/__init__.py", swap("Work(2 * m * n * k", "Work(m * n * k")),
    ("causal counted full", "codesign_lib/cost/ops/attention.py", swap("return n * (p + n / 2)", "return n * (p + n)")),
    ("all experts charged", "codesign_lib/cost/ops/moe.py", swap("return np.minimum(e, m * c)", "return e + 0 * m * c")),
    ("pipeline: a link forgotten", "codesign_lib/serving/pipeline.py", swap("arrival = out[:, s] + link[:, s]", "arrival = out[:, s]")),
    ("slicing: one stage too many", "codesign_lib/serving/slicing.py", swap("return _search(cost, limits, p - 1", "return _search(cost, limits, p")),
    ("prefill: a latent prefix expanded for nothing", "codesign_lib/serving/prefill.py", swap("np.where(p > 0, again, 0.0)", "0.0")),
    ("serving: a sequence held up by its own prompt", "codesign_lib/serving/end_to_end.py", swap("np.maximum(b / dp - 1, 0)", "np.maximum(b / dp, 0)")),
    ("sweep: memory not asked", "codesign_lib/serving/block.py", swap("ok = held.fits & ", "ok = (held.fits | True) & ")),
    ("sweep: GPUs that read prompts not counted", "codesign_lib/serving/block.py", swap("decoded / (1 + more), reading", "decoded, reading")),
    ("sweep: a refusal taken for a dead worker", "codesign_lib/serving/frontier.py", swap("            except ValueError:  # a refusal", "            except KeyError:  # a refusal")),
    ("scaling law: decimal logarithm", "codesign_lib/specs/scaling_laws.py", swap("law.a1 * np.log(width)", "law.a1 * np.log10(width)")),
    ("price: minutes for hours", "codesign_lib/serving/price.py", swap("1e6 * hour / (3600 * rate)", "1e6 * hour / (60 * rate)")),
    ("the third roof forgotten", "codesign_lib/cost/roofline.py", swap("return np.maximum(bound, exp_s(work, chip))", "return bound")),
    ("a cache that stays in L2 in a network", "codesign_lib/cost/attention_kernels.py", swap("if repeated else cache", "if True else cache")),
    ("a fitted number", "codesign_lib/data/calibration.csv", swap("launch_s=1.286e-05 compute_fraction=0.8411", "launch_s=1.286e-05 compute_fraction=0.7411")),
    ("a gain by Amdahl's law upside down", "codesign_lib/cost/gain.py", swap("1 - share + share / most", "1 - share + share * most")),
    ("a decode step without its head", "codesign_lib/cost/gain.py", swap("                **same,", "                **same, 'head': np.float64(0),")),
    ("a standard error of a variance", "codesign_lib/specs/scores.py", swap("np.sqrt(p * (1 - p) / n)", "p * (1 - p) / n")),
    ("a score of a card", "codesign_lib/data/card_scores.csv", swap("AIME 2024,30,0.89,0.913", "AIME 2024,30,0.89,0.893")),
    ("an element divided by the scale that is not stored", "codesign_lib/lowbit/nvfp4.py", swap("decoded = np.take(values(E4M3), flat_scales[part])", "decoded = blocks.planes_amax(np.abs(y)) / (6 * g.decode_scale)")),
    ("a tie of the compiled loops to the odd code", "codesign_lib/lowbit/compiled.py", swap("y > np.float32(1.25)", "y >= np.float32(1.25)")),
    ("time_s: the smaller term", "codesign_lib/cost/roofline.py", swap("np.maximum(compute_s", "np.minimum(compute_s")),
    ("min_tokens: never infinite", "codesign_lib/cost/roofline.py", swap("np.where(spare > 4e-15, spare, 0)", "np.where(spare > 4e-15, spare, 1)")),
    ("positive: zero let through", "codesign_lib/specs/quantities.py", swap("np.min(array) > 0", "np.min(array) >= 0")),
    ("a measured row", "codesign_lib/data/gemm_gb300.csv", swap("trtllm,nvfp4,8192,4096,4096,8.80096e-05", "trtllm,nvfp4,8192,4096,4096,9.80096e-05")),
    ("a recorded gap", "codesign_lib/data/recorded_gaps.csv", swap("squares/trtllm/nvfp4/h4096,-0.792", "squares/trtllm/nvfp4/h4096,-0.762")),
    ("a published cell", "codesign_lib/report/claims/roofline.py", swap("(1.15, 0.37, 2.10)", "(1.15, 0.38, 2.10)")),
    ("an import that goes up", "codesign_lib/specs/models.py", swap("from dataclasses import dataclass", "from dataclasses import dataclass\nfrom codesign_lib.cost import roofline")),
    ("a field without unit", "codesign_lib/specs/hardware.py", swap("    power_w: float | None = None", "    power: float | None = None\n    power_w: float | None = None")),
    ("a definition in a study", "studies/01_roofline.py", swap("plotting.style()", "plotting.style()\ndef f(): pass")),
    ("a reference to nothing", "book/intro.md", swap("{doc}`api`", "{doc}`apis`")),
    ("a link to nothing", "book/intro.md", swap("## Run it", "[gone](../studies/99_gone.html)\n\n## Run it")),
    ("a request to another server", "book/intro.md", swap("## Run it", '<img alt="x" src="http://127.0.0.2:9/x.png">\n\n## Run it')),
    ("a picture without text", "book/intro.md", swap("## Run it", '<img src="_static/logo.svg">\n\n## Run it')),
    ("text too pale to read", "book/intro.md", swap("## Run it", '<p style="color:#bbb;background:#fff">pale</p>\n\n## Run it')),
]  # fmt: skip


def run(name: str, path: str, edit: Edit, folder: Path) -> bool:
    """Apply one mutation in a copy and say what noticed it."""
    file = folder / path
    whole = file.read_text(encoding="utf-8")
    file.write_text(edit(whole), encoding="utf-8")
    env = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        for check, command in CHECKS.items():
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = re.sub(r"\x1b\[\d+m", "", done.stdout + done.stderr).splitlines()
                told = [next((line.strip() for line in lines if tells.search(line)), "") for tells in (WHERE, WHAT)]
                print(
                    f"caught   {name}\n         by {check}: " + "\n         ".join(t[:170] for t in told if t),
                    flush=True,
                )
                return True
        print(f"MISSED   {name}", flush=True)
        return False
    finally:
        file.write_text(whole, encoding="utf-8")


def main(words: list[str]) -> int:
    chosen = [m for m in (*MUTATIONS, *peaks()) if not words or any(w in m[0] for w in words)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "copy"
        tracked = subprocess.run(
            ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split("\n")
        for file in filter(None, tracked):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, folder / file)
        missed = [m[0] for m in chosen if not run(*m, folder)]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} mutations caught")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
