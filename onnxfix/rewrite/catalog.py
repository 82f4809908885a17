"""The catalog of the built-in rules, by which a run imports only the rules that it needs.

A model uses some thirty operators, and most rules are about others. ``onnxfix_rules/catalog.json`` has the metadata of
each rule (code, name, operators, severity, safety, module) in one line. The rule's file is imported when the model has
a node that the rule is about, or when its examples or documentation are needed. ``python docs/make.py`` writes the
catalog, and a test holds it to the rules. Without it, ``check`` takes 0.05 s more (0.35 s instead of 0.30).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from onnxfix.rule import Example, Generator, Rule, Safety, Severity

NAME = "catalog.json"
"""The catalog's name in the package of the rules."""
_IN_FILE_ONLY = frozenset({"generate", "examples", "doc"})
"""The fields of a rule that only its file contains."""
_FIELDS = [field for field in fields(Rule) if field.name not in _IN_FILE_ONLY]


class Listed(Rule):
    """A rule of the catalog. ``generate``, ``examples`` and ``doc`` come from the rule's file on first use.

    mypy takes a cached property for read-only; it is not.

    Raises:
        Exception: on that first use, whatever the import of the file raises.
    """

    # with all fields, too: dataclasses.replace makes rules of rules
    def __init__(self, **known: Any) -> None:
        for field in _FIELDS:
            if field.name not in known and field.default is not MISSING:
                known[field.name] = field.default
        known.setdefault("differs", {})
        if wrong := {field.name for field in _FIELDS}.symmetric_difference(known) - _IN_FILE_ONLY:
            raise TypeError(f"missing or unknown fields of a rule: {', '.join(sorted(wrong))}")
        vars(self).update(known)

    @cached_property
    def generate(self) -> Generator:  # type: ignore[override]
        return self._import().generate

    @cached_property
    def examples(self) -> Sequence[Example]:  # type: ignore[override]
        return self._import().examples

    @cached_property
    def doc(self) -> str:  # type: ignore[override]
        return self._import().doc

    def _import(self) -> Rule:
        for item in vars(importlib.import_module(self.module)).values():
            if isinstance(item, Rule) and item.code == self.code:
                return item
        raise ImportError(f"{self.module} has no rule {self.code}; python docs/make.py writes the catalog")


def load(package: str) -> list[Rule] | None:
    """The rules of a package's catalog; None without one, or with one that cannot be read."""
    try:
        return [_listed(row) for row in json.loads(path_of(package).read_bytes())]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def path_of(package: str) -> Path:
    """Where a package's catalog is.

    Raises:
        FileNotFoundError: the package is not installed as a folder.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(package)
    return Path(spec.origin).with_name(NAME)


def text_of(rules: Iterable[Rule]) -> str:
    """The catalog of rules: a JSON array with one rule a line, by code."""
    rows = [json.dumps(_row(rule)) for rule in sorted(rules, key=lambda rule: rule.code)]
    return "[\n" + ",\n".join(rows) + "\n]\n"


def _row(rule: Rule) -> dict[str, Any]:
    """A rule's metadata for JSON, without what is the default."""
    row: dict[str, Any] = {}
    for field in _FIELDS:
        value = getattr(rule, field.name)
        if value == (field.default if field.default_factory is MISSING else field.default_factory()):
            continue
        if field.name == "ops":
            value = [f"{domain}::{op}" if domain else op for domain, op in value]
        row[field.name] = value.name.lower() if isinstance(value, (Safety, Severity)) else value
    return row


def _listed(row: dict[str, Any]) -> Listed:
    known = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    known["ops"] = tuple((domain, op) for domain, _, op in (key.rpartition("::") for key in row["ops"]))
    known["severity"] = Severity[row["severity"].upper()]
    known["safety"] = None if row["safety"] is None else Safety[row["safety"].upper()]
    return Listed(**known)
