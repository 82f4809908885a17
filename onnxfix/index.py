"""An index of the built-in rules, kept beside their bytecode, so that a run imports only the rules that it needs.

A model uses some thirty operators, and most rules are about others. The index contains a rule's metadata (code, name,
operators, severity, ...). The rule's file is imported when the model has a node that the rule is about, or when its
examples or documentation are needed. The index is a cache like ``__pycache__``, where it is stored. A run that finds
none writes it. It is valid as long as the names, sizes and times of all source files and the versions of Python, onnx
and numpy are unchanged. It is not used if Python writes no bytecode (``PYTHONDONTWRITEBYTECODE``) or the folder is
read-only.

What it saves, measured as in ``benchmarks/startup.py`` on 6 models of 100 to 3,000 nodes: `check` takes 0.05 s of
processor time less (0.28 to 0.31 s instead of 0.33 to 0.35 s, 13 to 16 %). Without it, the benchmark's limit (1.5 times
the import of onnx, the scan and shape inference) is missed on bert.legacy.op17: 1.59 instead of 1.34.
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
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy
import onnx

from onnxfix._version import __version__
from onnxfix.rule import Example, Generator, Rule, Safety, Severity

_LATE = frozenset({"generate", "examples", "doc"})
"""The fields of a rule that only its file contains."""
_EARLY = tuple(field.name for field in fields(Rule) if field.name not in _LATE)


class Listed(Rule):
    """A rule of the index. ``generate``, ``examples`` and ``doc`` come from the rule's file on first use.

    mypy takes a cached property for read-only; it is not.

    Raises:
        Exception: on that first use, whatever the import of the file raises.
    """

    def __init__(
        self, **known: Any
    ) -> None:  # with all fields, too: dataclasses.replace makes rules of rules
        if wrong := set(_EARLY).symmetric_difference(known) - _LATE:
            raise TypeError(f"missing or unknown fields of a rule: {', '.join(sorted(wrong))}")
        vars(self).update(known)

    @cached_property
    def generate(self) -> Generator:  # type: ignore[override]
        return self._imported().generate

    @cached_property
    def examples(self) -> Sequence[Example]:  # type: ignore[override]
        return self._imported().examples

    @cached_property
    def doc(self) -> str:  # type: ignore[override]
        return self._imported().doc

    def _imported(self) -> Rule:
        """The rule as its file defines it."""
        for item in vars(importlib.import_module(self.module)).values():
            if isinstance(item, Rule) and item.code == self.code:
                return item
        raise ImportError(f"{self.module} has no rule {self.code}")


def load(package: str) -> list[Rule] | None:
    """The package's rules in the order of its files; None without a valid index."""
    try:
        file, wanted = _file(package), _signature(package)
        found = json.loads(file.read_bytes())
        if found["signature"] != wanted:
            return None
        return [Listed(**_head(entry)) for entry in found["rules"]]
    # Missing, damaged, or a Python without a place for bytecode.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, NotImplementedError):
        return None


def save(package: str, rules: Sequence[Rule]) -> None:
    """Write the index of a package, all of whose rules were imported. Where it cannot be written, there is none."""
    if sys.dont_write_bytecode:
        return
    # A read-only folder, a package in an archive, or a Python without a place for bytecode.
    with contextlib.suppress(OSError, AttributeError, NotImplementedError):
        file = _file(package)
        rows = [{name: getattr(rule, name) for name in _EARLY} for rule in rules]
        document = {"signature": _signature(package), "rules": rows}
        file.parent.mkdir(exist_ok=True, parents=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name)
        try:
            with os.fdopen(handle, "w", encoding="ascii") as stream:
                json.dump(document, stream)
            # As readable as the sources; mkstemp's files are readable by their owner only.
            os.chmod(
                temporary, stat.S_IMODE(os.stat(_folder(package) / "__init__.py").st_mode) | stat.S_IWUSR
            )
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)
            raise


def _head(entry: dict[str, Any]) -> dict[str, Any]:
    """A rule's metadata from JSON."""
    safety = entry["safety"]
    return entry | {
        "ops": tuple((domain, op) for domain, op in entry["ops"]),
        "safety": None if safety is None else Safety(safety),
        "severity": Severity(entry["severity"]),
        "hazards": tuple(entry["hazards"]),
        "types": tuple(entry["types"]),
        "alike": tuple(entry["alike"]),
    }


def _file(package: str) -> Path:
    """The path of a package's index, whether or not it exists."""
    beside = importlib.util.cache_from_source(str(_folder(package) / "rules.py"))
    return Path(beside).with_suffix(".json")


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(package)
    return Path(spec.origin).parent


def _signature(package: str) -> list[Any]:
    """What an index depends on: the source files of the package and of onnxfix, and the versions of packages."""
    sources = (_sources(str(Path(__file__).parent)), _sources(str(_folder(package))))
    return [__version__, onnx.__version__, numpy.__version__, *(sorted(each) for each in sources)]


def _sources(folder: str) -> Iterator[list[Any]]:
    """``[path, time, size]`` of every source file; a folder's own time does not show a changed file."""
    with os.scandir(folder) as entries:
        listed: Iterable[os.DirEntry[str]] = list(entries)
    for entry in listed:
        if entry.is_dir():
            yield from _sources(entry.path)
        elif entry.name.endswith(".py"):
            found = entry.stat()
            yield [entry.path, found.st_mtime_ns, found.st_size]
