"""The page of what each release of TensorRT takes, from the tables of onnxfix/targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx.defs

from making.tables import cell
from onnxfix.targets import TARGETS
from onnxfix.targets.documented import RELEASES, Version, facts_of, operator_rows, text_of

_SHOWN = "8.4 8.5 8.6 9.0 9.3 10.0 10.3 10.6 10.8 10.12 10.14 10.15 11.0 11.2"
_HEAD = """\
# Releases of TensorRT

What each release takes of ONNX's standard operators, according to NVIDIA's lists, changelogs and the parser's source.
`--target 10.3` uses the facts of that release, `--target jetpack6.2` those of the release that a JetPack ships, and
`onnxfix targets 10.3 11.2` lists what differs between two of them. `onnxfix check` also knows what packages did:
TensorRT 8.6.1 and 10.6.0 executed ONNX's node models, 11.2.1 imported them (`fixtures/node_truth.tsv`), and
TensorRT-RTX 1.7.1 was asked type by type. Nothing else on this page was run.

| release | newest operator set | JetPack | list read | takes | in part | refuses | unknown |
|---|---|---|---|---:|---:|---:|---:|
{releases}

A release whose list was not read has the facts on which the lists before and after it agree; where they differ, the
changelog decides. 11.3 and 11.4 are taken to be as 11.2: their release notes name no operator.

## Operators

yes: taken; part: with a restriction, named below; no: not imported; ?: unknown. A release that is left out is like the
one before it, but for what the restrictions say.

| operator | {columns} |
|---|{rules}
{operators}

## Restrictions

In the words of the source. `list`: NVIDIA's docs/operators.md of these releases; `changelog`: docs/Changelog.md;
`parser`: the source of the parser; `measured`: TensorRT did so with ONNX's node models.

| operator | releases | restriction | source |
|---|---|---|---|
{restrictions}
"""


def releases_page() -> str:
    """The page."""
    names = sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""})
    shown = [version for version in RELEASES if text_of(version) in _SHOWN.split()]
    return _HEAD.format(
        releases="\n".join(_release(version, names) for version in RELEASES),
        columns=" | ".join(text_of(version) for version in shown),
        rules="---|" * len(shown),
        operators="\n".join(
            f"| {name} | {' | '.join(_word(name, version) for version in shown)} |" for name in names
        ),
        restrictions="\n".join(_restrictions(names)),
    )


def _release(version: Version, names: list[str]) -> str:
    release, counts = RELEASES[version], Counter(_word(name, version) for name in names)
    numbers = " | ".join(str(counts[word]) for word in ("yes", "part", "no", "?"))
    listed = "yes" if release.listed else "no"
    return f"| {text_of(version)} | {release.opset} | {', '.join(release.jetpacks)} | {listed} | {numbers} |"


def _word(name: str, version: Version) -> str:
    """How a release takes an operator."""
    imports = TARGETS[f"trt{text_of(version)}"].imports(name)
    if imports is None:
        return "?"
    return "no" if not imports else "part" if name in facts_of(version).notes else "yes"


def _restrictions(names: list[str]) -> Iterator[str]:
    rows = [row for row in operator_rows() if row.restriction]
    for name in names:
        for row in rows:
            if name in row.operators:
                first, last = text_of(row.first), text_of(row.last)
                span = first if first == last else f"{first} to {last}"
                yield f"| {name} | {span} | {cell(row.restriction)} | {cell(row.source)} |"
