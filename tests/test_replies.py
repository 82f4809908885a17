"""What a child answers is data, or is refused: whoever takes a child over writes its answers."""

from __future__ import annotations

import enum
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfix.errors import ModelError
from onnxfix.place import Place
from onnxfix.rule import Severity
from onnxfix.runtime import _child, replies
from onnxfix.runtime.causes import Problem
from onnxfix.runtime.nvidia import Gpu
from onnxfix.runtime.sandbox import forked
from support.patience import PATIENCE

VALUES: tuple[Any, ...] = (
    None,
    *(True, -1, 2**100, 1.5, float("inf"), 1 + 2j, "é\ud800", b"x" * 100_000, bytearray(b"y" * 100_000)),
    ("a", [1, {"b": {2}, "c": frozenset({3})}], range(3), slice(1, 2)),
    Path("model.onnx"),
    *(Gpu("L4", "8.9"), Problem("a rule failed"), Place(), Severity.ERROR),
)
ARRAYS = (
    *(np.arange(6.0).reshape(2, 3).T, np.zeros(0, np.int8), np.array(3), np.ones(100_000), np.float32(3)),
    *(np.array(["a", "bc"]), np.array(["a", "bc"], object), np.array([True]), np.array([1 + 2j])),
    *(np.array([1, 2], getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "int4", "uint4")),
    ml_dtypes.bfloat16(3),
)


@pytest.mark.parametrize("protocol", [4, 5])
def test_data_arrive_as_they_were_sent(protocol: int) -> None:
    for value in VALUES:
        assert replies.loads(pickle.dumps(value, protocol)) == value
    for array in ARRAYS:
        found = replies.loads(pickle.dumps(array, protocol))
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert np.array_equal(found, array)
    kinds = [np.dtype("float16"), np.dtype(ml_dtypes.bfloat16), np.int64]
    assert replies.loads(pickle.dumps(kinds, protocol)) == kinds
    error = replies.loads(pickle.dumps(ModelError("m.onnx: is empty"), protocol))
    assert (type(error), str(error)) == (ModelError, "m.onnx: is empty")


@dataclass
class Elsewhere:
    """A record of another package."""


class Color(enum.Enum):
    """An enum of another package."""

    RED = 1


class Called:
    """A pickle that calls something."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def named(module: str, name: str) -> bytes:
    """A pickle of protocol 4 that is a name, dots included."""
    parts = [b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)]
    return b"\x80\x04" + b"".join(parts) + b"\x93."


REFUSED = {
    "os.system": pickle.dumps(Called(os.system, "true")),
    "eval": pickle.dumps(Called(eval, "1")),
    "getattr": pickle.dumps(Called(getattr, "", "join")),
    "another record": pickle.dumps(Elsewhere()),
    "another enum": pickle.dumps(Color.RED),
    "a function of ours": named("onnxfix.runtime.sandbox", "shared"),
    "a class of ours that does things": named("onnxfix.runtime.sandbox", "_Child"),
    "a module that ours imports": named("onnxfix.runtime.sandbox", "os.system"),
    "a method of a record": named("onnxfix.place", "Place.__init__"),
    "pickle itself": named("onnxfix.runtime._child", "pickle.loads"),
    "a class that ours imports": named("onnxfix.runtime.sandbox", "subprocess.Popen"),
    "numpy's loader": named("numpy", "load"),
    "numpy's modules": named("numpy", "os.system"),
    "a function of ml_dtypes": named("ml_dtypes", "finfo"),
    "a name in text": b"cos\nsystem\n(S'true'\ntR.",
}


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_what_is_no_data_is_refused_in_one_line(what: str) -> None:
    with pytest.raises(replies.Refused):
        replies.loads(REFUSED[what])
    outcome = _child.decode(REFUSED[what])
    assert isinstance(outcome, _child.Outcome)
    assert outcome.status == "error"
    assert outcome.message.startswith("the reply cannot be read: Refused: it ")
    assert "\n" not in outcome.message


class Trap:
    """A result whose reading would make a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_a_child_cannot_have_code_run_here(tmp_path: Path) -> None:
    trap = tmp_path / "made"
    outcome = forked(Trap, trap, timeout=PATIENCE)
    assert outcome.status == "error"
    assert "posix.mkdir, which is no data" in outcome.message
    assert not trap.exists()


@pytest.mark.parametrize("damage", [b"", b"\x80\x05", b"nonsense", pickle.dumps([1])[:-3], pickle.dumps([])])
def test_a_damaged_reply_is_an_error(damage: bytes) -> None:
    outcome = _child.decode(damage)
    assert isinstance(outcome, _child.Outcome)
    assert outcome.status == "error"


def test_an_enumeration_as_python_3_11_0_pickles_it_names_members_alone() -> None:
    def named(kind: Any, name: str) -> bytes:
        return pickle.dumps(_Named(kind, name))

    assert replies.loads(named(Severity, "ERROR")) is Severity.ERROR
    for kind, name in ((Severity, "__class__"), (Severity, "mro"), (str, "join"), (Path("x"), "unlink")):
        with pytest.raises(replies.Refused, match="no data"):
            replies.loads(named(kind, name))


class _Named:
    def __init__(self, kind: Any, name: str) -> None:
        self.kind, self.name = kind, name

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.kind, self.name)
