"""Configuration files: which one is found, what it says of a model, and what is wrong with it. How much a proof may
cost, from wherever it is given."""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path

import pytest

from onnxfix.api import keywords
from onnxfix.config.holding import Holding
from onnxfix.config.reading import read_configuration
from onnxfix.config.records import COMMAND_LINE, Config, Layer, model_matches, name_matches, resolve
from onnxfix.errors import UsageError
from onnxfix.options import RunOptions
from onnxfix.place import Place
from onnxfix.runtime.allowance import DEFAULT, QUICK, THOROUGH, effort_of


def config(folder: Path, text: str, name: str = "onnxfix.toml") -> Config:
    (folder / name).write_text(text, encoding="utf-8")
    return read_configuration(folder)


def test_the_nearest_file_upward_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert read_configuration(inner).layer.values.get("target") is None
    (tmp_path / "pyproject.toml").write_text('[tool.onnxfix]\ntarget = "trt10"\n')
    assert read_configuration(inner).layer.values.get("target") == "trt10"
    (tmp_path / "a" / "pyproject.toml").write_text(
        "[tool.other]\nthis is = no TOML, and onnxfix is not in it\n"
    )
    with pytest.raises(UsageError, match=r"is not valid TOML: .*line 2"):
        read_configuration(inner)
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]\nthis is = no TOML\n")
    assert read_configuration(inner).layer.values.get("target") == "trt10"
    (tmp_path / "a" / "pyproject.toml").write_text('[project]\nname = "onnxfix-user"\n')
    assert read_configuration(inner).layer.values.get("target") == "trt10"
    (tmp_path / "a" / "onnxfix.toml").write_text('target = "trt8.6"')
    assert read_configuration(inner).layer.values.get("target") == "trt8.6"
    (inner / ".onnxfix.toml").write_text("")
    assert read_configuration(inner).path == inner / ".onnxfix.toml"
    assert read_configuration(inner, tmp_path / "pyproject.toml").layer.values.get("target") == "trt10"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('targt = "trt10"', "targt: unknown key; did you mean 'target'?"),
        ('fail_on = "error"', "fail_on: unknown key; did you mean 'fail-on'?"),
        ('colour = "red"', "colour: unknown key"),
        ("target = 10", "target: is a number, not a string"),
        ('target = "trt9000"', "target: "),
        ('fail-on = "eror"', "fail-on: unknown value 'eror'; did you mean 'error'?"),
        ("select = true", "select: is a boolean, not a string or an array of strings"),
        ('select = ["CST", 3]', "select: has an item that is a number, not a string"),
        ('ignore = ["XYZ999"]', "ignore: no rule matches 'XYZ999'"),
        ('require = ["ort-gpu"]', "require: unknown check 'ort-gpu'"),
        ("tolerance = 1e-3", "tolerance: is a number, not a table such as { rtol"),
        ("tolerance = { rtoll = 1 }", "tolerance.rtoll: unknown key; did you mean 'rtol'?"),
        ('tolerance = { rtol = "1" }', "tolerance.rtol: is a string, not a number"),
        ("tolerance = { atol = -1 }", "tolerance.atol: is -1, not a finite number of 0 or more"),
        ("tolerance = { atol = nan }", "tolerance.atol: is nan, not a finite"),
        (
            'effort = "most"',
            "effort: unknown effort 'most'; choose from quick, default, thorough, or a number",
        ),
        ("effort = -1", "effort: is -1, not a finite number of 0 or more"),
        ("effort = true", "effort: is a boolean, not a number"),
        ("timeout = 0", "timeout: is 0, not a number of seconds above 0"),
        ('rung-timeout = "1"', "rung-timeout: is a string, not a number"),
        ("[overrides]", "overrides: is not an array of tables; write [[overrides]]"),
        ('[[overrides]]\ntarget = "trt10"', "overrides: models is missing"),
        (
            '[[overrides]]\nmodels = "a"\n[[overrides]]\nmodel = "b"',
            "overrides[2].model: unknown key; did you mean",
        ),
        ('[[overrides]]\nmodels = "a"\nbaseline = "b"', "overrides.baseline: unknown key"),
        ('[[suppressions]]\nrule = "CST002"', "suppressions: reason is missing: say why"),
        ('[[suppressions]]\nrule = "CST002"\nreason = " "', "suppressions.reason: is empty"),
        ('[[suppressions]]\nreason = "x"', "suppressions: rule is missing"),
        ('[[suppressions]]\nrule = "CST9"\nreason = "x"', "suppressions.rule: no rule matches 'CST9'"),
        (
            '[[suppressions]]\nrule = "CST"\nreason = "x"\nuntil = "soon"',
            "suppressions.until: 'soon' is not a date",
        ),
        (
            '[[suppressions]]\nrule = "CST"\nreason = "x"\nuntil = 3',
            "suppressions.until: is a number, not a date",
        ),
        ("target = ", "is not valid TOML"),
    ],
)
def test_what_is_wrong_is_one_line_with_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        config(tmp_path, text)
    assert f"onnxfix.toml: {said}" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_pyproject_names_the_whole_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pyproject.toml: tool.onnxfix.overrides.modls: unknown key"):
        config(tmp_path, '[[tool.onnxfix.overrides]]\nmodls = "a"', "pyproject.toml")
    with pytest.raises(UsageError, match=r"tool.onnxfix is str, not a table"):
        config(tmp_path, '[tool]\nonnxfix = "a"', "pyproject.toml")
    (tmp_path / "pyproject.toml").write_text("[tool.other]")
    with pytest.raises(UsageError, match=r"has no table \[tool.onnxfix\]"):
        read_configuration(tmp_path, tmp_path / "pyproject.toml")
    with pytest.raises(UsageError, match="no such file"):
        read_configuration(tmp_path, tmp_path / "other.toml")


