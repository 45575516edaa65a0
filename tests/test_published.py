"""Every claim of the book, by its kind; and what a claim and a table refuse."""

from dataclasses import fields

import numpy as np
import pytest

from codesign_lib.report import claims
from codesign_lib.report.claims import pair
from codesign_lib.specs import hardware, published
from codesign_lib.specs.published import Claim

ALL = [p for topic in claims.TOPICS for p in claims.pairs(topic)]


@pytest.mark.parametrize("held", ALL, ids=lambda p: p.key)
def test_claim_holds(held):
    check = held.check()
    assert check.ok, str(check)


def test_keys_are_unique():
    keys = [p.key for p in ALL]
    assert len(keys) == len(set(keys))


def test_no_recorded_gap_without_a_claim():
    recorded = set(published.table("recorded_gaps")["key"].tolist())
    assert recorded == {p.key for p in ALL if p.claim.kind == "measured"}


def test_every_number_of_a_chip_is_held_against_a_printed_source():
    numbers = {f"chips/{c.name}/{f.name}" for c in hardware.CHIPS.values() for f in fields(c)
               if isinstance(getattr(c, f.name), int | float)}  # fmt: skip
    assert numbers <= {p.key for p in ALL}


CLAIM = {"what": "x", "value": 2.0, "unit": "s", "source": "somebody", "kind": "exact"}


@pytest.mark.parametrize(
    ("change", "ours", "ok"),
    [
        ({}, 2.0 + 1e-9, True),
        ({}, 2.00001, False),
        ({"rtol": 1e-3}, 2.0019, True),
        ({"rtol": 1e-3}, 2.0021, False),
        ({"rtol": 1e-3, "quantum": 0.0001}, 2.001, False),  # what was printed decides alone
        ({"quantum": 0.1}, 2.05, True),
        ({"quantum": 0.1}, 2.051, False),
        ({"value": 2.1, "quantum": 0.1, "quantum_before": 0.01}, 2.0451, True),  # → 2.05 → 2.1
        ({"value": 2.1, "quantum": 0.1}, 2.0451, False),  # rounded once it is 2.0
        ({"kind": "measured", "recorded_gap": -0.5}, 1.0, True),
        ({"kind": "measured", "recorded_gap": -0.5}, 1.05, False),  # better by 2.5 points: looked at again as well
        ({"kind": "measured", "recorded_gap": -0.5}, 0.95, False),
        ({"kind": "measured", "recorded_gap": -0.5}, 1.042, False),  # two points and no more
        ({"kind": "measured", "recorded_gap": -0.5}, 1.038, True),
        ({"kind": "trend"}, 0.1, True),
        ({"kind": "trend"}, -0.1, False),
        ({"kind": "trend", "unit": "×"}, 1.1, True),
        ({"kind": "trend", "unit": "×"}, 0.9, False),
        ({"kind": "trend", "value": (3.0, 1.0, 2.0)}, (30.0, 1.0, 29.0), True),
        ({"kind": "trend", "value": (3.0, 1.0, 2.0)}, (30.0, 1.0, 31.0), False),
        ({"kind": "trend", "value": (1.0, 2.0, 3.0)}, (5.0, 5.0, 5.0), False),
        ({"kind": "trend", "value": (1.0, 1.0, 2.0)}, (5.0, 5.0, 7.0), True),
    ],
)
def test_what_passes(change, ours, ok):
    assert Claim(**(CLAIM | change)).check(ours).ok is ok


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "close"}, "kind is 'close'; allowed: exact, measured, trend"),
        ({"source": " "}, "no source"),
        ({"value": "2"}, "value is '2'; allowed: real numbers"),
        ({"value": None}, "allowed: real numbers"),
        ({"quantum": 5.0}, "quantum 5.0 is above the value"),
        ({"kind": "trend", "value": (1.0,)}, "one number, or two and more"),
        ({"rtol": 0.01}, "rtol is 0.01; allowed: 0 to 0.001"),
        ({"rtol": float("nan")}, "rtol is nan"),
        ({"quantum": -1.0}, "quantum is -1.0; allowed: finite, 0 or more"),
        ({"quantum_before": float("nan")}, "quantum_before is nan"),
        ({"kind": "measured", "recorded_gap": float("nan")}, "recorded_gap is nan; allowed: finite"),
        ({"kind": "measured"}, "a recorded gap goes with"),
        ({"recorded_gap": 0.1}, "a recorded gap goes with"),
        ({"value": float("nan")}, "value is NaN; allowed: real numbers"),
        ({"value": float("inf")}, "value is inf; allowed: finite"),
        ({"value": 0.0}, "one number other than 0"),
        ({"value": (1.0, 2.0)}, "one number other than 0"),
    ],
)
def test_claim_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        Claim(**(CLAIM | change))


