"""Price and energy of tokens: published figures, limits, refusals."""

import pytest

from codesign_lib.serving import price
from codesign_lib.specs import published


@pytest.mark.parametrize(("chip", "dollars"), [("h100_sxm", 0.361), ("h200_sxm", 0.392), ("b200_sxm", 0.542), ("gb300", 0.737)])  # fmt: skip  # noqa: E501
def test_published_at_a_thousand_tokens_a_second(chip, dollars):
    assert round(float(price.dollars_per_million(1000, price.price(chip).dollars_per_hour)), 3) == dollars


def test_units():
    assert price.joules_per_token(1000, 1730) == 1.73
    assert price.electricity_per_million(1.0, 1.0) == pytest.approx(0.2778, abs=1e-4)
    # one GPU for an hour: as much electricity as its power says
    assert price.electricity_per_million(price.joules_per_token(1000, 2000), 0.1) * 3.6 == pytest.approx(0.2)
    assert price.dollars_per_million([1000, 2000], 3.6).tolist() == [1.0, 0.5]


def test_owners_and_placeholders():
    for row in published.table("tco")["chip"].tolist():
        if row != "mi325x":  # priced, but no chip of the library
            assert price.price(row).dollars_per_hour <= price.price(row, "owned_neocloud").dollars_per_hour
    assert [c for c in ("b200_sxm", "b300_sxm", "gb200", "gb300") if price.price(c).placeholder] == [
        "b300_sxm",
        "gb300",
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: price.price("gb300", "mine"), "owner is 'mine'; allowed: owned_hyperscaler"),
        (lambda: price.price("h20"), "H20 has no price in SemiAnalysis"),
        (lambda: price.dollars_per_million(0, 1), "throughput_per_s is 0.0"),
        (lambda: price.Price(dollars_per_hour=-1, power_w=1, source="x", as_of="y"), "dollars_per_hour is -1.0"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
