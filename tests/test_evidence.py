"""Pages that show committed tables show them as they are: every row once, and no number typed beside them."""

import re
from collections import Counter
from pathlib import Path

import nbformat
import pytest

from codesign_lib.specs import published

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "book" / "evidence" / "gemm_accuracy.ipynb"
STUDY = ROOT / "studies" / "02_dimensioning.ipynb"


def cells(path: Path) -> list:
    return nbformat.read(path, as_version=4).cells


def tables(path: Path) -> list[str]:
    """The HTML of every table that a notebook shows."""
    outputs = (o for c in cells(path) if c.cell_type == "code" for o in c.outputs)
    return [o["data"]["text/html"] for o in outputs if "text/html" in o.get("data", {})]


def shown(html: str) -> list[str]:
    return [re.sub("<[^>]+>", "", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", html, re.DOTALL)]


def figures(name: str, text: str) -> list[str]:
    columns = published.table(name).columns
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True))
    return [text.format(**row) for row in rows]


@pytest.mark.parametrize(
    ("name", "text", "pattern"),
    [
        ("gemm", "{median_percent:.1f} / {p90_percent:.1f} / {bias_percent:+.1f}", r"[\d.]+ / [\d.]+ / [+-][\d.]+"),
        (
            "gemm_choices",
            "{n_numbers:.0f}: {median_percent:.2f} / {p90_percent:.2f}, {mean_log_percent:.2f}",
            r"\d: .*",
        ),
    ],
)
def test_every_row_is_shown_once(name, text, pattern):
    found = [cell for html in tables(PAGE) for cell in shown(html) if re.fullmatch(pattern, cell)]
    assert len(found) > 50
    assert Counter(found) == Counter(figures(f"validation/{name}", text))


def test_the_promises_are_shown_as_committed():
    checks = published.table("validation/gemm_checks")
    rows = list(zip(*(c.tolist() for c in checks.columns.values()), strict=True))
    found = next(shown(html) for html in tables(PAGE) if "stretch" in html)
    assert found == [cell.replace("<", "&lt;") for row in rows for cell in row]


def test_the_study_shows_committed_errors():
    rows = published.table("validation/gemm").where(chip="median", regime="all")
    html = next(html for html in tables(STUDY) if "universal" in html)
    for fmt in ("bf16", "fp8", "fp8_block", "nvfp4"):
        for what in ("calibrated", "universal", "roofline"):
            row = rows.where(fmt=fmt, what=what)
            assert f"{row['median_percent'][0]:.1f} / {row['p90_percent'][0]:.1f}" in shown(html)


@pytest.mark.parametrize("name", ["gemm", "gemm_checks", "gemm_choices"])
def test_the_page_names_the_script_that_wrote_the_table(name):
    script = published.table(f"validation/{name}").header["drawn_by"].split()[0]
    assert (ROOT / script).is_file()
    first = next(c for c in cells(PAGE) if c.cell_type == "code")
    said = first.outputs[0]["data"]["text/markdown"].splitlines()
    assert any(f"**validation/{name}**" in line and script in line for line in said)


@pytest.mark.parametrize("path", sorted((ROOT / "book" / "evidence").glob("*.ipynb")), ids=lambda p: p.stem)
def test_no_computed_number_is_typed(path):
    # decimals, percentages and times are results; sizes and tokens are settings
    text = "\n".join(c.source for c in cells(path) if c.cell_type == "markdown").replace("Llama-3.1", "Llama-3")
    assert not re.findall(r"(?<!-)\b\d+\.\d+(?! GHz)|\d+ ?%(?! of the best)|\d+ µs", text)


NVFP4 = {name: ROOT / "book" / "evidence" / f"nvfp4_{name}.ipynb" for name in ("errors", "speed", "accuracy", "model")}


@pytest.mark.parametrize(
    "text",
    [
        "{median:.2f} / {p90:.2f} / {p999:.2f}",
        "{slower_percent:.1f} / {above_4_percent:.2f}",
        "{error_median_percent:.1f} / {error_p90_percent:.1f}",
    ],
    ids=["gains", "shares", "errors"],
)
def test_every_gain_is_shown_as_committed(text):
    expected = Counter(figures("validation/gain", text))
    assert any(Counter(cell for cell in shown(html) if " / " in cell) == expected for html in tables(NVFP4["speed"]))


def test_every_comparison_of_packages_is_shown():
    rows = published.table("validation/nvfp4")
    html = next(html for html in tables(NVFP4["errors"]) if "values differ" in html)
    assert Counter(shown(html)[6::7]) == Counter(reason or "–" for reason in rows["reason"].tolist())
    assert shown(html)[::7] == rows["input"].tolist()


def test_every_score_is_shown():
    rows = published.table("card_scores")
    html = next(html for html in tables(NVFP4["accuracy"]) if "MMLU-Pro" in html)
    cells = shown(html)
    assert cells[::7] == rows["model"].tolist() and cells[1::7] == rows["benchmark"].tolist()
    assert [cell.split(" ± ")[0] for cell in cells[5::7]] == [f"{100 * x:.2f}" for x in rows["nvfp4_fraction"]]


def test_every_trial_of_the_model_is_shown():
    html = next(html for html in tables(NVFP4["model"]) if "against NVFP4" in html)
    assert shown(html)[4::9] == figures("validation/smollm2", "{kl_nats:.4f} ± {kl_nats_se:.4f}")
    halves = next(html for html in tables(NVFP4["model"]) if "stream" in html)
    rows = published.table("validation/smollm2_blocks")
    assert shown(halves)[5::6] == [f"{1e3 * x:.2f}" for x in rows["kl_nats"]]


@pytest.mark.parametrize("name", ["attention", "moe", "collectives"])
def test_no_regime_is_left_out(name):
    # what was computed and committed is shown: the median of every kernel and regime, but for the bare roofline
    page = ROOT / "book" / "evidence" / "other_kernels.ipynb"
    found = {cell.split(" (")[0] for html in tables(page) for cell in shown(html)}
    rows = published.table(f"validation/{name}").where(chip="median")
    text = "{what}|{median_percent:.1f} / {p90_percent:.1f} / {bias_percent:+.1f}"
    columns = rows.columns
    each = (dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True))
    wanted = [text.format(**row) for row in each if "roofline" not in row["what"]]
    assert len(wanted) > 10
    missing = [row for row in wanted if row.split("|")[1] not in found]
    assert not missing
