"""The pair check sees what nbval would let pass."""

import sys
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
studies = pytest.importorskip("studies")

SOURCE = """# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A study

# %%
1 + 1
"""


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """A pair in step, executed by hand; ``pair(edit)`` writes it with one change and checks it."""
    monkeypatch.setattr(studies, "ROOT", tmp_path)
    py = tmp_path / "01_x.py"
    py.write_text(SOURCE, encoding="utf-8")

    def check(edit=lambda notebook: None):
        notebook = studies.load(py)
        notebook.cells[1].execution_count = 1
        notebook.cells[1].outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "2"}, execution_count=1)]
        edit(notebook)
        nbformat.write(notebook, py.with_suffix(".ipynb"))
        return studies.check(py)

    return check


def test_a_pair_in_step_passes(pair):
    assert pair() == []


def output(**change):
    return lambda nb: nb.cells[1].outputs[0].update(nbformat.from_dict(change))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda nb: nb.cells[1].update(source="1 + 2"), "cell 2 differs from 01_x.py"),
        (lambda nb: nb.cells[0].update(source="# Another"), "cell 1 differs"),
        (lambda nb: nb.cells.pop(), "1 cells, 01_x.py has 2"),
        (lambda nb: nb.cells[1].update(execution_count=None), "not executed from top to bottom"),
        (lambda nb: nb.cells[1].outputs.append(nbformat.v4.new_output("error")), "stored error"),
        (lambda nb: nb.metadata.kernelspec.update(name="ir"), "metadata are not those"),
        (lambda nb: nb.cells[0].update(attachments={"a.png": {}}), "cell 1 has attachments"),
        (lambda nb: nb.cells[1].update(source="# NBVAL_IGNORE_OUTPUT\n1 + 1"), "switches its comparison off"),
        (lambda nb: nb.cells[1].metadata.update(tags=["nbval-skip"]), "switches its comparison off"),
        (output(data={"text/plain": "2", "image/png": "x"}), "not compared: image/png"),
        (output(metadata={"image/svg+xml": {"width": 1}}), "not compared: metadata"),
    ],
)
def test_what_is_out_of_step_is_named(pair, edit, message):
    assert any(message in found for found in pair(edit)), pair(edit)


def test_a_missing_notebook_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "ROOT", tmp_path)
    assert studies.check(tmp_path / "02_y.py") == ["02_y.ipynb: missing; run `make book`"]


def test_the_pairs_of_the_book_are_found():
    found = {p.name for p in studies.pairs()}
    assert {"01_roofline.py", "linear_gb300.py", "catalogue.py"} <= found
    assert "tidy.py" not in found


def test_a_failing_study_is_named_and_the_others_are_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(studies, "ROOT", tmp_path)
    bad, good = tmp_path / "01_bad.py", tmp_path / "02_good.py"
    bad.write_text(SOURCE.replace("1 + 1", "1 / 0"), encoding="utf-8")
    good.write_text(SOURCE, encoding="utf-8")
    assert studies.main(["run", str(bad), str(good)]) == 1
    assert good.with_suffix(".ipynb").exists()
    assert not bad.with_suffix(".ipynb").exists()
    assert "not written: 01_bad.py" in capsys.readouterr().err
