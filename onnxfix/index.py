"""What the registry needs to know of each built-in rule, kept beside their bytecode, so that a run imports few of them.

A model uses some thirty operators, and most rules are about others. The index holds a rule's head (code, name,
operators, severity ...); its file is imported when a node comes that it is about, or when somebody asks for its
examples or documentation. The index is a cache like ``__pycache__``, in which it lies: made by a run that found none,
trusted while names, sizes and times of all source files and the versions of Python, onnx and numpy stand, and left out
where Python writes no bytecode (``PYTHONDONTWRITEBYTECODE``) or the folder cannot be written.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy
import onnx

from onnxfix._version import __version__
from onnxfix.rule import Rule, Safety, Severity

_LATE = frozenset({"generate", "examples", "doc"})
"""The fields of a rule that the index leaves in its file."""
_EARLY = tuple(field.name for field in fields(Rule) if field.name not in _LATE)


class Listed(Rule):
    """A rule of the index. What the index does not hold is read from the rule's file on first use.

    Raises:
        Exception: on that first use, whatever the file raises as it is imported.
    """

    def __init__(
        self, **known: Any
    ) -> None:  # with all fields, too: dataclasses.replace makes rules of rules
        if missing := set(_EARLY).symmetric_difference(known) - _LATE:
            raise TypeError(f"a rule with or without {', '.join(sorted(missing))}")
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"a rule has no {name!r}")
        for item in vars(importlib.import_module(self.module)).values():
            if isinstance(item, Rule) and item.code == self.code:
                for late in _LATE:
                    object.__setattr__(self, late, getattr(item, late))
                return getattr(item, name)
        raise ImportError(f"{self.module} has no rule {self.code}")


def load(package: str) -> list[Rule] | None:
    """The package's rules in the order in which its files have them; None without an index that can be trusted."""
    try:
        file, wanted = _file(package), _signature(package)
        found = json.loads(file.read_bytes())
        if found["signature"] != wanted:
            return None
        return [Listed(**_head(entry)) for entry in found["rules"]]
    # Not there, not what was written, or a Python that knows no place for bytecode.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, NotImplementedError):
        return None


def save(package: str, rules: Sequence[Rule]) -> None:
    """Keep the heads of a package's rules, all of which were imported. Where that cannot be done, nothing is kept."""
    if sys.dont_write_bytecode:
        return
    # A folder that cannot be written, a package in an archive, a Python that knows no place for bytecode.
    with contextlib.suppress(OSError, AttributeError, NotImplementedError):
        file = _file(package)
        document = {"signature": _signature(package), "rules": [_entry(rule) for rule in rules]}
        file.parent.mkdir(exist_ok=True, parents=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name)
        try:
            with os.fdopen(handle, "w", encoding="ascii") as stream:
                json.dump(document, stream)
            # Whoever may read the sources may read what is in them; mkstemp's files are their owner's alone.
            os.chmod(
                temporary, stat.S_IMODE(os.stat(_folder(package) / "__init__.py").st_mode) | stat.S_IWUSR
            )
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)
            raise


def _entry(rule: Rule) -> dict[str, Any]:
    return {name: getattr(rule, name) for name in _EARLY}


def _head(entry: dict[str, Any]) -> dict[str, Any]:
    """A rule's fields from what JSON made of them."""
    safety = entry["safety"]
    return entry | {
        "ops": tuple((domain, op) for domain, op in entry["ops"]),
        "safety": None if safety is None else Safety(safety),
        "severity": Severity(entry["severity"]),
        "hazards": tuple(entry["hazards"]),
        "types": tuple(entry["types"]),
    }


def _file(package: str) -> Path:
    """Where the index of a package is, whether or not there is one."""
    beside = importlib.util.cache_from_source(str(_folder(package) / "rules.py"))
    return Path(beside).with_suffix(".json")


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(package)
    return Path(spec.origin).parent


def _signature(package: str) -> list[Any]:
    """What an index depends on: the files of the package and, since operators may be named there, those of onnxfix."""
    sources = (_sources(str(Path(__file__).parent)), _sources(str(_folder(package))))
    return [__version__, onnx.__version__, numpy.__version__, *(sorted(each) for each in sources)]


def _sources(folder: str) -> Iterator[list[Any]]:
    """``[path, time, size]`` of every source file; that of a folder's own entry does not show a changed file."""
    with os.scandir(folder) as entries:
        listed: Iterable[os.DirEntry[str]] = list(entries)
    for entry in listed:
        if entry.is_dir():
            yield from _sources(entry.path)
        elif entry.name.endswith(".py"):
            found = entry.stat()
            yield [entry.path, found.st_mtime_ns, found.st_size]
