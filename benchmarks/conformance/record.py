"""What ``run.py`` measured, in one short file: ``python benchmarks/conformance/record.py ENGINES NETWORKS``.

Writes results.json beside this script, of which docs/make.py makes docs/conformance.md. Of a refusal only the stage
stays; of everything else that is not right, the reason.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")
LEVELS = ("as-is", "exact", "numeric")
_WIDEST = 140
_ITSELF = "AssertionError: "


def compact(measured: Mapping[str, Any]) -> dict[str, Any]:
    """One device: the setting; by test the operator and what became of it at each level; reasons by test and level."""
    tests: dict[str, list[str]] = {}
    reasons: dict[str, dict[str, str]] = {}
    for name, found in sorted(measured["results"].items()):
        resolved = {level: _resolved(found, level) for level in LEVELS}
        tests[name] = [found["operator"], *(_word(one) for one in resolved.values())]
        told = {
            level: _reason(one)
            for level, one in resolved.items()
            if one["status"] not in ("right", "refused")
        }
        if told:
            reasons[name] = told
    return {"setting": measured["setting"], "tests": tests, "reasons": reasons}


def _resolved(found: Mapping[str, Any], level: str) -> Mapping[str, Any]:
    """The result of a level; that of another one where the model is the same."""
    one: Mapping[str, Any] = found[level]
    return found[one["as"]] if one["status"] == "same" else one


def _word(one: Mapping[str, Any]) -> str:
    return f"refused:{one['stage']}" if one["status"] == "refused" else str(one["status"])


def _reason(one: Mapping[str, Any]) -> str:
    text = str(one.get("reason", "")).removeprefix(_ITSELF)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def written(devices: Mapping[str, Mapping[str, Any]]) -> str:
    """The file, with a line for each test."""
    parts = []
    for device, one in devices.items():
        fields = [f'  "setting": {json.dumps(one["setting"])}']
        for key in ("tests", "reasons"):
            rows = (f"   {json.dumps(name)}: {json.dumps(value)}" for name, value in one[key].items())
            fields.append(f'  "{key}": {{\n{_lines(rows)}\n  }}')
        parts.append(f' "{device}": {{\n{_lines(fields)}\n }}')
    return f"{{\n{_lines(parts)}\n}}\n"


def _lines(parts: Iterable[str]) -> str:
    return ",\n".join(parts)


def main(words: Sequence[str]) -> int:
    """Run as the module's docstring says."""
    if len(words) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    devices = {}
    for name, path in zip(("engines", "networks"), words, strict=True):
        devices[name] = compact(json.loads(Path(path).read_text(encoding="utf-8")))
    RESULTS.write_text(written(devices), encoding="utf-8")
    print(f"{RESULTS}: {RESULTS.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
