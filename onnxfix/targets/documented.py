"""What NVIDIA documents of each release of TensorRT: operators, element types, restrictions. They are read from the
tables beside this file, which name their sources.

A list says what its authors intended to support. It contains types that the parser refuses, and omits others that it
accepts: ``onnxfix.targets`` compares the lists with the measurements.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

Types = dict[str, frozenset[str]]
"""Operator -> ONNX's names of element types."""
Version = tuple[int, ...]


def table(groups: Mapping[str, str]) -> Types:
    """Operators with their types, from groups of operators that share them: "types" -> "operators"."""
    return {name: frozenset(types.split()) for types, names in groups.items() for name in names.split()}


def names(text: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(text.split())


def notes(groups: Mapping[str, str]) -> dict[str, str]:
    """Operator -> restriction, from "operators" -> restriction."""
    return {name: text for words, text in groups.items() for name in words.split()}


def version_of(text: str) -> Version:
    """(10, 3) for 10.3."""
    return tuple(map(int, text.split(".")))


def text_of(version: Version) -> str:
    """10.3 for (10, 3)."""
    return ".".join(map(str, version))


def _rows(name: str) -> Iterator[list[str]]:
    """The rows of a table, without its comments and its header."""
    lines = Path(__file__).with_name(f"{name}.tsv").read_text("utf-8").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    next(rows)
    return rows


class Release(NamedTuple):
    """A release. ``opset`` is the newest that it imports, ``listed`` whether its list of operators was read, ``types``
    are those that tensors may have, ``jetpacks`` the versions of JetPack that ship it."""

    opset: str
    listed: bool
    types: frozenset[str]
    jetpacks: tuple[str, ...]


RELEASES: dict[Version, Release] = {
    version_of(version): Release(opset, listed == "yes", names(types), tuple(jetpacks.strip("-").split()))
    for version, opset, listed, types, jetpacks in _rows("releases")
}
"""In their order."""


class Facts(NamedTuple):
    """What a release imports: operators with the types that are listed for them, those that it does not import, and the
    restrictions of those that it does. All others are unknown."""

    types: Types
    missing: frozenset[str]
    notes: dict[str, str]


class Row(NamedTuple):
    """What holds for operators in all releases from ``first`` to ``last``: see the head of operators.tsv."""

    operators: frozenset[str]
    first: Version
    last: Version
    types: str
    restriction: str
    source: str


@cache
def operator_rows() -> list[Row]:
    """The rows of operators.tsv."""
    return [
        Row(names(operators), version_of(first), version_of(last), *rest)
        for operators, first, last, *rest in _rows("operators")
    ]


def facts_of(version: Version) -> Facts:
    """The facts of a release."""
    types: Types = {}
    missing: frozenset[str] = frozenset()
    restrictions: dict[str, list[str]] = {}
    for operators, first, last, listed, restriction, _ in operator_rows():
        if not first <= version <= last:
            continue
        if listed == "no":
            missing |= operators
        elif listed != "-":
            types.update(dict.fromkeys(operators, names(listed)))
        for name in operators if restriction else ():
            restrictions.setdefault(name, []).append(restriction)
    return Facts(types, missing, {name: "; ".join(texts) for name, texts in restrictions.items()})


def describe_lists(version: Version) -> str:
    """Which lists say so: that of the release, or those before and after it."""
    known = [one for one, release in RELEASES.items() if release.listed]
    around = [max((one for one in known if one <= version), default=None)]
    around += [min((one for one in known if one >= version), default=None)]
    return " and ".join(dict.fromkeys(text_of(one) for one in around if one is not None))


#: A known fault, in the words of its source (faults.tsv says what each column is).
Fault = namedtuple(
    "Fault", "id first last fixed where pattern effect certainty workaround rule source read words"
)


@cache
def faults() -> dict[str, Fault]:
    """All known faults, by id."""
    return {row[0]: Fault(*row) for row in _rows("faults")}


def faults_of(version: Version) -> list[Fault]:
    """The known faults of a release."""
    return [
        fault
        for fault in faults().values()
        if version_of(fault.first) <= version and (not fault.last or version <= version_of(fault.last))
    ]
