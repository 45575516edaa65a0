import math

import matplotlib.pyplot as plt
import numpy as np
import pytest

from codesign_lib.report import claims, plotting, tables
from codesign_lib.specs import published
from codesign_lib.specs.published import Claim


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.5e16, "FLOP/s", "15.0 PFLOP/s"),
        (9.1626e-6, "s", "9.16 µs"),
        (999.9, "B", "1.00 kB"),  # rounds up into the next prefix
        (1.0, "s", "1.00 s"),
        (8e12, "B/s", "8.00 TB/s"),
        (-2e3, "W", "-2.00 kW"),
        (0, "s", "0 s"),
        (math.inf, "s", "inf s"),
    ],
)
def test_si(value, unit, text):
    assert plotting.si(value, unit) == text


def test_si_refuses_a_prefix_that_is_none():
    with pytest.raises(ValueError, match="prefix is 'x'; allowed: q, r"):
        plotting.si(1.0, "s", prefix="x")


@pytest.mark.parametrize("value", [1e-300, -1e300])
def test_si_beyond_the_prefixes_stays_short(value):
    assert len(plotting.si(value, "s")) < 12


def test_si_with_a_fixed_prefix():
    assert plotting.si(8.847e-7, "s", 4, prefix="µ") == "0.8847 µs"
    assert plotting.si(1234e12, "FLOP/s", prefix="T") == "1,230 TFLOP/s"


def test_drawn_hides_the_last_bits():
    assert plotting.drawn(0.1 + 0.2) == plotting.drawn(0.3)
    assert plotting.drawn([[1.0, np.inf], [np.nan, -1e-30]]).shape == (2, 2)


def test_table_has_html_and_a_text_twin():
    shown = plotting.table({"x": ["a", "b"], "n": [1234, 0.12345]})
    assert "1,234" in repr(shown)
    assert "0.1235" in repr(shown)
    assert shown._repr_html_().count('<th scope="col"') == 2
    assert shown._repr_html_().count("<thead>") == 1
    assert shown._repr_html_().count("<tr>") == 3


def test_words_stand_left_and_numbers_right_and_long_text_wraps():
    html = plotting.table({"x": ["a"], "n": [1], "why": ["word " * 10]})._repr_html_()
    assert html.count("text-align: right") == 2
    assert html.count('class="long"') == 1


def test_table_without_rows():
    assert "x" in repr(plotting.table({"x": [], "n": []}))


def test_table_escapes_html():
    assert "<b>" not in plotting.table({"<i>": ["<b>"]})._repr_html_()


def test_table_shows_infinity():
    assert "∞" in repr(plotting.table({"n": [np.inf]}))


def test_table_shows_large_numbers_whole_and_nan_as_a_dash():
    shown = repr(plotting.table({"n": [12345.678, float("nan"), True, None]}))
    assert [word in shown for word in ("12,346", "–", "True", "None")] == [True] * 4


def test_table_refuses_ragged_columns():
    with pytest.raises(ValueError, match="columns of different lengths"):
        plotting.table({"a": [1, 2], "b": [1]})


def test_sentence_has_markdown_and_a_text_twin():
    said = plotting.say("**9 µs**")
    assert said._repr_markdown_() == repr(said) == "**9 µs**"


def test_a_failing_claim_is_shown_as_such():
    claim = Claim(what="x", value=1.0, unit="s", source="somebody", kind="exact")
    assert "FAILS" in repr(tables.checks([claim.check(2.0)]))
    assert "FAILS" not in repr(tables.checks(claims.check("table2")))


def test_colours_mean_one_thing():
    roles = {plotting.COMPUTE, plotting.MEMORY, plotting.NETWORK, plotting.MEASURED}
    assert len(roles) == 4
    assert roles.isdisjoint(plotting.SERIES)


@pytest.mark.parametrize("ends", [{"low": 0.0}, {"low": 1e4}, {"high": 100.0}])
def test_roof_needs_both_sides_of_the_ridge(ends):
    with pytest.raises(ValueError, match="on both sides of the ridge at 1875"):
        plotting.roof(None, "gb300", "nvfp4", **ends)


def test_roof_has_its_knee_at_the_ridge():
    _, ax = plt.subplots()
    plotting.roof(ax, "gb300", "nvfp4")
    memory, compute = ax.get_lines()
    assert (memory.get_xdata()[1], memory.get_ydata()[1]) == (compute.get_xdata()[0], compute.get_ydata()[0])
    assert memory.get_xdata()[1] == 1875
    assert set(compute.get_ydata()) == {15e15}
    plt.close()


def test_named_takes_the_longest_suffix_and_shows_what_is_absent():
    assert tables.named("hbm_bytes_per_s", 8e12) == "8.00 TB/s"
    assert tables.named("tokens_per_s", 1200.0) == "1.20 k/s"
    assert tables.named("launch_s", None) == "–"
    assert tables.named("n_sms", 152) == "152"


class TestPivot:
    def rows(self, **columns):
        header = dict.fromkeys(published.HEADER, "a")
        return published.Table(name="t", header=header, columns={c: np.array(v) for c, v in columns.items()})

    def test_places_every_row_and_shows_what_is_absent(self):
        rows = self.rows(chip=["a", "a", "b"], fmt=["x", "y", "y"], s=[1.0, 2.0, 3.0])
        shown = tables.pivot(rows, index=["chip"], across="fmt", cell="{s:.1f}")
        assert shown.header == ("chip", "x", "y")
        assert shown.rows == (("a", "1.0", "2.0"), ("b", "–", "3.0"))

    def test_only_picks_and_orders(self):
        rows = self.rows(chip=["a", "a", "a"], fmt=["x", "y", "z"], s=[1.0, 2.0, 3.0])
        shown = tables.pivot(rows, index=["chip"], across="fmt", cell="{s:.0f}", only=["z", "x"])
        assert (shown.header, shown.rows) == (("chip", "z", "x"), (("a", "3", "1"),))

    def test_refuses_two_rows_for_a_cell(self):
        rows = self.rows(chip=["a", "a"], fmt=["x", "x"], s=[1.0, 2.0])
        with pytest.raises(ValueError, match=r"two rows of t for \['a'\], x"):
            tables.pivot(rows, index=["chip"], across="fmt", cell="{s}")


def test_summary_counts_what_agrees_and_what_is_as_recorded_and_names_the_worst():
    measured = {"unit": "s", "source": "somebody", "kind": "measured"}
    good = Claim(what="good", value=1.0, recorded_gap=0.1, **measured).check(1.1)
    moved = Claim(what="moved", value=1.0, recorded_gap=0.0, **measured).check(0.7)
    exact = Claim(what="x", value=1.0, unit="s", source="somebody", kind="exact").check(1.0)
    shown = tables.summary({"a": [good, moved], "b": [exact]})
    assert shown.rows == (
        ("a", "–", "1 of 2", "20.0%", "-30.0%", "moved"),
        ("b", "1 of 1", "–", "–", "–", "–"),
    )
