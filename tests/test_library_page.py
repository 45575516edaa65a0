"""The examples of the library page run as they stand, in a folder with a ``config.json``."""

import re
import shutil
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "codesign_lib" / "data" / "configs"


def test_every_call_of_the_page_runs(tmp_path, monkeypatch):
    shutil.copy(CONFIGS / "qwen3_235b_a22b.json", tmp_path / "config.json")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "book" / "api.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    names = {"matrix": np.ones((32, 64), np.float32)}
    for block in blocks:
        exec(block, names)
    points, best = names["points"], names["best"]
    assert points["tpot_s"][best] <= 1 / 50
