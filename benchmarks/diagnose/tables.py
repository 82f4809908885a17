"""The tables of planted faults: by kind, by model, what was missed, and what was named where nothing was planted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pages import Block, cell, markdown, spaced

from diagnose.cases import AMONG, CONTROLS, DISGUISED
from diagnose.choosing import Fault
from diagnose.places import Kind

FIRST, THREE = 0.90, 0.97
"""Shares of the faults that are to be named first, and among three."""
#: Causes that a model in half precision really has: a number of it leaves the range of the type, or cancels out.
RANGES = frozenset({"overflow", "underflow", "saturation", "cancellation", "ill-conditioned", "hazard"})
#: The causes that are right for a kind. Epsilons, axes and pads are attributes or constants.
CAUSES: dict[Kind, frozenset[str]] = {
    "weight scaled": frozenset(("weight",)),
    "weight element": frozenset(("weight",)),
    "epsilon": frozenset(("attribute", "weight")),
    "axis": frozenset(("attribute", "weight")),
    "perm": frozenset(("attribute",)),
    "pads": frozenset(("attribute", "weight")),
    "lost Cast": frozenset(("precision", "operator", "structure")),
    "mask value": frozenset(("weight",)),
    "lost bias": frozenset(("weight", "attribute", "operator", "structure")),
    "half precision": frozenset(("precision", "overflow", "underflow", "structure")),
    "shape constant": frozenset(("weight", "attribute")),
    "operands": frozenset(("operator", "structure")),
    "operator": frozenset(("operator", "attribute")),
}
_LONGEST = 150


@dataclass(frozen=True)
class Row:
    """A fault and what was said of it."""

    fault: Fault
    said: Mapping[str, Any]

    @property
    def place(self) -> int:
        """The place at which it is named, 0 for not at all."""
        return int(self.said["place"])

    @property
    def explained(self) -> bool:
        """Whether the culprit that is right has a cause of the planted kind; culprits after the fifth are not kept."""
        culprits = self.said["culprits"]
        return (
            0 < self.place <= len(culprits) and culprits[self.place - 1]["cause"] in CAUSES[self.fault.kind]
        )


def rows_of(
    faults: Sequence[Fault], results: Mapping[str, Mapping[str, Any]], disguised: bool = False
) -> list[Row]:
    """The faults that were measured; ``disguised``: in models with other names."""
    keys = {f"{fault.group}/{fault.key}{DISGUISED if disguised else ''}": fault for fault in faults}
    return [Row(fault, results[key]) for key, fault in keys.items() if key in results]


def controls_of(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The results of models in which nothing was planted, by their keys."""
    return {
        key: said
        for key, said in results.items()
        if "place" not in said and key.rpartition("/")[2] in CONTROLS
    }


