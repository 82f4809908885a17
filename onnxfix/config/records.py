"""What a configuration says, as frozen records."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from onnxfix.config.table import SETTINGS
from onnxfix.place import Place
from onnxfix.runtime import system
from onnxfix.runtime.allowance import effort_of

DEFAULT = "default"
"""The origin of a setting that nobody set."""
COMMAND_LINE = "command line"
"""The origin of a setting that was given as an option."""
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(SETTINGS), "ignore": (), "fail_on": "warning", "require": (), "effort": "default",
    "source_root": (),
}  # fmt: skip
"""The settings where nothing is said."""


@dataclass(frozen=True)
class Layer:
    """What one source says: ``values`` of settings by the names of their options. ``models`` are globs of the models
    that it is about, () for all."""

    origin: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """What holds for one model: the value of each setting, and where it comes from (name -> text)."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]

    def origin(self, name: str) -> str:
        """Where a setting comes from, for people."""
        return self.origins.get(name, DEFAULT)

    def fields(self) -> dict[str, Any]:
        """The fields of ``RunOptions`` that the settings are."""
        found = {option.field: self.values[name] for name, option in SETTINGS.items() if option.field}
        return found | {
            "rules.ignore": self.values["ignore"] or None,
            "verification.effort": effort_of(self.values["effort"]),
        }


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
        """Whether it expired before today."""
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
    layer: Layer = Layer()
    overrides: tuple[Layer, ...] = ()
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

    def about(self, source: str) -> tuple[Layer, ...]:
        """What the file says of one model, the general first."""
        return (self.layer, *(one for one in self.overrides if self.matches(one.models, source)))

    def suppressions_of(self, source: str) -> tuple[Suppression, ...]:
        """The suppressions that are about one model, expired or not."""
        return tuple(one for one in self.suppressions if self.matches(one.models, source))

    def matches(self, patterns: tuple[str, ...], source: str) -> bool:
        """Whether one of the globs names the model; no globs name all."""
        return not patterns or any(model_matches(one, source, self.root) for one in patterns)


def resolve(layers: Iterable[Layer]) -> Settings:
    """The settings of layers of which the later ones win.

    A ``select`` starts over: what earlier layers select and ignore is gone. An ``ignore`` without one is added.
    """
    values, origins = dict(DEFAULTS), dict[str, str]()
    for layer in layers:
        if "select" in layer.values:
            values["ignore"] = ()
            origins.pop("ignore", None)
        for name, value in layer.values.items():
            if name == "ignore" and "ignore" in origins:
                origins[name] = f"{origins[name]}, {layer.origin}"
                values[name] = tuple(dict.fromkeys((*values[name], *value)))
            else:
                values[name], origins[name] = value, layer.origin
    return Settings(values, origins)


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
