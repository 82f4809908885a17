"""The index of the built-in rules: it says what the files say, is never older than they are, and can always go."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxfix import engine, index
from onnxfix.causes import Problem
from onnxfix.model import Model
from onnxfix.registry import BUILT_IN, rules_of
from onnxfix.rule import Match, Rule, Safety, Severity

PACK = "rules_of_test_index"
ONE = """from onnxfix.rule import Match, Safety, Severity, Silent, rule

@rule("ZZZ001", ops=["Neg", "ai.onnx::Abs", "com.x::Y", "*"], safety=Safety.UNSAFE, severity=Severity.ERROR,
      default=False, general=True, hazards=[3, 4])
def one_thing(node, model):
    '''First line.

    More.
    '''
    yield Match("seen", node)

one_thing.examples = [Silent("none", "g () => () {}")]
"""
TWO = f"""from onnxfix.rule import rule
from {PACK}.one import one_thing

@rule("AAA002", per="model")
def other(model):
    '''Another.'''
    yield from ()
"""


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of two rules, its bytecode folder included."""
    folder = tmp_path / PACK
    folder.mkdir()
    for name, text in (("__init__", ""), ("one", ONE), ("two", TWO)):
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    importlib.invalidate_caches()
    yield folder
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == PACK]:
        del sys.modules[name]


def made() -> list[Rule]:
    """Import the rules, make the index, and forget them."""
    rules = list(rules_of(PACK))
    index.save(PACK, rules)
    forget()
    return rules


def test_an_index_says_what_the_files_say_and_imports_them_late(pack: Path) -> None:
    rules = made()
    listed = index.load(PACK)
    assert listed is not None
    assert [rule.code for rule in listed] == [rule.code for rule in rules] == ["ZZZ001", "AAA002"]
    late = {"generate", "examples", "doc"}
    for known, wanted in zip(listed, rules, strict=True):
        for name in {field.name for field in fields(Rule)} - late:
            value = getattr(known, name)
            assert (value, type(value)) == (getattr(wanted, name), type(getattr(wanted, name))), name
    assert not [name for name in sys.modules if name.startswith(f"{PACK}.")]
    assert listed[0].summary == "First line."
    assert [name for name in sys.modules if name.startswith(f"{PACK}.")] == [f"{PACK}.one"]
    assert listed[1].summary == "Another."  # its file knows the first rule, too
    for known, wanted in zip(listed, rules, strict=True):
        assert (known.doc, known.examples) == (wanted.doc, wanted.examples)
        assert known.generate.__code__ == wanted.generate.__code__
    with pytest.raises(AttributeError, match="color"):
        listed[0].color  # type: ignore[attr-defined]  # noqa: B018


def test_rules_are_made_of_listed_ones_and_travel(pack: Path) -> None:
    made()
    listed = index.load(PACK)
    assert listed is not None
    other = replace(listed[0], types=(1,), default=True)
    for field in fields(Rule):
        wanted = {"types": (1,), "default": True}.get(field.name, getattr(listed[0], field.name))
        assert getattr(other, field.name) == wanted, field.name
    for wrong in ({"color": 1}, {"code": "A", "severity": Severity.INFO}):
        with pytest.raises(TypeError):
            index.Listed(**wrong)
    forget()
    listed = index.load(PACK)
    assert listed is not None
    copy = pickle.loads(pickle.dumps(listed[0]))
    assert (copy.code, copy.summary) == ("ZZZ001", "First line.")


def touch(path: Path) -> None:
    """As after an edit that keeps the size."""
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))


def test_an_index_is_not_trusted_once_a_file_came_went_or_changed(pack: Path) -> None:
    made()
    assert index.load(PACK) is not None
    touch(pack / "one.py")
    assert index.load(PACK) is None
    made()
    (pack / "two.py").write_text(TWO + " ")
    assert index.load(PACK) is None
    made()
    (pack / "three.py").write_text("")
    assert index.load(PACK) is None
    made()
    (pack / "three.py").unlink()
    assert index.load(PACK) is None
    made()
    (pack / "sub").mkdir()
    (pack / "sub" / "__init__.py").write_text("")
    assert index.load(PACK) is None


