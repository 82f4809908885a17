"""The same planted faults with Polygraphy: its layerwise comparison on ONNX Runtime.

As Polygraphy's guides describe it: both models run with all tensors as outputs (``--onnx-outputs mark all``), those
of the first are saved, and the second is compared with them at Polygraphy's own tolerances. The tensors that fail are
taken as what it names, in the order in which it lists them. Seconds are those of both commands, memory is the peak of
the largest process.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pages import markdown

from diagnose import cases, observing
from diagnose.cases import AMONG, Case

_FAILED = re.compile(r"FAILED \| Output: '(.*?)' \|")
_SUMMARY = "Accuracy Summary"


def compare(polygraphy: str, case: Case, folder: Path, seed: int, limit: float) -> dict[str, Any]:
    """What is kept of a comparison of all tensors; the program is ``polygraphy``, each command takes up to ``limit``
    seconds. ``count`` are the tensors that differ; an "error" broke off before it compared."""
    from polygraphy.json import save_json

    assert case.fault is not None
    first, second, *_ = cases.arguments(case, folder, seed)
    save_json([observing.inputs_of(case.path, seed)], str(folder / "inputs.json"))
    every = ("--onnxrt", "--onnx-outputs", "mark", "all", "--load-inputs", "inputs.json")
    runs = []
    for model, saved in ((first, "--save-outputs"), (second, "--load-outputs")):
        runs.append(cases.execute([polygraphy, "run", model, *every, saved, "first.json"], limit, folder))
        if runs[-1]["code"]:
            break
    text = runs[-1]["said"]
    names = list(dict.fromkeys(_FAILED.findall(text)))
    ended = _SUMMARY in text
    return {
        "seconds": sum(one["wall"] for one in runs),
        "megabytes": max(one["rss"] for one in runs),
        "place": cases.place_of([{"output": name} for name in names], case.fault),
        "count": len(names),
        "status": "compared" if ended else "error",
        "reason": "" if ended else _last(runs[-1]),
        "culprits": [],
    }


def _last(cost: Mapping[str, Any]) -> str:
    if cost["status"] == "timeout":
        return f"no result in {cost['wall']:.0f} s"
    lines = [line for line in cost["said"].splitlines() if line.strip()]
    return lines[-1][-200:] if lines else f"exit code {cost['code']}"


def page(peers: Mapping[str, Mapping[str, Any]], ours: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Markdown: Polygraphy and onnxfix on the same faults."""
    both = {key: (found, ours[key]) for key, found in peers.items() if key in ours}
    rows = []
    for group in ("fixtures", "exports"):
        own = [pair for key, pair in both.items() if key.startswith(f"{group}/")]
        if own:
            rows.append([f"Polygraphy, all tensors: {group}", *_figures([one for one, _ in own])])
            rows.append([f"`onnxfix diagnose`: {group}", *_figures([one for _, one in own])])
    head = ("tool", "faults", "named first", "among three", "not named", "seconds, median", "MB, median")
    yield from markdown((*head, "MB, greatest"), rows)
    yield ""
    failed = [found["count"] for found in peers.values() if found["status"] != "error"]
    if failed:
        yield (
            f"Polygraphy lists a median of {statistics.median(failed):.0f} tensors that differ (greatest: "
            f"{max(failed)}); it does not tell the node that introduces an error from those that receive it."
        )
    broken = [key for key, found in peers.items() if found["status"] == "error"]
    if broken:
        yield f"It ended without a comparison for {len(broken)}: {', '.join(f'`{key}`' for key in broken)}."


def _figures(found: Sequence[Mapping[str, Any]]) -> list[object]:
    places = [one["place"] for one in found]
    return [
        len(found),
        sum(place == 1 for place in places),
        sum(0 < place <= AMONG for place in places),
        sum(place == 0 for place in places),
        f"{statistics.median(one['seconds'] for one in found):.1f}",
        f"{statistics.median(one['megabytes'] for one in found):.0f}",
        f"{max(one['megabytes'] for one in found):.0f}",
    ]
