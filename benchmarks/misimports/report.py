"""Rows to groups, and groups to the tables of found.md."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pages import Block, markdown, spaced

from misimports.causes import ALL, EXCUSED, KNOWN, OPEN, Cause, cause_of
from misimports.changes import UNDOCUMENTED
from misimports.measure import Row

_LONGEST = 1600  # characters of a model or of its layers
_WIDEST = 180
_DOCS = "../../docs"  # as seen from found.md
_NAMES = {"onnxruntime": "ONNX Runtime", "evaluator": "evaluator"}
_INTRODUCTION = """\
# Where TensorRT reads another model

<!-- written by benchmarks/misimports/run.py --write-docs -->

TensorRT-RTX {version}. Every attribute of every one of ONNX's node models was left out and changed, optional inputs
were left out, inputs made constants, dimensions made dynamic, small inputs given other values, one thing at a time.
Each variant that TensorRT's parser takes was read back from its network as an ONNX model, executed, and compared with
what ONNX Runtime and ONNX's evaluator compute of the variant itself. No engine was built or executed: this is what
TensorRT *imports*, not what its kernels compute. Where one of the two does not run a variant, the other one decides
alone; where they disagree, the one that disagrees with TensorRT's reading too is taken to be wrong, unless a rule knows
better by ONNX's text. Which of the hazards were seen on executed engines too is in
[the catalogue](../../docs/hazards.md).
"""


@dataclass(frozen=True)
class Group:
    """Rows that differ alike: one operator, one change, one kind of difference, one cause."""

    cause: Cause | None
    operator: str
    change: str
    what: str
    rows: tuple[Row, ...]

    @property
    def example(self) -> Row:
        """The plainest row."""
        return min(self.rows, key=lambda row: (row.nodes, bool(row.base), len(row.found.text), row.case))


def groups(rows: Iterable[Row]) -> list[Group]:
    """All differences by values that ONNX documents: those without a cause first, the others in its order."""
    found: dict[tuple[Cause | None, str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        difference = row.found.judgment.difference
        cause = cause_of(row) if difference is not None else None
        if (row.differs or cause is not None) and row.change.kind != UNDOCUMENTED:
            what = difference.what if difference is not None else ""
            found[cause, row.operator, kind_of(row.origin), what].append(row)
    made = [Group(*key, tuple(each)) for key, each in found.items()]
    return sorted(made, key=lambda one: (_order(one.cause), one.operator, one.change, one.what))


def _order(cause: Cause | None) -> int:
    return -1 if cause is None else ALL.index(cause)


def kind_of(change: str) -> str:
    """A change without its number: ``axis`` for ``axis=-1``, but ``mode=CRD`` and ``upper dropped``."""
    name, equals, value = change.partition("=")
    return f"{name}={value}" if equals and re.fullmatch(r"[A-Za-z_ ]+", value) else name if equals else change


def unexplained(found: Iterable[Group]) -> list[Group]:
    """Differences that nobody knows of."""
    return [one for one in found if one.cause is None]


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """How many variants came how far."""
    verdicts = Counter(row.found.judgment.verdict for row in rows)
    valid = [row for row in rows if row.found.judgment.verdict != "invalid"]
    ran = [row for row in valid if row.found.judgment.verdict != "not run"]
    differ = [row for row in rows if row.differs]
    return {
        "node models": len({row.case for row in rows}),
        "variants": len(rows),
        "valid: ONNX's checker accepts them, and ONNX Runtime or the evaluator runs them": len(valid),
        "of these, TensorRT's parser takes": sum(row.found.parsed for row in valid),
        "of these, read back": sum(row.found.status == "lifted" for row in valid),
        "of these, compared": len(ran),
        "equal": verdicts["equal"],
        "equal to ONNX Runtime, and not to the evaluator": verdicts["evaluator"],
        "equal to the evaluator, and not to ONNX Runtime": verdicts["onnxruntime"],
        "different": len(differ),
        "of these, by a value that ONNX does not document": sum(
            one.change.kind == UNDOCUMENTED for one in differ
        ),
        "not valid, and TensorRT's parser takes them": sum(
            row.found.parsed and row.found.judgment.verdict == "invalid" for row in rows
        ),
        "TensorRT's parser crashed": sum("parse: killed" in row.trouble for row in rows),
    }


def document(rows: Sequence[Row]) -> Iterator[str]:
    """found.md, line by line."""
    found = groups(rows)
    version = next((row.found.version for row in rows if row.found.version), "")
    causes = {cause: [one for one in found if one.cause is cause] for cause in (None, *OPEN, *KNOWN)}
    return spaced(
        _INTRODUCTION.format(version=version).splitlines(),
        markdown(("", "count"), counts(rows).items()),
        "## All of them",
        markdown(("hazard", "rule", "what is read differently", "groups", "variants"), _summary(causes)),
        *(block for cause, each in causes.items() if each for block in _section(cause, each)),
        *_excused(found),
        *_others(rows),
    )


def _summary(causes: Mapping[Cause | None, Sequence[Group]]) -> Iterator[list[object]]:
    for cause, each in causes.items():
        if each:
            title = cause.title if cause is not None else "without explanation"
            variants = sum(len(one.rows) for one in each)
            yield [*_links(cause), title, len(each), str(variants)]  # docs/make.py reads plain numbers


def _links(cause: Cause | None) -> tuple[str, str]:
    if cause is None:
        return "–", "none"
    hazard = f"[{cause.hazard}]({_DOCS}/hazards.md)" if cause.hazard else "–"
    return hazard, f"[{cause.rule}]({_DOCS}/rules/{cause.rule}.md)" if cause.rule else "no rule yet"


def _section(cause: Cause | None, found: Sequence[Group]) -> Iterator[Block]:
    if cause is None:
        yield "## Without explanation"
    else:
        hazard, rule = _links(cause)
        yield f"## {cause.title}"
        yield f"Hazard {hazard}, {rule if not cause.rule else f'rule {rule}'}."
        yield f"- ONNX: {cause.onnx}.", f"- TensorRT: {cause.tensorrt}."
    yield _table(found)
    examples = [one.example for one in found]
    for row in (
        examples if cause is None else [min(examples, key=lambda row: (row.nodes, len(row.found.text)))]
    ):
        yield from _example(row, cause.shows if cause is not None else "")


def _table(found: Sequence[Group]) -> Iterator[str]:
    rows: list[list[object]] = []
    for one in found:
        row = one.example
        difference = row.found.judgment.difference
        expected, got = (difference.expected, difference.found) if difference is not None else ("", "")
        change = [one.operator, one.change, one.what, len(one.rows)]
        rows.append([*change, _place(row), expected + _by(row), got])
    return markdown(("operator", "change", "differs", "variants", "for example", "ONNX", "TensorRT"), rows)


def _place(row: Row) -> str:
    more = (text for text in (row.base, str(row.change)) if text not in ("", "as it is"))
    return ", ".join([f"`{row.case}`", *more])


def _by(row: Row) -> str:
    judgment = row.found.judgment
    if judgment.verdict == "disputed":
        return " (ONNX Runtime; the evaluator says something else again)"
    if judgment.verdict in ("evaluator", "onnxruntime"):
        return f" ({_NAMES[judgment.verdict]}; the other one agrees with TensorRT)"
    return f" ({_NAMES[judgment.by]} alone)" if judgment.by in _NAMES else ""


def _example(row: Row, shows: str) -> Iterator[Block]:
    text = _narrow(row.found.text)
    lines = [line for line in row.found.layers.splitlines() if re.search(shows, line)]
    layers = _narrow("\n".join(lines))
    if not text or len(text) > _LONGEST:
        return
    yield from (f"{_place(row)}:", ("```text", text, "```"))
    if layers and len(layers) <= _LONGEST:
        few = ", among others" if len(lines) < len(row.found.layers.splitlines()) else ""
        yield from (f"is imported as{few}", ("```text", layers, "```"))


def _narrow(text: str) -> str:
    lines = (line.rstrip() for line in text.strip().splitlines())
    return "\n".join(line if len(line) <= _WIDEST else f"{line[: _WIDEST - 1]}…" for line in lines)


def _excused(found: Sequence[Group]) -> Iterator[Block]:
    """What was judged by hand."""
    if any(one.cause in EXCUSED for one in found):
        yield from ("## Judged by hand", "Differences that are no fault of TensorRT's reading.")
    for cause in EXCUSED:
        each = [one for one in found if one.cause is cause]
        if each:
            yield from (
                f"### {cause.title}",
                f"ONNX: {cause.onnx}. TensorRT: {cause.tensorrt}.",
                _table(each),
            )


def _others(rows: Sequence[Row]) -> Iterator[Block]:
    """What is not TensorRT's reading, or nobody can say, counted."""
    undocumented = [row for row in rows if row.differs and row.change.kind == UNDOCUMENTED]
    chosen = {
        "Values that ONNX does not document": ("Read in another way than by ONNX's runtimes.", undocumented),
        "The evaluator alone disagrees": (
            "ONNX Runtime and TensorRT's reading agree.",
            [row for row in rows if row.found.judgment.verdict == "evaluator" and cause_of(row) is None],
        ),
        "ONNX Runtime alone disagrees": (
            "The evaluator and TensorRT's reading agree.",
            [row for row in rows if row.found.judgment.verdict == "onnxruntime" and cause_of(row) is None],
        ),
        "TensorRT's parser crashes": (
            "The process dies of a signal.",
            [row for row in rows if "parse: killed" in row.trouble],
        ),
    }
    for title, (words, which) in chosen.items():
        found = Counter((row.operator, kind_of(str(row.change))) for row in which)
        if found:
            lines = [[operator, change, count] for (operator, change), count in sorted(found.items())]
            yield from (f"## {title}", words, markdown(("operator", "change", "variants"), lines))
    yield from _uncompared(rows)
    invalid = [row for row in rows if row.found.parsed and row.found.judgment.verdict == "invalid"]
    if invalid:
        found_by = sorted(Counter(row.operator for row in invalid).items())
        yield "## Accepted although not valid"
        yield ", ".join(f"{name} {count}" for name, count in found_by) + "."


def _uncompared(rows: Sequence[Row]) -> Iterator[Block]:
    """Valid variants that were parsed and have no reading."""
    gaps: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row.found.status == "unlifted" and row.found.judgment.verdict != "invalid":
            why = row.found.gaps[0] if row.found.gaps else row.found.reason
            gaps[row.operator, re.sub(r" layer .*?: ", ": ", why)] += 1
    if gaps:
        lines = [[operator, why, count] for (operator, why), count in sorted(gaps.items())]
        yield from ("## Not read back", markdown(("operator", "why", "variants"), lines))