@pytest.mark.parametrize("ours", [float("nan"), float("inf"), (1.0, 2.0), None, "2"])
def test_check_refuses(ours):
    with pytest.raises(ValueError, match=r"ours is .*; allowed: (finite, in the shape|real numbers)"):
        Claim(**CLAIM).check(ours)


def test_a_measured_claim_without_recorded_gap_is_named(monkeypatch):
    monkeypatch.setattr(pair, "recorded_gaps", dict)
    with pytest.raises(ValueError, match="no recorded gap for squares/trtllm/bf16/h512"):
        list(claims.TOPICS["squares"]())


def test_a_check_says_what_it_compared():
    trend = Claim(**(CLAIM | {"kind": "trend", "value": (1.0, 2.0)}))
    assert "ours 3, 4, published 1, 2 s" in str(trend.check((3.0, 4.0)))
    assert "gap +50.0%" in str(Claim(**CLAIM).check(3.0))


def test_a_cached_table_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        published.table("gemm_gb300")["latency_s"][0] = 1.0
    with pytest.raises(TypeError):
        published.table("gemm_gb300").columns["latency_s"] = np.ones(1)
    with pytest.raises(TypeError):
        pair.recorded_gaps()["x"] = 1.0


def test_unknown_topic():
    with pytest.raises(ValueError, match=r"no claims on 'roof'; topics: chips, peaks"):
        claims.pairs("roof")


class TestTable:
    def test_reads_numbers_and_text(self):
        table = published.table("gemm_gb300")
        assert table["latency_s"].dtype == np.float64
        assert set(table["engine"]) == {"trtllm", "sglang"}
        assert all(table.header[key] for key in published.HEADER)

    def test_sorts_upwards_and_keeps_rows_together(self):
        table = published.table("gemm_staircase").where(engine="trtllm", fmt="nvfp4")
        mixed = published.Table(name="x", header={}, columns={c: v[::-1] for c, v in table.columns.items()})
        assert (np.diff(mixed.sorted_by("m")["m"]) > 0).all()
        assert (mixed.sorted_by("m")["latency_s"] == table.sorted_by("m")["latency_s"]).all()

    def test_refuses_unknown_column_and_empty_selection(self):
        table = published.table("gemm_gb300")
        with pytest.raises(ValueError, match=r"no column 'h'; it has chip, engine"):
            table["h"]
        with pytest.raises(ValueError, match="no row with fmt='int8'"):
            table.where(fmt="int8")

    @pytest.mark.parametrize(
        ("text", "message"),
        [("# source: a\nx\n1\n", "lacks version, date, licence"), ("{head}x,y\n1\n", "row 0 has 1 cells")],
    )
    def test_refuses_a_broken_file(self, tmp_path, monkeypatch, text, message):
        head = "".join(f"# {key}: a\n" for key in published.HEADER)
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "broken.csv").write_text(text.format(head=head))
        monkeypatch.setattr(published, "files", lambda package: tmp_path)
        published.table.cache_clear()
        with pytest.raises(ValueError, match=message):
            published.table("broken")

    def test_every_csv_has_a_full_header(self):
        folder = published.files("codesign_lib") / "data"
        names = sorted(str(p.relative_to(folder).with_suffix("")) for p in folder.rglob("*.csv"))
        assert "gemm_gb300" in names
        for name in names:
            published.table(name)
