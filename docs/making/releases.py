"""The pages of what each release of TensorRT takes, from the tables of onnxfix/targets and fixtures/node_truth.tsv."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import onnx.defs
from gpu.agreement import Package, read

from making.tables import cell
from onnxfix.rule import Rule
from onnxfix.targets import TARGETS
from onnxfix.targets.documented import (
    RELEASES,
    Fault,
    Version,
    facts_of,
    faults_of,
    operator_rows,
    text_of,
    version_of,
)

TRUTH = Path(__file__).resolve().parents[2] / "fixtures" / "node_truth.tsv"
_SHOWN = "8.4 8.5 8.6 9.0 9.3 10.0 10.3 10.6 10.8 10.12 10.14 10.15 11.0 11.2"
_WORDS = {"r": "right", "i": "imported", "y": "built", "w": "wrong", "x": "refused", "b": "not built"}
_WORDS |= {"c": "died", "h": "hung"}
_HEAD = """\
# Releases of TensorRT

What each release takes of ONNX's standard operators, according to NVIDIA's lists, changelogs and the parser's source,
and what packages did with ONNX's node models: {packages} (`fixtures/node_truth.tsv`).
`--target 10.3` uses the facts of that release, `--target jetpack6.2` those of the release that a JetPack ships, and
`onnxfix targets 10.3 11.2` lists what differs between two of them. The page of a release has its operators with the
evidence of each, its restrictions and its [known faults](faults.md).

| release | newest operator set | JetPack | list read | takes | in part | refuses | unknown | faults |
|---|---|---|---|---:|---:|---:|---:|---:|
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
_PAGE = """\
# TensorRT {version}

{about} `onnxfix check --target {version}` judges a model for it. [All releases](../releases.md)

Evidence is what packages did with ONNX's node models of the operator alone, before any fix ("right" and "wrong" were
executed), and for a release between two of them on how many models they agree, if they do on all that both were given.
Without evidence the source alone speaks: [releases.md](../releases.md#restrictions) says what the words mean.

Unknown operators: {unknown}.

## Operators that it refuses

| operator | evidence | source | rules |
|---|---|---|---|
{refused}

## Operators that it takes in part

| operator | restriction | evidence | rules |
|---|---|---|---|
{part}

## Operators that it takes

{taken}

## Known faults

Each row of [the table](../faults.md) that holds for this release.

| fault | pattern | effect | certainty | rule |
|---|---|---|---|---|
{faults}
"""


@cache
def truth() -> tuple[list[Package], dict[str, list[str]]]:
    """fixtures/node_truth.tsv: the packages, and for each operator the letters of the models of it alone."""
    packages, rows = read(TRUTH)
    letters: dict[str, list[str]] = {}
    for states, operators in rows.values():
        letters.setdefault(operators, []).append(states)
    return packages, letters


def evidence(name: str, version: Version) -> str:
    """What is known of an operator in a release beyond NVIDIA's words: of its own package, or of those around it."""
    packages, letters = truth()
    known = {version_of(one.target[3:]): one for one in packages if one.target != "rtx"}
    states = letters.get(name, [])
    if version in known:
        package = known[version]
        return _count("".join(one[package.place] for one in states), package.name)
    before = max((one for one in known if one < version), default=None)
    after = min((one for one in known if one > version), default=None)
    if before is None or after is None:
        return ""
    pairs = [(one[known[before].place], one[known[after].place]) for one in states]
    tried = [pair for pair in pairs if not set(pair) & set("-u")]
    if not tried or any((one == "x") != (other == "x") for one, other in tried):
        return ""
    return f"{text_of(before)} and {text_of(after)} agree on {len(tried)}"


def _count(letters: str, package: str) -> str:
    counts = Counter(letters)
    told = ", ".join(f"{counts[one]} {word}" for one, word in _WORDS.items() if one in counts)
    return f"{package.split()[1]}: {told}" if letters else ""


def release_pages(rules: Iterable[Rule]) -> dict[str, str]:
    """The page of each release, by its name."""
    by_operator: dict[str, list[str]] = {}
    for rule in rules:
        for domain, name in rule.ops:
            if not domain and rule.code[:3] not in ("PRC", "GRA"):
                by_operator.setdefault(name, []).append(rule.code)
    names = _operators()
    return {text_of(version): _page(version, names, by_operator) for version in RELEASES}


