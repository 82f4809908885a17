"""What a shell completes besides commands and choices: targets, checks and rules. It imports no model library.

Rules are named after their files (``cst002_no_op_cast.py`` is CST002, no-op-cast), which a test asserts; importing them
would take half a second. Rules of other packs are not listed.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
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
    known = dict(files())
    families = dict.fromkeys(code[:3] for code in known)
    found = [(family, "all of the family") for family in families if _begins(family, last)]
    if len(found) < 2:  # more would be too many to choose from
        found += [(code, name) for code, name in known.items() if _begins(code, last)]
    found = found or [(name, code) for code, name in known.items() if name.startswith(last.lower())]
    return [(before + value, text) for value, text in found]


def files() -> Iterator[tuple[str, str]]:
    """Code and name of each built-in rule, in the order of the codes."""
    spec = importlib.util.find_spec(BUILT_IN)
    if spec is None or spec.origin is None:
        return
    stems = sorted(_stems(Path(spec.origin).parent))
    for stem in stems:
        code, _, name = stem.partition("_")
        yield code.upper(), name.replace("_", "-")


def _stems(folder: Path) -> Iterable[str]:
    for _, folders, names in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith("_")]
        for name in names:
            stem, suffix = os.path.splitext(name)
            if suffix == ".py" and not stem.startswith("_"):
                yield stem


def _last(incomplete: str) -> tuple[str, str]:
    """What stands before the last comma, with it, and what stands behind."""
    before, comma, last = incomplete.rpartition(",")
    return before + comma, last


def _begins(code: str, text: str) -> bool:
    return code.startswith(text.upper())
