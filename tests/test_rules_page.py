"""The pages that collect: every rule of every study once, guidelines that name rules which exist, terms once."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book" / "_ext"))
rules = pytest.importorskip("rules")


def test_every_rule_of_every_study_is_collected_once():
    found = rules.studies(ROOT / "studies")
    assert sorted(found) == sorted(int(p.name.split("_")[0]) for p in (ROOT / "studies").glob("[0-9]*.ipynb"))
    page = rules.filled((ROOT / "book" / "rules.md").read_text(encoding="utf-8"), found)
    assert "<!--" not in page
    for number, study in found.items():
        assert study["rules"], f"study {number} prints no rule"
        for rule in study["rules"]:
            assert page.count(rule) == 1
        named = [r for r in study["rules"] if r.startswith("**Rule ")]
        assert named and all(re.match(rf"\*\*Rule {number}[.\d]*\*\* (If|Until|Where)", r) for r in named), named


def test_guidelines_name_only_rules_that_are_there():
    text, found = (ROOT / "book" / "guidelines.md").read_text(encoding="utf-8"), rules.studies(ROOT / "studies")
    for number in re.findall(r"<!-- rule ([\d.]+) -->", text):
        if int(number.split(".")[0]) in found:
            assert rules._rule(number, found).startswith(f"**Rule {number}.**"), number
    page = rules.filled(text, found)
    assert "<!--" not in page
    assert all(f"| {g} |" in page for g in ("G1", "G2", "G3", "G4", "G5", "G6", "G7", "A1", "A2", "A3", "A4", "S1"))


def test_what_is_planned_says_so():
    assert rules.filled("<!-- study 9 --> <!-- rule 9.1 -->", {}) == "study 9 (planned) Rule 9.1 is planned."
    one = {3: {"title": "T", "label": "study-t", "rules": ["**Rule 3.1.** If a, then b."]}}
    assert rules.filled("<!-- study 3 --> <!-- rule 3.1 -->", one) == (
        "{ref}`study 3 <study-t>` **Rule 3.1.** If a, then b."
    )


def test_terms_are_defined_once_and_in_one_line():
    text = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
    entries = text.partition("```{glossary}\n")[2].partition("```")[0].strip().split("\n\n")
    assert all(len(entry.splitlines()) == 2 for entry in entries)
    terms = [entry.splitlines()[0] for entry in entries]
    assert len(terms) == len(set(terms)) > 40
    assert terms == sorted(terms, key=str.casefold)
