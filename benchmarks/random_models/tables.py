"""What came of many models, as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pages import markdown

from onnxfix.rewrite.registry import registry
from onnxfix.rule import NO_MODEL, Fixed

Row = dict[str, Any]


def unreached(rows: list[Row]) -> list[str]:
    """Rules about models that no model reached: not found, or not fixed although an example of theirs is."""
    flagged = {code for row in rows for code in (*row["flagged"], *row["fixed"])}
    fixed = {code for row in rows for code in row["fixed"]}
    found = []
    for rule in registry().rules:
        if rule.per in NO_MODEL:
            continue
        fixes = any(isinstance(example, Fixed) for example in rule.examples)
        if rule.code not in flagged or (fixes and rule.code not in fixed):
            found.append(rule.code)
    return found


def summary(rows: list[Row]) -> Iterator[str]:
    """Counts, then a line for each rule."""
    discarded = [text for row in rows for text in row["discarded"]]
    status = Counter(row["status"] for row in rows)
    changed = [row for row in rows if row["changed"]]
    yield f"{len(rows)} models, {len(discarded)} others were discarded"
    yield f"  run: {status['run']}, judged without execution: {status['static']}, none found: {status['none']}"
    compared = [row for row in changed if row["feeds"]]
    for name in ("ort-cpu", "reference"):
        yield f"  compared in {name}: {sum(name in row['backends'] for row in compared)}"
    yield f"  at two feeds: {sum(row['feeds'] == 2 for row in compared)}"
    yield f"  changed: {len(changed)}"
    for safety in ("EXACT", "NUMERIC", "UNSAFE"):
        of = [row for row in rows if row["safety"] == safety]
        yield f"    {safety.lower()}: {sum(row['changed'] for row in of)} of {len(of)}"
    yield f"  within what rounding explains, by the ladder: {sum(bool(row['excused']) for row in rows)}"
    yield f"  numeric fixes beyond tolerance, which the ladder withdraws: {sum(bool(row['withdrawn']) for row in rows)}"
    yield f"  differing only in memory that ONNX Runtime does not set: {sum(bool(row.get('unset')) for row in rows)}"
    yield f"  refused for what the model itself contradicts: {sum(bool(row.get('contradicted')) for row in rows)}"
    yield f"  with faults: {sum(bool(row['faults']) for row in rows)} " + str(
        dict(Counter(kind for row in rows for kind in {kind for kind, _ in row["faults"]}))
    )
    places = Counter(place for row in rows for place in row["places"])
    yield "  pieces inside: " + ", ".join(f"{name} {count}" for name, count in places.most_common())
    opsets = Counter(row["opset"] for row in rows)
    yield "  opsets: " + ", ".join(f"{opset} {count}" for opset, count in sorted(opsets.items()))
    yield f"  operators: {len({name for row in rows for name in row['operators']})}"
    yield f"  refused by onnx.checker on purpose: {sum(not row['valid'] for row in rows)}"
    yield from _tensorrt(rows)
    yield from _commands(rows)
    yield from _rules(rows)


def _tensorrt(rows: list[Row]) -> Iterator[str]:
    for stage in ("parse", "build"):
        of = [row["tensorrt"] for row in rows if row["tensorrt"].get("stage") == stage]
        if of:
            both = [one for one in of if "after" in one]
            pairs = Counter((one["before"] == "accepted", one["after"] == "accepted") for one in both)
            yield (
                f"  TensorRT, {stage}: {len(of)} models, {len(both)} changed: accepted before and after "
                f"{pairs[True, True]}, won {pairs[False, True]}, lost {pairs[True, False]}, "
                f"refused {pairs[False, False]}"
            )


def _commands(rows: list[Row]) -> Iterator[str]:
    of = [row["command"] for row in rows if row["command"]]
    if of:
        exits = Counter(one["exit"] for one in of)
        withdrawn = sum(bool(one["withdrawn"]) for one in of)
        yield f"  through the command: {len(of)}, exit codes {dict(sorted(exits.items()))}, withdrawn in {withdrawn}"


def _rules(rows: list[Row]) -> Iterator[str]:
    flagged = Counter(code for row in rows for code in {*row["flagged"], *row["fixed"]})
    fixed = Counter(code for row in rows for code in row["fixed"])
    missing = unreached(rows)
    yield f"  rules: {len(flagged)} found something, {len(fixed)} fixed something"
    yield f"  rules that were not reached: {' '.join(missing) or 'none'}"
    codes = [rule.code for rule in registry().rules]
    counts = ([code, str(flagged[code]), str(fixed[code])] for code in codes)
    yield from markdown(("rule", "found in", "fixed in"), counts)