@pytest.mark.parametrize("name", ["onnxfix", "onnx", "numpy"])
def test_an_index_is_not_trusted_with_other_libraries(
    pack: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made()
    holder = index if name == "onnxfix" else getattr(index, name)
    monkeypatch.setattr(holder, "__version__", "0.0.0.other")
    assert index.load(PACK) is None


def test_an_index_is_not_trusted_once_onnxfix_changed(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "index.py").write_text("")
    monkeypatch.setattr(index, "__file__", str(home / "index.py"))
    made()
    assert index.load(PACK) is not None
    touch(home / "index.py")
    assert index.load(PACK) is None


def cached(pack: Path) -> Path:
    (found,) = (pack / "__pycache__").glob("*.json")
    return found


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: b"[]",
        lambda data: b"\xff\xfe",
        lambda data: b'{"signature": null}',
        lambda data: json.dumps(json.loads(data) | {"rules": [{}]}).encode(),
        lambda data: json.dumps(json.loads(data) | {"rules": 7}).encode(),
        lambda data: data.replace(b'"severity": 2', b'"severity": 9'),
    ],
)
def test_a_damaged_index_is_as_none(pack: Path, spoil: object) -> None:
    made()
    path = cached(pack)
    data = path.read_bytes()
    path.write_bytes(spoil(data))  # type: ignore[operator]
    assert path.read_bytes() != data
    assert index.load(PACK) is None


def test_nothing_is_written_where_python_writes_no_bytecode(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made()
    assert not list(pack.rglob("*.json"))


def test_another_user_may_read_the_index(pack: Path) -> None:
    (pack / "__init__.py").chmod(0o644)
    made()
    assert cached(pack).stat().st_mode & 0o777 == 0o644


def test_a_python_without_bytecode_has_no_index(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.implementation, "cache_tag", None)
    rules = made()
    assert len(rules) == 2
    assert index.load(PACK) is None


def test_a_folder_that_cannot_be_written_is_no_matter(pack: Path) -> None:
    (pack / "__pycache__").write_text("in the way")
    rules = made()
    assert len(rules) == 2
    assert index.load(PACK) is None
    assert (pack / "__pycache__").read_text() == "in the way"


def test_nothing_half_written_is_left(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index.os, "replace", full)
    made()
    assert not [path for path in pack.rglob("*") if "json" in path.name]


def test_a_rule_whose_file_broke_is_a_problem_of_that_rule_alone(pack: Path) -> None:
    made()
    listed = index.load(PACK)
    assert listed is not None
    (pack / "one.py").write_text("import module_that_is_not_there")
    importlib.invalidate_caches()
    model = Model(
        parser.parse_model(
            '<ir_version: 9, opset_import: ["" : 18]> g (float[N] x) => (float[N] y) { y = Neg(x) }'
        )
    )
    problems: list[Problem] = []
    assert engine.check(model, listed[:1], problems) == []
    (problem,) = problems
    assert problem.rule == "ZZZ001"
    assert "module_that_is_not_there" in problem.text


def test_the_built_in_rules_are_listed_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    wanted = list(rules_of(BUILT_IN))
    index.save(BUILT_IN, wanted)
    listed = index.load(BUILT_IN)
    assert listed is not None
    assert len(listed) == len(wanted) > 150
    for known, rule in zip(listed, wanted, strict=True):
        for field in fields(Rule):
            assert getattr(known, field.name) == getattr(rule, field.name), (rule.code, field.name)
        assert isinstance(known.severity, Severity)
        assert known.safety is None or isinstance(known.safety, Safety)


def test_a_listed_rule_finds(pack: Path) -> None:
    made()
    (rule, _) = index.load(PACK) or ()
    proto = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[N] x) => (float[N] y) { y = Neg(x) }'
    )
    assert isinstance(proto, onnx.ModelProto)
    found = engine.check(Model(proto), [rule])[0]
    assert isinstance(found.match, Match)
    assert (found.match.message, found.severity) == ("seen", Severity.ERROR)