FILE = """
target = "trt10"
select = ["CST", "GRA"]
ignore = ["CST002"]
tolerance = { rtol = 1e-3 }
effort = "quick"
[[overrides]]
models = ["vit*.onnx", "big/**/*.onnx"]
ignore = ["GRA010"]
tolerance = { atol = 0.5 }
[[overrides]]
models = "vit_fp16.onnx"
select = "PRC"
"""


def test_time_limits_reach_the_run(tmp_path: Path) -> None:
    file = 'timeout = 60\nrung-timeout = 20\n[[overrides]]\nmodels = "a.onnx"\ntimeout = 7.5\n'
    found = config(tmp_path, file)

    def of(name: str, **given: float) -> tuple[float | None, float | None]:
        made = Holding(found, Layer(COMMAND_LINE, given)).options(str(tmp_path / name), RunOptions())
        return made.timeout, made.verification.rung_timeout

    assert of("b.onnx") == (60.0, 20.0)
    assert of("a.onnx") == (7.5, 20.0)
    assert of("a.onnx", timeout=1.0, rung_timeout=2.0) == (1.0, 2.0)


def test_later_layers_win_and_say_where_they_are_from(tmp_path: Path) -> None:
    found = config(tmp_path, FILE)

    def of(name: str, **given: object) -> dict[str, object]:
        own = resolve((*found.about(str(tmp_path / name)), Layer(COMMAND_LINE, given)))
        return {key: own.values[key] for key in ("target", "select", "ignore", "rtol", "atol", "effort")}

    base = {"target": "trt10", "select": ("CST", "GRA"), "ignore": ("CST002",), "rtol": 1e-3, "atol": None}
    base["effort"] = "quick"
    assert of("bert.onnx") == base
    assert of("deep/vit.onnx") == base | {"ignore": ("CST002", "GRA010"), "atol": 0.5}
    assert of("big/a/b/bert.onnx") == of("vit.onnx")
    # A select starts over; what is ignored then comes from the same layer or a later one.
    assert of("vit_fp16.onnx") == of("vit.onnx") | {"select": ("PRC",), "ignore": ()}
    assert of("vit_fp16.onnx", ignore=("PRC002",))["ignore"] == ("PRC002",)
    assert of("vit.onnx", ignore=("CST003",))["ignore"] == ("CST002", "GRA010", "CST003")
    assert of("vit.onnx", select=("ALL",), target="rtx", rtol=0.0)["ignore"] == ()
    assert of("bert.onnx", effort="12")["effort"] == "12"
    own = resolve((*found.about(str(tmp_path / "vit.onnx")), Layer(COMMAND_LINE, {"target": "rtx"})))
    assert own.origin("target") == "command line"
    assert own.origin("require") == "default"
    assert own.origin("ignore").endswith("onnxfix.toml, overrides for vit*.onnx, big/**/*.onnx")
    assert own.origin("ignore").count("onnxfix.toml") == 2


@pytest.mark.parametrize(
    ("pattern", "source", "matches"),
    [
        ("vit*.onnx", "/r/models/vit_b.onnx", True),
        ("vit*.onnx", "/r/vit/bert.onnx", False),
        ("models/*.onnx", "/r/models/a.onnx", True),
        ("models/*.onnx", "/r/models/x/a.onnx", False),
        ("models/**/*.onnx", "/r/models/a.onnx", True),
        ("models/**", "/r/models/x/y/a.onnx", True),
        ("./models/a.onnx", "/r/models/a.onnx", True),
        ("../other/a.onnx", "/other/a.onnx", True),
        ("/r/*.onnx", "/r/a.onnx", True),
        ("a.onnx", "s3://bucket/a.onnx", True),
        ("s3://bucket/*", "s3://bucket/a.onnx", True),
        ("Vit.onnx", "/r/vit.onnx", False),
    ],
)
def test_globs_of_models(pattern: str, source: str, matches: bool) -> None:
    assert model_matches(pattern, source, Path("/r")) == matches


def test_globs_of_nodes() -> None:
    assert name_matches("*/attn/*", ["", "/m/layers.0/attn/Cast"])
    assert not name_matches("attn", ["/m/attn"])
    assert name_matches("x[0]", ["x[0]"])
    assert name_matches("*", [""])
    assert not name_matches("?*", [""])


def test_suppressions_cover_by_rule_and_node_until_their_day(tmp_path: Path) -> None:
    text = '[[suppressions]]\nrule = "CST"\nnode = "/a/*"\nreason = "fine"\nuntil = 2026-11-23\nmodels = "m.onnx"\n'
    (one,) = config(tmp_path, text).suppressions
    assert one.covers("CST002", Place(node="/a/Cast", op_type="Cast", output="c"))
    assert one.covers("CST003", Place(op_type="Cast", output="/a/c", index=1))
    assert not one.covers("CST002", Place(node="/b/Cast", op_type="Cast", output="c"))
    assert not one.covers("GRA010", Place(node="/a/Cast", op_type="Cast", output="c"))
    assert not one.expired(date(2026, 11, 23))
    assert one.expired(date(2026, 11, 24))
    found = read_configuration(tmp_path)
    assert found.suppressions_of(str(tmp_path / "m.onnx")) == (one,)
    assert found.suppressions_of(str(tmp_path / "n.onnx")) == ()


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
