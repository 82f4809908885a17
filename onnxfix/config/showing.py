"""What holds for a model and where it comes from, as data for ``--show-settings``."""

from __future__ import annotations

from typing import Any

from onnxfix.config.holding import Holding
from onnxfix.config.records import DEFAULT, Settings
from onnxfix.report.render.settings import Setting

BY_TYPE = "by element type"


def rows(holding: Holding, source: str) -> list[Setting]:
    """The settings of one model."""
    found = holding.settings(source)
    values = _values(found, holding.judges)
    listed = [
        Setting("config", holding.config.name or "none", "" if holding.config.path is not None else DEFAULT),
        *(
            Setting(name.replace("_", "-"), _text(value, name), found.origin(name))
            for name, value in values.items()
        ),
    ]
    if holding.judges:
        path = holding.baseline.path if holding.baseline is not None else None
        listed.append(Setting("baseline", str(path) if path is not None else "none", _origin(holding)))
        for one in holding.config.suppressions_of(source):
            over = one.expired(holding.today)
            until = f" ({'expired on' if over else 'until'} {one.until})" if one.until is not None else ""
            listed.append(Setting("suppression", f"{one.words}{until}: {one.reason}", one.origin, over))
    return listed


def as_data(holding: Holding, source: str) -> dict[str, Any]:
    """The same as plain dicts, lists, strings, numbers and None."""
    found = holding.settings(source)
    data: dict[str, Any] = {
        "path": source,
        "config": str(holding.config.path) if holding.config.path is not None else None,
        "settings": {
            name.replace("_", "-"): {
                "value": list(value) if isinstance(value, tuple) else value,
                "origin": found.origin(name),
            }
            for name, value in _values(found, holding.judges).items()
        },
    }
    if holding.judges:
        path = holding.baseline.path if holding.baseline is not None else None
        data["baseline"] = str(path) if path is not None else None
        data["suppressions"] = [
            {
                "rule": one.rule,
                "node": one.node,
                "reason": one.reason,
                "until": one.until.isoformat() if one.until is not None else None,
                "expired": one.expired(holding.today),
                "origin": one.origin,
            }
            for one in holding.config.suppressions_of(source)
        ]
    return data


def _values(found: Settings, judges: bool) -> dict[str, Any]:
    """The settings that a command uses: one that ``judges`` has rules and findings."""
    from onnxfix.targets import choose_target  # lazy: its tables are loaded where a model is read

    proof = {"require": found.require, "rtol": found.rtol, "atol": found.atol, "effort": found.effort}
    for name in ("structure_limit", "timeout", "rung_timeout"):
        if getattr(found, name) is not None:
            proof[name] = getattr(found, name)
    if not judges:
        return proof
    return {
        "target": choose_target(found.target)[0].name,
        "select": found.select,
        "ignore": found.ignore,
        "fail_on": found.fail_on,
        **proof,
    }


def _text(value: Any, name: str) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if value is None:
        return "the default rules" if name == "select" else BY_TYPE
    return f"{value:g}" if isinstance(value, float) else str(value)


def _origin(holding: Holding) -> str:
    if holding.baseline is None:
        return DEFAULT
    return holding.config.name if holding.baseline.path == holding.config.baseline else "command line"
