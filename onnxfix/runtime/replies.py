"""Reads what a child answers, and makes nothing of it but data.

A pickle can name any function of any module and have it called. A child runs native libraries on untrusted models, so
that whoever takes one over writes its answers. Here a pickle may name records (dataclasses, named tuples and enums of
onnxfix, and its errors), arrays, paths, numbers and containers, and nothing else.
"""

from __future__ import annotations

import enum
import io
import pickle
from dataclasses import is_dataclass
from typing import Any, TypeVar

_BUILTINS = frozenset(
    ("bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "object", "range", "set",
     "slice", "str", "tuple")
)  # fmt: skip
_NAMED = {
    "collections": frozenset({"OrderedDict", "deque"}),
    "datetime": frozenset({"date", "datetime", "timedelta", "timezone"}),
}
_PATHS = frozenset({"Path", "PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"})
_NUMPY = frozenset({"_frombuffer", "_reconstruct", "dtype", "ndarray", "scalar"})
_NUMPY_MODULES = (
    "numpy",
    *(f"numpy.{core}.{name}" for core in ("core", "_core") for name in ("multiarray", "numeric")),
)


Record = TypeVar("Record")


class Refused(pickle.UnpicklingError):
    """The pickle names something that is no data."""


def loads(data: bytes | bytearray | memoryview) -> Any:
    """The value of a pickle.

    Raises:
        Refused: it names something that is no data.
        Exception: it is damaged.
    """
    return _Reader(io.BytesIO(data)).load()


_ACCEPTED: dict[tuple[str, str], type] = {}


def accept(record: type[Record]) -> type[Record]:
    """A decorator for a record of another package that a sandboxed function of that package returns.

    Raises:
        TypeError: it is no dataclass.
    """
    if not is_dataclass(record):
        raise TypeError(f"{record.__name__} is no dataclass")
    _ACCEPTED[record.__module__, record.__qualname__] = record
    return record


def _member(kind: Any, name: str) -> Any:
    """A member of an enumeration, which Python 3.11.0 to 3.11.3 pickle as an attribute of its class."""
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum) and name in kind.__members__):
        raise Refused(f"it names {name} of {kind}, which is no data")
    return kind[name]


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ACCEPTED:
            return _ACCEPTED[module, name]
        if (module, name) == ("builtins", "getattr"):
            return _member
        if not _known(module, name):
            raise Refused(f"it names {module}.{name}, which is no data")
        found = super().find_class(module, name)
        top = module.partition(".")[0]
        if (top == "onnxfix" and not _record(found)) or (top == "ml_dtypes" and not _number(found)):
            raise Refused(f"it names {module}.{name}, which is no data")
        return found


def _known(module: str, name: str) -> bool:
    """Whether something by this name may be looked up. Nothing is imported for it that is not loaded already, except
    onnxfix's own modules."""
    top = module.partition(".")[0]
    if top == "onnxfix":
        return not module.startswith("onnxfix.__main__")
    if module == "builtins":
        return name in _BUILTINS
    if module in ("pathlib", "pathlib._local"):
        return name in _PATHS
    if module in _NUMPY_MODULES:
        import numpy as np  # lazy: start-up; there are arrays only where it is loaded

        return name in _NUMPY or (module == "numpy" and _number(getattr(np, name, None)))
    if module == "ml_dtypes":
        return True
    return name in _NAMED.get(module, ())


def _number(found: Any) -> bool:
    """Whether this is a type of arrays' elements."""
    import numpy as np  # lazy: as above

    return isinstance(found, type) and issubclass(found, np.generic)


def _record(found: Any) -> bool:
    """Whether this class of ours holds data: making one runs none of our code that does anything else."""
    if not isinstance(found, type) or found.__module__.partition(".")[0] != "onnxfix":
        return False
    named = issubclass(found, tuple) and hasattr(found, "_fields")
    return is_dataclass(found) or named or issubclass(found, (enum.Enum, Exception))