def false_culprits(key: str, said: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Culprits where nothing was planted. In half precision a range that is left is no false one."""
    half = key.rpartition("/")[2] in ("fp16", "bf16")
    return [one for one in said["culprits"] if not (half and one["cause"] in RANGES)]


def line(key: str, said: Mapping[str, Any]) -> str:
    """For people who watch."""
    named = ", ".join(f"{one['output']} ({_error(one)} {one['cause']})" for one in said["culprits"][:AMONG])
    place = f" named {said['place'] or 'NOT'}" if "place" in said else ""
    return f"{key}: {said['status']},{place} {said['seconds']:.1f} s: {named or said['reason'][-300:]}"


def _error(culprit: Mapping[str, Any]) -> str:
    """A share of the output's scale. JSON has no infinity: it is written as null or as a text."""
    value = culprit["own_error"]
    return f"{float(value):.1e}" if value is not None and math.isfinite(float(value)) else "∞"


def _share(count: int, of: int) -> str:
    return f"{count} ({count / of:.0%})" if of else "–"


def _named(rows: Sequence[Row], most: int = AMONG) -> str:
    return _share(sum(0 < row.place <= most for row in rows), len(rows))


def _groups(rows: Sequence[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _counted(rows: Sequence[Row]) -> list[object]:
    return [
        len(rows),
        _named(rows, 1),
        _named(rows),
        _share(sum(row.explained for row in rows), len(rows)),
        f"{statistics.median(row.said['seconds'] for row in rows):.1f}",
        f"{max(row.said['seconds'] for row in rows):.1f}",
        f"{statistics.median(row.said.get('runs') or 0.0 for row in rows):.1f}",
    ]


_HEAD = (
    "faults",
    "named first",
    "among three",
    "cause right",
    "seconds, median",
    "greatest",
    "runs of the model",
)


def page(
    rows: Sequence[Row],
    disguised: Sequence[Row],
    controls: Mapping[str, Mapping[str, Any]],
    trials: Mapping[str, int],
) -> Iterator[str]:
    """Markdown: totals, by kind, by model, the misses, those with other names, the controls."""
    by_kind = _groups(rows, lambda row: row.fault.kind)
    by_model = _groups(rows, lambda row: f"{row.fault.group}/{row.fault.model}")
    renamed = (
        f"Where the model with the fault has other names for everything inside, {_named(disguised, 1)} of "
        f"{len(disguised)} are named first, {_named(disguised)} among three."
    )
    versions = sorted(
        {said["commit"] for said in (*(row.said for row in (*rows, *disguised)), *controls.values())}
    )
    return spaced(
        f"**Of {len(rows)} planted faults {_named(rows, 1)} are named first, {_named(rows)} among three.**",
        markdown(("kind", *_HEAD), ([name, *_counted(own)] for name, own in sorted(by_kind.items()))),
        markdown(("model", *_HEAD), ([f"`{name}`", *_counted(own)] for name, own in by_model.items())),
        *_missed(rows),
        *((renamed, *_missed(disguised)) if disguised else ()),
        *_unplanted(controls),
        f"Tried, and not counted: {_uncounted(trials)}.",
        f"Measured with onnxfix at {', '.join(f'`{one}`' for one in versions)}.",
    )


def _uncounted(trials: Mapping[str, int]) -> str:
    words: dict[str, int] = {}
    for name, count in trials.items():
        words[name.partition(": ")[2]] = words.get(name.partition(": ")[2], 0) + count
    return ", ".join(f"{count} {name}" for name, count in sorted(words.items()) if name != "planted")


def _missed(rows: Sequence[Row]) -> list[Block]:
    missed = [
        [
            f"`{row.fault.model}`",
            cell(f"{row.fault.kind}: {row.fault.what}")[:_LONGEST],
            f"{row.fault.own:.1e}",
            f"{row.fault.effect:.1e}",
            row.said["status"],
            row.place or "–",
            cell(_first(row.said))[:_LONGEST],
        ]
        for row in rows
        if row.place != 1
    ]
    if not missed:
        return ["All are named first."]
    head = ("model", "planted", "own error", "effect", "status", "place", "first culprit")
    return [f"Not named first ({len(missed)}):", markdown(head, missed)]


def _first(said: Mapping[str, Any]) -> str:
    if not said["culprits"]:
        return str(said["reason"])
    one = said["culprits"][0]
    return f"{one['op_type']} {one['node']} ({_error(one)}): {one['reason']}"


def _unplanted(controls: Mapping[str, Mapping[str, Any]]) -> tuple[str, list[str]]:
    rows = []
    for control in CONTROLS:
        own = {key: said for key, said in controls.items() if key.endswith(f"/{control}")}
        if own:
            states: dict[str, int] = {}
            for said in own.values():
                states[said["status"]] = states.get(said["status"], 0) + 1
            wrong = sum(bool(false_culprits(key, said)) for key, said in own.items())
            seconds = statistics.median(said["seconds"] for said in own.values())
            words = ", ".join(f"{count} {name}" for name, count in sorted(states.items()))
            rows.append([control, len(own), words, wrong, f"{seconds:.1f}"])
    head = ("held against", "models", "status", "with a false culprit", "seconds, median")
    wrongly = [
        f"- {key}: {said['status']}, {cell(_first({**said, 'culprits': [one]}))}"
        for key, said in controls.items()
        for one in false_culprits(key, said)[:1]
    ]
    return "Where nothing was planted:", [*markdown(head, rows), *wrongly]


def lacking(rows: Sequence[Row], controls: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is not as it should be."""
    found = []
    for most, least in ((1, FIRST), (AMONG, THREE)):
        named = sum(0 < row.place <= most for row in rows)
        if named < least * len(rows):
            found.append(f"{named} of {len(rows)} are among the first {most}: less than {least:.0%}")
    found += [f"{key}: a false culprit" for key, said in controls.items() if false_culprits(key, said)]
    found += [
        f"{key}: {said['reason'][-200:]}" for key, said in controls.items() if said["status"] == "error"
    ]
    return found
