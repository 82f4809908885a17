"""What a shell completes besides commands: choices, targets, checks and rules. It imports no model library.

Rules are read from their catalog; importing them would take half a second. Rules of other packs are not listed.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onnxfix.names import RUNGS, TARGETS
from onnxfix.rewrite.packs import BUILT_IN


def of(name: str) -> Callable[[str], Any] | None:
    """The function of that name in this module, which completes a value; None for no name."""
    return {"targets": targets, "checks": checks, "failures": failures, "rules": rules}.get(name)


def choices_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A function that completes one of these values."""

    def choices(incomplete: str) -> list[str]:
        return [name for name in known if name.startswith(incomplete)]

    return choices


def targets(incomplete: str) -> list[tuple[str, str]]:
    """Targets, each with its title, also behind a comma."""
    before, last = _last(incomplete.lower())
    return [(before + name, line.title) for name, line in TARGETS.items() if name.startswith(last)]


def checks(incomplete: str) -> list[str]:
    """Checks, also behind a comma."""
    before, last = _last(incomplete)
    return [before + name for name in RUNGS if name.startswith(last) and name not in before.split(",")]


def failures(incomplete: str) -> list[str]:
    """Checks that ``reduce`` can look for."""
    return [name for name in reversed(RUNGS[RUNGS.index("ort-cpu") : -1]) if name.startswith(incomplete)]


def rules(incomplete: str) -> list[tuple[str, str]]:
    """Families and codes of rules with their names, also behind a comma; names where no code begins like that."""
    before, last = _last(incomplete)
    known, code_start = known_rules(), last.upper()
    families = dict.fromkeys(code[:3] for code in known)
    found = [(family, "all of the family") for family in families if family.startswith(code_start)]
    if len(found) < 2:  # more would be too many to choose from
        found += [(code, name) for code, name in known.items() if code.startswith(code_start)]
    found = found or [(name, code) for code, name in known.items() if name.startswith(last.lower())]
    return [(before + value, text) for value, text in found]


def known_rules() -> dict[str, str]:
    """Code and name of each built-in rule, in the order of the codes."""
    spec = importlib.util.find_spec(BUILT_IN)
    if spec is None or spec.origin is None:
        return {}
    rows = json.loads(Path(spec.origin).with_name("catalog.json").read_bytes())
    return {row["code"]: row["name"] for row in rows}


def _last(incomplete: str) -> tuple[str, str]:
    """What stands before the last comma, with it, and what stands behind."""
    before, comma, last = incomplete.rpartition(",")
    return before + comma, last
