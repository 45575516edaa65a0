"""Keep the pairs in step: NN_name.py is the source, NN_name.ipynb beside it the executed product.

  python tools/studies.py run [FILE.py ...]   execute and write the notebooks
  python tools/studies.py check               no execution: in step, executed top to bottom, no error, no orphan?
  python tools/studies.py list                the notebooks, one a line

Same input, same bytes: no timestamps, no random cell ids, no Python version.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (ROOT / "studies", ROOT / "book")
PAIRING = tomllib.loads((ROOT / "jupytext.toml").read_text(encoding="utf-8"))
CELL_TIMEOUT_S = 120
# what nbval compares; anything else in an output would pass unread
MIME_TYPES = {"text/plain", "text/html", "text/markdown", "image/svg+xml"}


def pairs() -> list[Path]:
    """Every source of a pair: the .py files below studies/ and book/ that carry a Jupyter header."""
    found = (p for folder in FOLDERS for p in folder.rglob("*.py") if ".ipynb_checkpoints" not in p.parts)
    return sorted(p for p in found if p.read_text(encoding="utf-8").startswith("# ---\n# jupyter:"))


def orphans() -> list[Path]:
    sources = {p.with_suffix(".ipynb") for p in pairs()}
    found = (p for folder in FOLDERS for p in folder.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
    return sorted(p for p in found if p not in sources)


def load(py: Path) -> nbformat.NotebookNode:
    """The notebook that a source stands for, not executed, with everything that could vary pinned."""
    notebook = jupytext.read(py, fmt="py:percent")
    for i, cell in enumerate(notebook.cells, 1):
        cell.id = f"{py.stem}-{i:02d}"[-64:]
    notebook.metadata = nbformat.NotebookNode(
        jupytext={key: PAIRING[key] for key in ("cell_metadata_filter", "notebook_metadata_filter")},
        kernelspec={"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        language_info={"name": "python", "file_extension": ".py", "mimetype": "text/x-python",
                       "pygments_lexer": "ipython3"},
    )  # fmt: skip
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def run(py: Path) -> None:
    notebook = load(py)
    client = NotebookClient(
        notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", record_timing=False,
        resources={"metadata": {"path": str(py.parent)}}, extra_arguments=["--log-level=40"],
    )  # fmt: skip
    client.execute()
    notebook.metadata = load(py).metadata
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    nbformat.validate(notebook)
    text = nbformat.writes(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    target = py.with_suffix(".ipynb")
    # an unchanged notebook keeps its time stamp, so that nothing is rebuilt for it
    if not target.exists() or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8")


def check(py: Path) -> list[str]:
    ipynb, bad = py.with_suffix(".ipynb"), []
    name = ipynb.relative_to(ROOT)
    if not ipynb.exists():
        return [f"{name}: missing; run `make book`"]
    want, have = load(py), nbformat.read(ipynb, as_version=4)
    for i, (w, h) in enumerate(zip(want.cells, have.cells, strict=False), 1):
        if (w.cell_type, w.source, dict(w.metadata)) != (h.cell_type, h.source, dict(h.metadata)):
            bad.append(f"{name}: cell {i} differs from {py.name}; run `make book`")
    if len(want.cells) != len(have.cells):
        bad.append(f"{name}: {len(have.cells)} cells, {py.name} has {len(want.cells)}; run `make book`")
    code = [c for c in have.cells if c.cell_type == "code"]
    # nbval would pass cells that were never executed, unread
    if [c.execution_count for c in code] != list(range(1, len(code) + 1)):
        bad.append(f"{name}: not executed from top to bottom; run `make book`")
    if any(o.output_type == "error" for c in code for o in c.outputs):
        bad.append(f"{name}: holds a stored error")
    if have.metadata != want.metadata:
        bad.append(f"{name}: its metadata are not those that `make book` writes")
    return bad + [f"{name}: cell {i} {what}" for i, cell in enumerate(have.cells, 1) for what in unread(cell)]


def unread(cell: nbformat.NotebookNode) -> list[str]:
    """What nbval would let pass without comparing it."""
    bad = ["has attachments"] if cell.get("attachments") else []
    tags = cell.metadata.get("tags", [])
    if "NBVAL_" in cell.source or any(tag.startswith("nbval-") or tag == "raises-exception" for tag in tags):
        bad.append("switches its comparison off")
    for output in cell.get("outputs", []):
        types = set(output.get("data", {})) - MIME_TYPES
        if types or output.get("metadata"):
            bad.append(f"has an output that is not compared: {', '.join(sorted(types)) or 'metadata'}")
    return bad


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in ("run", "check", "list"):
        print(__doc__)
        return 2
    if argv[0] == "list":
        print("\n".join(str(p.with_suffix(".ipynb").relative_to(ROOT)) for p in pairs()))
        return 0
    if argv[0] == "run":
        failed = []
        for py in [Path(a).resolve() for a in argv[1:]] or pairs():
            name = py.relative_to(ROOT)
            try:
                run(py)
                print("executed", name)
            except CellControlSignal as error:  # or a timeout; the others are still written
                failed.append(name)
                print(f"FAILED {name}\n{error}", file=sys.stderr)
        if failed:
            print("not written:", ", ".join(map(str, failed)), file=sys.stderr)
        return int(bool(failed))
    bad = [message for py in pairs() for message in check(py)]
    bad += [f"{p.relative_to(ROOT)}: no .py beside it" for p in orphans()]
    print("\n".join(bad) or f"{len(pairs())} pairs in step")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
