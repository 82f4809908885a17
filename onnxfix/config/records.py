"""What a configuration says, as frozen records."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

from onnxfix import system
from onnxfix.place import Place

DEFAULT = "default"
"""The origin of a setting that nobody set."""
COMMAND_LINE = "command line"
"""The origin of a setting that was given as an option."""
FAIL_ON = ("info", "warning", "error", "never")
"""The values of ``fail-on``."""


@dataclass(frozen=True)
class Values:
    """What one source says; None: nothing. ``models`` are globs of the models that it is about, () for all.

    ``rtol`` has no unit, ``atol`` that of the outputs; ``effort`` is a name or a number of seconds,
    ``structure_limit`` is in MiB, time limits are in seconds.
    """

    origin: str = ""
    models: tuple[str, ...] = ()
    target: str | None = None
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    fail_on: str | None = None
    require: tuple[str, ...] | None = None
    rtol: float | None = None
    atol: float | None = None
    effort: str | float | None = None
    structure_limit: int | None = None
    timeout: float | None = None
    rung_timeout: float | None = None

    @property
    def given(self) -> dict[str, object]:
        """The settings that it has."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in named.items() if name in SETTINGS and value is not None}


SETTINGS = tuple(one.name for one in fields(Values) if one.name not in ("origin", "models"))


@dataclass(frozen=True)
class Settings:
    """What holds for one model. ``origins`` says where each setting comes from: its name -> text."""

    target: str | None = None
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    fail_on: str = "warning"
    require: tuple[str, ...] = ()
    rtol: float | None = None
    atol: float | None = None
    effort: str | float = "default"
    structure_limit: int | None = None
    timeout: float | None = None
    rung_timeout: float | None = None
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    def origin(self, name: str) -> str:
        """Where a setting comes from, for people."""
        return self.origins.get(name, DEFAULT)


@dataclass(frozen=True)
class Suppression:
    """A kind of finding that does not fail a run, and why.

    ``codes`` are the rules that ``rule`` names, ``node`` is a glob of names of nodes or their first outputs, ``models``
    are globs of models (() for all). It holds through the day ``until`` (None: for good).
    """

    rule: str
    codes: frozenset[str]
    reason: str
    node: str = "*"
    models: tuple[str, ...] = ()
    until: date | None = None
    origin: str = ""

    def expired(self, today: date) -> bool:
        """Whether it holds no more."""
        return self.until is not None and today > self.until

    def covers(self, code: str, place: Place) -> bool:
        """Whether it is about what a rule found at a place."""
        return code in self.codes and name_matches(self.node, (place.node, place.label, place.layer))

    @property
    def words(self) -> str:
        """What it is about, for people."""
        return self.rule if self.node == "*" else f"{self.rule} at {self.node}"


@dataclass(frozen=True)
class Config:
    """A configuration file. ``root`` is the folder to which its paths and globs are relative, ``packs`` the rule packs
    that it has loaded (None: it says nothing)."""

    path: Path | None = None
    root: Path = Path()
    values: Values = Values()
    overrides: tuple[Values, ...] = ()
    suppressions: tuple[Suppression, ...] = ()
    baseline: Path | None = None
    packs: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """The file as people know it: relative to the working directory where it is below that."""
        if self.path is None:
            return ""
        found = system.relative(self.path, os.curdir)
        return str(self.path) if found.startswith(os.pardir) else found

    def about(self, source: str) -> tuple[Values, ...]:
        """What the file says of one model, the general first."""
        found = (one for one in self.overrides if self.matches(one.models, source))
        return (self.values, *found)

    def suppressions_of(self, source: str) -> tuple[Suppression, ...]:
        """The suppressions that are about one model, expired or not."""
        return tuple(one for one in self.suppressions if self.matches(one.models, source))

    def matches(self, patterns: tuple[str, ...], source: str) -> bool:
        """Whether one of the globs names the model; no globs name all."""
        return not patterns or any(model_matches(one, source, self.root) for one in patterns)


def resolved(layers: tuple[Values, ...]) -> Settings:
    """The settings of layers of which the later ones win.

    A ``select`` starts over: what earlier layers select and ignore is gone. An ``ignore`` without one is added.
    """
    found: dict[str, object] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        given = layer.given
        if "select" in given:
            found.pop("ignore", None)
            origins.pop("ignore", None)
        for name, value in given.items():
            if name == "ignore" and layer.ignore is not None and "ignore" in found:
                origins[name] = f"{origins[name]}, {layer.origin}"
                found[name] = tuple(dict.fromkeys((*_texts(found[name]), *layer.ignore)))
                continue
            found[name], origins[name] = value, layer.origin
    return Settings(**found, origins=origins)  # type: ignore[arg-type]


def _texts(value: object) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


def model_matches(pattern: str, source: str, root: Path) -> bool:
    """Whether a glob names a model, given by its path or URL.

    Without a slash it is held against the file's name, else against the path relative to ``root``; ``*`` matches no
    slash, ``**`` any number of folders.
    """
    url = "://" in source
    path = source if url else Path(os.path.abspath(source)).as_posix()
    if "/" not in pattern:
        return fnmatchcase(posixpath.basename(path), pattern)
    if url or pattern.startswith("/"):
        return _parts_match(pattern.split("/"), path.split("/"))
    relative = Path(system.relative(path, os.path.abspath(root))).as_posix()
    return _parts_match(posixpath.normpath(pattern).split("/"), relative.split("/"))


def _parts_match(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        return any(_parts_match(rest, parts[skipped:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], first) and _parts_match(rest, parts[1:])


def name_matches(pattern: str, names: Iterable[str]) -> bool:
    """Whether a glob names a node by one of its names, in which ``*`` matches slashes too; ``*`` alone is everything.

    A name that is the pattern itself matches as well, since names may contain brackets.
    """
    return pattern == "*" or any(name and (name == pattern or fnmatchcase(name, pattern)) for name in names)
