"""How a study reads: its parts, short cells, no definitions, figures with words, claims that are checked."""

import ast
import re
import statistics
from pathlib import Path

import jupytext
import pytest

ROOT = Path(__file__).resolve().parent.parent
STUDIES = sorted((ROOT / "studies").glob("[0-9]*.py"))
EVIDENCE = sorted([*(ROOT / "book").glob("*.py"), *(ROOT / "book" / "evidence").glob("*.py")])
PARTS = ("Prediction", "Setting", "Model", "Where it breaks", "Design rule", "Exercise")


def cells(path: Path, kind: str) -> list:
    return [c for c in jupytext.read(path, fmt="py:percent").cells if c.cell_type == kind]


def n_lines(cell) -> int:
    return sum(bool(line.strip()) for line in cell.source.splitlines())


def is_figure(cell) -> bool:
    return "figure" in cell.metadata.get("mystnb", {})


studies = pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
pages = pytest.mark.parametrize("path", STUDIES + EVIDENCE, ids=lambda p: p.stem)


def test_there_are_studies():
    assert STUDIES


@studies
def test_the_argument_is_short(path):
    code, text = cells(path, "code"), cells(path, "markdown")
    assert len(code) <= 20
    assert len(text) >= len(code)
    assert statistics.median(n_lines(c) for c in code if not is_figure(c)) <= 4


@studies
def test_the_parts_are_there_in_order(path):
    text = "\n".join(c.source for c in cells(path, "markdown"))
    assert "**Question.**" in text
    places = [text.find(f"\n## {part}") if not text.startswith(f"## {part}") else 0 for part in PARTS]
    assert -1 not in places, dict(zip(PARTS, places, strict=True))
    assert places == sorted(places)
    assert re.search(r"^## Check", text, re.MULTILINE)


@studies
def test_a_rule_and_a_folded_solution(path):
    tags = [tag for c in cells(path, "code") for tag in c.metadata.get("tags", [])]
    assert tags.count("rule") >= 1
    assert "hide-cell" in tags


@studies
def test_claims_are_checked_and_a_figure_shows_measurements(path):
    code = cells(path, "code")
    assert any("claims.check(" in c.source for c in code)
    assert any(is_figure(c) and "markers(" in c.source for c in code)


@pages
def test_no_definitions_and_no_unseeded_randomness(path):
    source = "\n".join(c.source for c in cells(path, "code"))
    nodes = list(ast.walk(ast.parse(source)))
    assert not [n for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef | ast.Lambda)]
    assert not re.search(r"default_rng\(\)|np\.random\.(?!default_rng\()|import random", source)


@pages
def test_figures_have_words(path):
    for cell in cells(path, "code"):
        draws = "subplots" in cell.source
        assert draws == is_figure(cell), f"a figure without caption: {cell.source[:60]}"
        if draws:
            mystnb = cell.metadata["mystnb"]
            assert mystnb["figure"]["name"].startswith("fig-")
            assert len(mystnb["figure"]["caption"]) > 40
            assert len(mystnb["image"]["alt"]) > 60
            assert "hide-input" in cell.metadata["tags"]
            assert n_lines(cell) <= 15
            assert "set(" in cell.source, "axes without labels"


@pages
def test_no_computed_number_is_printed(path):
    # a sentence with a number is plotting.say(...), a table is plotting.table(...): Markdown and HTML with a text twin
    calls = [n for c in cells(path, "code") for n in ast.walk(ast.parse(c.source)) if isinstance(n, ast.Call)]
    assert not [n for n in calls if isinstance(n.func, ast.Name) and n.func.id == "print"]
