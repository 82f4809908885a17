"""A run's options from flat keywords."""

from __future__ import annotations

from typing import Any

from onnxfix.options import Fixes, Output, Rules, RunOptions, Specialization, Verification

_GROUPS: dict[str, tuple[type, dict[str, str]]] = {
    "rules": (Rules, {"select": "select", "ignore": "ignore", "target": "target"}),
    "fixes": (
        Fixes,
        {
            "numeric_fixes": "numeric",
            "unsafe_fixes": "unsafe",
            "simplify": "simplify",
            "graphsurgeon": "graphsurgeon",
        },
    ),
    "specialization": (
        Specialization,
        {"fix_dims": "dims", "fix_inputs": "inputs", "static": "static", "keep_inputs": "keep"},
    ),
    "verification": (
        Verification,
        {
            "verify": "enabled",
            "require": "require",
            "inputs": "inputs",
            "input_shapes": "input_shapes",
            "seed": "seed",
            "rungs": "rungs",
        },
    ),
    "output": (Output, {"in_place": "in_place"}),
}


def run_options(**flat: Any) -> RunOptions:
    """The keywords of ``onnxfix.apply``, such as ``rungs=("ort-cpu",)``, each put into its group."""
    groups = {
        group: kind(**{field: flat.pop(name) for name, field in names.items() if name in flat})
        for group, (kind, names) in _GROUPS.items()
    }
    return RunOptions(**groups, **flat)
