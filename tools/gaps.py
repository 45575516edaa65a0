"""Recorded gaps of measured claims beside today's.

  python tools/gaps.py [TOPIC ...]           every gap that left its record or has none, every record without claim
  python tools/gaps.py --write [TOPIC ...]   and record what is found, for claims that were looked at

A gap that moved is to be understood before it is recorded anew.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from unittest import mock

import fitting

from codesign_lib.report import claims
from codesign_lib.report.claims import pair
from codesign_lib.specs.published import GAP_BAND

PATH = fitting.DATA / "recorded_gaps.csv"


def todays(topics: list[str]) -> Mapping[str, float]:
    """The gap of every measured claim of the topics, whether one is recorded or not."""
    with mock.patch.object(pair, "recorded_gaps", lambda: SimpleNamespace(get=lambda key: 0.0)):
        pairs = [p for topic in topics for p in claims.TOPICS[topic]()]
    return {p.key: float(p.ours()) / p.claim.value - 1 for p in pairs if p.claim.kind == "measured"}


def main(argv: list[str]) -> int:
    topics = [a for a in argv if not a.startswith("-")] or list(claims.TOPICS)
    lines = PATH.read_text(encoding="utf-8").splitlines()
    head = [line for line in lines if line.startswith("#")]
    recorded = {row["key"]: row["gap"] for row in csv.DictReader(line for line in lines if not line.startswith("#"))}
    found, changed = todays(topics), 0
    of_topics = {key for key in recorded if key.split("/")[0] in topics}
    for key in sorted(of_topics - set(found)):
        print(f"{key}: recorded {recorded.pop(key)}, no claim")
        changed += 1
    for key, gap in found.items():
        if key not in recorded or abs(gap - float(recorded[key])) > GAP_BAND:
            print(f"{key}: recorded {recorded.get(key, 'nothing')}, today {gap:+.3f}")
            recorded[key] = f"{gap:.3f}"
            changed += 1
    if "--write" in argv:
        rows = [f"{key},{gap}" for key, gap in recorded.items()]
        PATH.write_text("\n".join([*head, "key,gap", *rows]) + "\n", encoding="utf-8")
        return 0
    print(f"{changed} of {len(found)} differ from what is recorded")
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
