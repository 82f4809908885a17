"""How much a proof may cost, from wherever it is given."""

from __future__ import annotations

import math

import pytest

from onnxfix.api import keywords
from onnxfix.errors import UsageError
from onnxfix.runtime.allowance import DEFAULT, QUICK, THOROUGH, effort_of


def test_a_budget_is_a_multiple_of_the_price_with_a_floor() -> None:
    assert DEFAULT.budget(0.0) == DEFAULT.floor > 1
    assert DEFAULT.budget(100.0) == 100 * DEFAULT.multiple
    assert QUICK.budget(1.0) < DEFAULT.budget(1.0)
    assert THOROUGH.budget(0.0) == math.inf
    assert effort_of("12.5").budget(100.0) == effort_of(12.5).budget(0.0) == 12.5
    names = ["quick", "default", "thorough", "7"]
    assert [str(effort_of(one)) for one in names] == names


@pytest.mark.parametrize("wrong", ["most", "", "-1", "nan", "inf", -0.5])
def test_what_is_no_effort_is_refused(wrong: str | float) -> None:
    with pytest.raises(UsageError, match=r"unknown effort .* choose from quick, default, thorough"):
        effort_of(wrong)


def test_the_keyword_takes_a_name_or_seconds() -> None:
    assert keywords.effort("effort", "thorough") is THOROUGH
    assert keywords.effort("effort", 3).budget(0.0) == 3.0
    for wrong in (None, True, [1]):
        with pytest.raises(UsageError, match="effort is a name or a number of seconds"):
            keywords.effort("effort", wrong)
