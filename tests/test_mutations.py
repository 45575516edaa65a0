"""The list of mutations: each still finds what it breaks, and breaks it."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import mutations  # noqa: E402


@pytest.mark.parametrize(("name", "path", "edit"), mutations.MUTATIONS, ids=[m[0] for m in mutations.MUTATIONS])
def test_it_can_be_applied(name, path, edit):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert edit(text) != text


def test_every_peak_is_among_them():
    peaks = list(mutations.peaks())
    text = (ROOT / "codesign_lib/specs/hardware.py").read_text(encoding="utf-8")
    assert len(peaks) > 40 and all(edit(text) != text for *_, edit in peaks)
