"""``--timeout`` and ``--rung-timeout``: what was proven until then counts, and nothing else is written."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

import onnxfix
from onnxfix.errors import TimeLimit, UsageError
from onnxfix.graph.overlay import Node
from onnxfix.model import Model
from onnxfix.report.report import Report
from onnxfix.rule import Match, rule
from onnxfix.runtime import deadline
from onnxfix.runtime.sandbox import close_shared
from onnxfix.verbs import prove
from support import cli, models
from support.toy_rules import identity, unsafe_sqrt, use, wrong_abs

MODEL = """g (float[N, 4] x) => (float[N, 4] y) {
    a = Identity(x) b = Abs(a) c = Exp(b) y = Sqrt(c) }"""

#: A Loop of so many steps that no computer finishes it.
ENDLESS = """g (float[2] x) => (float[2] y) <int64 n = {4611686018427387904}> {
    a = Cast<to = 1>(x)
    y = Loop(n, , a) <body = g (int64 i, bool c, float[2] v) => (bool d, float[2] w)
        { d = Identity(c) w = Add(v, v) }>
}"""


@rule("CCC001", ops=["Abs"])
def endless(node: Node, model: Model) -> Iterator[Match]:
    """Never ends."""
    while True:
        yield from ()


def over_at(monkeypatch: pytest.MonkeyPatch, number: int, *, after: bool) -> None:
    """Time is over before or after the ladder is climbed for this time, from 1."""
    real, calls = prove.run_checks, [0]

    def climb(*arguments: object, **more: object) -> object:
        calls[0] += 1
        if calls[0] == number and not after:
            deadline._ENDS.set(time.monotonic())
        verdict = real(*arguments, **more)
        if calls[0] == number and after:
            deadline._ENDS.set(time.monotonic())
        return verdict

    monkeypatch.setattr(prove, "run_checks", climb)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return models.write(tmp_path / "m.onnx", MODEL)


def apply(path: Path, **more: object) -> tuple[Report, Path]:
    out = path.with_name("out.onnx")
    return onnxfix.apply(path, out, **{"timeout": 1e6, "rungs": "ort-cpu", **more}), out


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_no_fix_is_withdrawn_in_the_search_for_a_culprit_that_time_ended(
    model: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A check that was not run refutes nothing, so that the search would blame another fix."""
    use(monkeypatch, [identity, wrong_abs])
    over_at(monkeypatch, number, after=number == 1)
    report, out = apply(model)
    assert report.verdict.failed
    assert report.withdrawn == ()
    assert report.exit_code == 3
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize("rungs", [["ort-cpu"], ["ort-cpu", "trt-build"]])
def test_what_was_not_run_for_lack_of_time_is_data(
    model: Path, monkeypatch: pytest.MonkeyPatch, rungs: list[str]
) -> None:
    """Also where children would load what these checks need."""
    close_shared()
    use(monkeypatch, [identity])
    over_at(monkeypatch, 1, after=False)
    report, out = apply(model, rungs=rungs)
    assert [(one.name, one.status, one.cause) for one in report.verdict.rungs] == [
        (name, "skipped", "timeout") for name in ("contract", *rungs)
    ]
    assert not report.verdict.passed
    assert report.exit_code == 3
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_unsafe_fixes_that_time_left_unchecked_are_not_written(
    model: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The result that was proven before them is."""
    use(monkeypatch, [identity, unsafe_sqrt])
    over_at(monkeypatch, number, after=number == 1)
    report, out = apply(model, unsafe_fixes=True)
    assert report.exit_code == 1  # its finding is left
    assert [one.code for one in report.applied] == ["AAA001"]
    assert [node.op_type for node in onnx.load(out).graph.node] == ["Abs", "Exp", "Sqrt"]
    assert len(report.notes) == 1


@pytest.mark.parametrize("command", [onnxfix.apply, onnxfix.check])
def test_a_rule_that_never_ends_is_stopped(
    model: Path, monkeypatch: pytest.MonkeyPatch, command: object
) -> None:
    monkeypatch.setattr(deadline, "GRACE", 0.02)
    use(monkeypatch, [endless])
    with pytest.raises(TimeLimit):
        command(model, timeout=0.1)
    assert [one.name for one in model.parent.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("value", [0, -1, "10", float("nan"), True])
def test_a_limit_is_a_number_above_zero(model: Path, value: object) -> None:
    for keyword in ("timeout", "rung_timeout"):
        with pytest.raises(UsageError, match=keyword):
            onnxfix.verify(model, **{keyword: value})


@pytest.mark.slow
def test_the_command_line_exits_with_3_and_one_line(model: Path) -> None:
    code, out, error = cli.run("check", model, "--timeout", "30")
    assert (code, error) == (0, "")  # time enough, also where rules have yet to be imported
    with deadline.within(0.0):
        code, out, error = cli.run("check", model, "--timeout", "5")
    assert (code, out, error.count("\n")) == (3, "", 1)
    assert str(model) in error


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--timeout", "--rung-timeout"])
def test_a_model_that_never_ends_is_given_up(tmp_path: Path, option: str) -> None:
    model, scratch = models.write(tmp_path / "m.onnx", ENDLESS, 18), tmp_path / "scratch"
    scratch.mkdir()
    before = model.read_bytes()
    ran = cli.process(
        *("apply", model, "-o", tmp_path / "out.onnx", "--rungs", "ort-cpu,ort-cuda", option, "2"),
        *("--format", "json"),
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    assert (ran.returncode, ran.stderr) == (3, "")
    (found,) = json.loads(ran.stdout)["reports"]
    rungs = {one["name"]: one for one in found["verdict"]["rungs"]}
    assert rungs["contract"]["status"] == "passed"
    assert (rungs["ort-cpu"]["status"], rungs["ort-cpu"]["cause"]) == ("skipped", "timeout")
    # Only the limit of the whole run leaves checks that were not begun.
    assert (rungs["ort-cuda"]["cause"] == "timeout") is (option == "--timeout")
    assert model.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["m.onnx", "scratch"]
    assert {one.name for one in scratch.iterdir()} <= {".ses"}  # a file of ONNX Runtime's own
