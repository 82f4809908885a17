"""How much a proof may cost, from wherever it is given."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from onnxfix.api import keywords
from onnxfix.config.holding import Holding
from onnxfix.config.reading import read_configuration
from onnxfix.config.records import COMMAND_LINE, Layer
from onnxfix.errors import UsageError
from onnxfix.options import RunOptions
from onnxfix.runtime.effort import DEFAULT, QUICK, THOROUGH, effort_of


def test_a_budget_is_a_multiple_of_the_price_with_a_floor() -> None:
    assert DEFAULT.budget(0.0) == DEFAULT.floor > 1
    assert DEFAULT.budget(100.0) == 100 * DEFAULT.multiple
    assert QUICK.budget(1.0) < DEFAULT.budget(1.0)
    assert THOROUGH.budget(0.0) == math.inf
    assert effort_of("12.5").budget(100.0) == effort_of(12.5).budget(0.0) == 12.5
    assert [str(effort_of(one)) for one in ("quick", "default", "thorough", 7)] == [
        "quick",
        "default",
        "thorough",
        "7",
    ]


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


def test_a_setting_is_that_of_the_run_and_an_option_wins(tmp_path: Path) -> None:
    (tmp_path / "onnxfix.toml").write_text(
        'effort = 2\n[[overrides]]\nmodels = "a.onnx"\neffort = "thorough"\n'
    )
    found = read_configuration(tmp_path)

    def of(name: str, **given: str) -> object:
        holding = Holding(found, Layer(COMMAND_LINE, given))
        return holding.options(str(tmp_path / name), RunOptions()).verification.effort

    assert of("a.onnx") is THOROUGH
    assert of("b.onnx") == effort_of(2)
    assert of("b.onnx", effort="quick") is QUICK
    assert Holding().options("b.onnx", RunOptions()).verification.effort is DEFAULT
