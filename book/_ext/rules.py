"""Design rules collected from the studies when the site is built: what a cell tagged ``rule`` printed, nothing retyped.

In a page, `<!-- rules -->` stands for the rules of every study, `<!-- rule 2.1 -->` for one of them, and
`<!-- study 4 -->` for a link to a study; what is not there yet is said to be planned.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

PAGES = ("book/rules", "book/guidelines")


def setup(app):
    app.connect("source-read", fill_in)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def fill_in(app, docname, source):
    if docname in PAGES:
        source[0] = filled(source[0], studies(Path(app.srcdir) / "studies"))


def studies(folder: Path) -> dict[int, dict]:
    """Title, label and rules of every executed study, by its number."""
    found = {}
    for path in sorted(folder.glob("[0-9]*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        head = "".join(cells[0]["source"])
        rules = [text for cell in cells if "rule" in cell["metadata"].get("tags", []) for text in _printed(cell)]
        label, title = re.search(r"^\(([\w-]+)\)=\n# (.+)$", head, re.MULTILINE).groups()
        paragraphs = [p for text in rules for p in text.split("\n\n") if p.strip()]
        found[int(path.name.split("_")[0])] = {"title": title, "label": label, "rules": paragraphs}
    return found


def _printed(cell: dict) -> list[str]:
    data = (o.get("data", {}) for o in cell.get("outputs", []))
    return ["".join(d["text/markdown"]) for d in data if "text/markdown" in d]


def filled(text: str, found: dict[int, dict]) -> str:
    """The page with every placeholder replaced."""
    text = text.replace("<!-- rules -->", "\n\n".join(_of_study(n, s) for n, s in sorted(found.items())))
    text = re.sub(r"<!-- study (\d+) -->", lambda m: _link(int(m[1]), found), text)
    return re.sub(r"<!-- rule ([\d.]+) -->", lambda m: _rule(m[1], found), text)


def _of_study(number: int, study: dict) -> str:
    rules = "\n\n".join(study["rules"])
    return f"## {number} {study['title']}\n\nFrom {{ref}}`study {number} <{study['label']}>`.\n\n{rules}"


def _link(number: int, found: dict[int, dict]) -> str:
    if number not in found:
        return f"study {number} (planned)"
    return f"{{ref}}`study {number} <{found[number]['label']}>`"


def _rule(number: str, found: dict[int, dict]) -> str:
    every = (p for study in found.values() for p in study["rules"])
    return next((p for p in every if p.startswith(f"**Rule {number}.**")), f"Rule {number} is planned.")
