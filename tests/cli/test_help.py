"""The help of each command: groups, values by name, examples that parse, and lines that fit. What a shell completes
is what there is."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer

from onnxfix.cli import completion
from onnxfix.cli.app import app
from onnxfix.cli.commands import COMMANDS as TABLE
from onnxfix.cli.commands import EXAMPLES
from onnxfix.names import RUNGS, TARGETS
from onnxfix.rewrite.registry import BUILT_IN, registry
from onnxfix.targets import name_target
from onnxfix.verbs.reducing import CHECKS
from support.cli import output, run

PROGRAM: Any = typer.main.get_command(app)
COMMANDS = sorted(PROGRAM.commands)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_the_list_of_rules_fits_the_terminal() -> None:
    out = output(0, "rules")
    assert max(map(len, out.splitlines())) <= 80
    assert re.search(
        r"^BRC001  rank-mismatched-constant +info    exact   A constant\n {8}operand", out, re.MULTILINE
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_checks_are_called_checks(command: str) -> None:
    """The options have kept their names."""
    assert not re.search(r"(?<!--)\b(rung|ladder)", run(command, "--help")[1])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_shown_once_without_its_type(command: str) -> None:
    out = output(0, command, "--help")
    assert max(map(len, out.splitlines())) < 80
    body = out.partition("\nExamples:")[0]
    assert "<" not in body
    for option in TABLE[command].options:
        shown = re.findall(rf"^  (?:    |-\w, ){option.flag}(?![-\w]).*", body, re.MULTILINE)
        assert len(shown) == 1, option.flag
        assert all(choice in body for choice in option.choices)


@pytest.mark.parametrize("command", ["check", "apply", "verify"])
def test_options_are_in_groups(command: str) -> None:
    body = run(command, "--help")[1].partition("\nExamples:")[0]
    headings = re.findall(r"^([A-Z][a-zA-Z ]+):$", body, re.MULTILINE)
    assert headings[0] == "Arguments"
    assert headings[-2:] == ["Report", "Help"]
    assert "Options" not in headings
    assert len(headings) == len(set(headings)) > 4


def test_defaults_are_shown() -> None:
    out = " ".join(run("apply", "--help")[1].split())
    assert "--seed N Random seed of generated inputs. [default: 0]" in out
    assert "makes the exit code 1 (default: warning). [info, warning, error, never]" in out
    assert "--in-place Overwrite the models. " in out


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("precision", {"--to", "--max-error"}),
        ("reduce", {"--check"}),
        ("apply", set()),
    ],
)
def test_required_options_say_so(command: str, options: set[str]) -> None:
    """Each in its own help, and no other option."""
    shown = re.split(r"\n +(?:-\w, )?(?=--)", run(command, "--help")[1])
    assert {one.split()[0] for one in shown if "[required" in one} == options


def test_the_program_lists_commands_in_groups() -> None:
    out = output(0, "--help")
    assert re.findall(r"^  (\w+) ", out.partition("\nHelp:")[0], re.MULTILINE) == list(PROGRAM.commands)
    assert out.index("Find and repair:") < out.index("  apply") < out.index("Look up:") < out.index("  rules")
    assert "..." not in out.partition("Examples:")[0]
    assert run()[0] == 2


def test_every_command_has_examples_that_parse() -> None:
    assert all(command.examples for command in TABLE.values())
    for command, examples in [("", EXAMPLES), *((name, one.examples) for name, one in TABLE.items())]:
        page = run(*filter(None, [command, "--help"]))[1]
        for example in examples:
            program, name, *rest = shlex.split(example)
            assert program == "onnxfix"
            assert name == command or not command
            with PROGRAM.commands[name].make_context(name, rest) as context:
                assert context.params
            assert example in page


def test_styles_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in run("explain", "--help")[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    styled = run("explain", "--help")[1]
    assert "\x1b[1;32mUsage:\x1b[0m" in styled
    assert re.sub(r"\x1b\[[\d;]*m", "", styled).count("\x1b") == 0
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("explain", "--help")[1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["chek"], "chek: no such command (did you mean check?); see '{} --help'"),
        (["check"], "MODEL is missing; see '{} check --help'"),
        (["check", "--format"], "--format: needs a value: --format FORMAT"),
        (["check", "m", "--resume=3"], "--resume: takes no value"),
        (
            ["check", "m", "--fail-on", "waring"],
            "--fail-on: 'waring' is not one of info, warning, error, never (did you mean warning?); "
            "see '{} check --help'",
        ),
        (
            ["apply", "m", "--numeric-fix"],
            "--numeric-fix: no such option (did you mean --numeric-fixes?); see '{} apply --help'",
        ),
        (["apply", "m", "--bogus"], "--bogus: no such option; see '{} apply --help'"),
        (["apply", "m", "--seed", "1.5"], "--seed: '1.5' is not a whole number; see '{} apply --help'"),
        (["check", "m", "--timeout", "nan"], "--timeout: nan is less than 0.1; see '{} check --help'"),
        (["verify", "m", "--max-batch", "1"], "--max-batch: 1 is less than 2; see '{} verify --help'"),
        (
            ["verify", "m", "--max-batch", "9999999999"],
            "--max-batch: 9999999999 is more than 2147483647; see '{} verify --help'",
        ),
        (["diagnose", "m", "--timeout", "x"], "--timeout: 'x' is not a number; see '{} diagnose --help'"),
    ],
)
def test_what_is_wrong_with_an_option_is_one_line(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        PROGRAM.main(given, prog_name="onnxfix")
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == 1
    assert (out, err) == ("", f"onnxfix: {said.format('onnxfix')}\n")


def test_the_rules_of_the_catalog_are_completed() -> None:
    built_in = [rule for rule in registry().rules if rule.module.startswith(f"{BUILT_IN}.")]
    assert completion.known_rules() == {rule.code: rule.name for rule in built_in}


def test_rules() -> None:
    families = [value for value, _ in completion.rules("")]
    assert families[:2] == ["BRC", "CST"]
    assert {len(family) for family in families} == {3}
    assert ("CST002", "no-op-cast") in completion.rules("cst")
    assert completion.rules("CST")[:2] == [("CST", "all of the family"), ("CST001", "redundant-cast-chain")]
    assert completion.rules("no-op") == [("no-op-cast", "CST002")]
    assert completion.rules("BRC001,INT,CST002") == [("BRC001,INT,CST002", "no-op-cast")]
    assert completion.rules("nothing") == []


def test_checks() -> None:
    assert completion.checks("ort") == ["ort-cpu", "ort-cuda", "ort-trt"]
    assert completion.checks("ort-cpu,ort") == ["ort-cpu,ort-cuda", "ort-cpu,ort-trt"]
    assert len(completion.checks("")) == len(RUNGS)
    assert set(completion.failures("")) == set(CHECKS)


def test_targets() -> None:
    assert [value for value, _ in completion.targets("")] == [*TARGETS]
    assert completion.targets("TRT8.6") == [("trt8.6", "TensorRT 8.6")]
    assert completion.targets("10.3,TRT8.6") == [("10.3,trt8.6", "TensorRT 8.6")]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("trt10", "trt10"), ("TRT10", "trt10"), ("trt-10", "trt10"), ("10", "trt10"), ("10.3", "trt10.3"),
        ("10.x", "trt10"), ("10.13.3", "trt10.13"), ("TensorRT 10.14.1", "trt10.14"), ("tensorrt_11", "trt11"),
        ("v11.2", "trt11.2"), ("11.5", "trt11"), ("10.17", "trt10"), ("10.3.0", "trt10.3"), ("TRT10.3", "trt10.3"),
        ("jetpack6.2", "trt10.3"), ("JetPack 6.2", "trt10.3"), ("jetpack5.0.2", "trt8.4"), ("jetpack7.2", "trt10.16"),
        ("8.4", "trt8.4"), ("8.2.5", "trt8.4"), ("trt8.4.1", "trt8.4"), ("8.6.1", "trt8.6"), (" RTX ", "rtx"),
        ("rtx1.7", "rtx"), ("TensorRT-RTX 1.7.1", "rtx"), ("tensorrt-rtx", "rtx"),
        ("8.4.2", "trt8.4"), ("8.5", "trt8.5"),
        ("8", None), ("9", None), ("12", None), ("jetpack6", None), ("jetpack", None), ("trt", None), ("", None),
        ("rtx10.3", None), ("1.7", None), ("rtx2", None), ("trt10a", None), ("tensor", None),
    ],
)  # fmt: skip
def test_spellings_of_a_target(text: str, target: str | None) -> None:
    assert name_target(text) == target