def _page(version: Version, names: Sequence[str], rules: Mapping[str, Sequence[str]]) -> str:
    release, sources = RELEASES[version], _sources(version)
    words = {name: _word(name, version) for name in names}
    notes = facts_of(version).notes

    def listed(name: str) -> str:
        return ", ".join(f"[{code}](../rules/{code}.md)" for code in rules.get(name, ())) or "–"

    about = f"Its newest operator set is {release.opset}."
    about += f" JetPack {', '.join(release.jetpacks)} ships it." if release.jetpacks else ""
    about += (
        " NVIDIA's list of operators was read." if release.listed else " Its list of operators was not found."
    )
    return _PAGE.format(
        version=text_of(version),
        about=about,
        unknown=", ".join(name for name in names if words[name] == "?") or "none",
        refused="\n".join(
            f"| {name} | {evidence(name, version) or '–'} | {cell(sources.get(name, '–'))} | {listed(name)} |"
            for name in names
            if words[name] == "no"
        ),
        part="\n".join(
            f"| {name} | {cell(notes[name])} | {evidence(name, version) or '–'} | {listed(name)} |"
            for name in names
            if words[name] == "part"
        ),
        taken="\n".join(_taken([name for name in names if words[name] == "yes"], version, sources)),
        faults="\n".join(map(_fault, faults_of(version))) or "| – | – | – | – | – |",
    )


def _taken(names: Sequence[str], version: Version, sources: Mapping[str, str]) -> Iterator[str]:
    yield "| operator | evidence | source |\n|---|---|---|"
    for name in names:
        yield f"| {name} | {evidence(name, version) or '–'} | {cell(sources.get(name, '–'))} |"


def _fault(fault: Fault) -> str:
    rule = f"[{fault.rule}](../rules/{fault.rule}.md)" if fault.rule != "-" else "–"
    return (
        f"| `{fault.id}` | {cell(fault.pattern)} | {cell(fault.effect)} | {cell(fault.certainty)} | {rule} |"
    )


@cache
def _sources(version: Version) -> dict[str, str]:
    """Operator -> where a release's facts of it are from."""
    found: dict[str, list[str]] = {}
    for row in operator_rows():
        if row.first <= version <= row.last:
            for name in row.operators:
                found.setdefault(name, []).append(row.source)
    return {name: "; ".join(dict.fromkeys(sources)) for name, sources in found.items()}


@cache
def _operators() -> tuple[str, ...]:
    return tuple(sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}))


def releases_page() -> str:
    """The page of all releases."""
    names = _operators()
    shown = [version for version in RELEASES if text_of(version) in _SHOWN.split()]
    return _HEAD.format(
        packages=", ".join(package.name for package in truth()[0]),
        releases="\n".join(_release(version, names) for version in RELEASES),
        columns=" | ".join(text_of(version) for version in shown),
        rules="---|" * len(shown),
        operators="\n".join(
            f"| {name} | {' | '.join(_word(name, version) for version in shown)} |" for name in names
        ),
        restrictions="\n".join(_restrictions(names)),
    )


def _release(version: Version, names: Sequence[str]) -> str:
    release, counts = RELEASES[version], Counter(_word(name, version) for name in names)
    numbers = " | ".join(str(counts[word]) for word in ("yes", "part", "no", "?"))
    listed, text = "yes" if release.listed else "no", text_of(version)
    jetpacks, faults = ", ".join(release.jetpacks), len(faults_of(version))
    return (
        f"| [{text}](releases/{text}.md) | {release.opset} | {jetpacks} | {listed} | {numbers} | {faults} |"
    )


def _word(name: str, version: Version) -> str:
    """How a release takes an operator."""
    imports = TARGETS[f"trt{text_of(version)}"].imports(name)
    if imports is None:
        return "?"
    return "no" if not imports else "part" if name in facts_of(version).notes else "yes"


def _restrictions(names: Sequence[str]) -> Iterator[str]:
    rows = [row for row in operator_rows() if row.restriction]
    for name in names:
        for row in rows:
            if name in row.operators:
                first, last = text_of(row.first), text_of(row.last)
                span = first if first == last else f"{first} to {last}"
                yield f"| {name} | {span} | {cell(row.restriction)} | {cell(row.source)} |"
