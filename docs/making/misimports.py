"""The readable page of mis-imports, from the list that benchmarks/misimports/run.py writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from making.tables import cell

_HEAD = """\
# Where TensorRT imports another model

{product} accepts these models without an error, and its network computes something else than ONNX
defines. Each row is a cause that [benchmarks/misimports](../benchmarks/misimports/README.md) found by changing ONNX's
own node models one thing at a time, and the rule that reports it. The numbers are those of [the catalogue](hazards.md),
which describes each cause and says which were seen on executed engines. The check `trt-network` finds any such
difference in your own model, known or not, without a GPU.

No engine was built or executed for this list: it is what TensorRT *imports*. The groups, examples and imported
layers behind each row are in [the full list](../benchmarks/misimports/found.md).
"""
_TALLY = (
    "node models",
    "variants",
    "valid: ",
    "of these, TensorRT's parser takes",
    "of these, compared",
    "different",
)
_ROW = re.compile(r"^\| (?P<hazard>\S.*?) \| (?P<rule>.*?) \| (?P<title>.*) \| \d+ \| (?P<variants>\d+) \|$")


def misimports_page(full: str, anchors: Mapping[int, str]) -> str:
    """The page.

    Args:
        full: the text of benchmarks/misimports/found.md.
        anchors: of each entry of the catalogue, by its number.

    Raises:
        ValueError: the list has another form, or a cause in its table has no section.
    """
    product = re.search(r"^(TensorRT-RTX [\d.]*\d)\.", full, re.MULTILINE)
    if product is None:
        raise ValueError("the list of mis-imports names no version of TensorRT")
    lines = [_HEAD.format(product=product[1]), "| | count |", "|---|---:|", *_counts(full), ""]
    lines += [
        "| # | rule | form | ONNX | TensorRT | variants |",
        "|---|---|---|---|---|---:|",
        *_causes(full),
    ]
    text = "\n".join(lines).replace("../../docs/", "") + "\n"
    return re.sub(
        r"\[(\d+)\]\(hazards\.md\)", lambda entry: f"[{entry[1]}](hazards.md#{anchors[int(entry[1])]})", text
    )


def _counts(full: str) -> Iterator[str]:
    table = full.partition("## All of them")[0]
    yield from (row for row in table.splitlines() if row.startswith("| ") and row[2:].startswith(_TALLY))


def _causes(full: str) -> Iterator[str]:
    for line in full.partition("## All of them")[2].partition("\n## ")[0].splitlines():
        row = _ROW.match(line)
        if row is None or row["hazard"] == "hazard":
            continue
        _, found, section = full.partition(f"\n## {row['title']}\n")
        says = re.search(r"^- ONNX: (.*)\.\n- TensorRT: (.*)\.$", section.partition("\n## ")[0], re.MULTILINE)
        if not found or says is None:
            raise ValueError(f"the list of mis-imports has no section about {row['title']!r}")
        cells = (row["hazard"], row["rule"], row["title"], *map(cell, says.groups()), row["variants"])
        yield f"| {' | '.join(cells)} |"
