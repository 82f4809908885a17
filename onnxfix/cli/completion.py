"""What a shell completes besides commands and choices: targets, checks and rules. It imports no model library.

Rules are read from their catalog; importing them would take half a second. Rules of other packs are not listed.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from onnxfix.names import RUNGS, TARGETS

BUILT_IN = "onnxfix_rules"


def targets(incomplete: str) -> list[tuple[str, str]]:
    """Targets, each with its title."""
    return [(name, line.title) for name, line in TARGETS.items() if name.startswith(incomplete.lower())]


def rungs(incomplete: str) -> list[str]:
    """Checks, also behind a comma."""
    before, last = _last(incomplete)
    return [before + name for name in RUNGS if name.startswith(last) and name not in before.split(",")]


def failures(incomplete: str) -> list[str]:
    """Checks that ``reduce`` can look for."""
    return [name for name in reversed(RUNGS[2:]) if name.startswith(incomplete)]


def rules(incomplete: str) -> list[tuple[str, str]]:
    """Families and codes of rules with their names, also behind a comma; names where no code begins like that."""
    before, last = _last(incomplete)
    known = known_rules()
    families = dict.fromkeys(code[:3] for code in known)
    found = [(family, "all of the family") for family in families if _begins(family, last)]
    if len(found) < 2:  # more would be too many to choose from
        found += [(code, name) for code, name in known.items() if _begins(code, last)]
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


def _begins(code: str, text: str) -> bool:
    return code.startswith(text.upper())
