"""Pairs written to deceive the symbolic check, and pairs that it should prove: ``adversary.txt``.

    python -m benchmarks.symbolic.adversary

Each pair is also run in ONNX Runtime on special values, as a check of the pair itself: "different" must be told apart,
"equal" must have equal bits. The exit code is 1 if a different pair is proven, or ONNX Runtime contradicts a title.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from onnx import ModelProto, parser

from benchmarks.symbolic.pairs import Pair, shapes_of
from benchmarks.symbolic.special import apart, calm_feed
from onnxfix.proof.symbolic.prove import prove

TEXT = Path(__file__).with_name("adversary.txt")


class Case(NamedTuple):
    """Two models under a title, and whether they are the same."""

    title: str
    equal: bool
    models: tuple[ModelProto, ModelProto]


def cases() -> Iterator[Case]:
    """The pairs of ``adversary.txt``: a title with an operator set, a head, the nodes of both models."""
    for block in TEXT.read_text().split("\n\n")[1:]:
        title, head, *bodies = block.strip().split("\n")
        kind, _, name = title.partition(": ")
        name, _, versions = name.partition(" | ")
        sets = (versions or "21").split("/")
        inputs, _, outputs = head.partition(" => ")
        outputs, _, constants = outputs.partition(" <")
        graph = f"g ({inputs}) => ({outputs}) " + (f"<{constants} " if constants else "")
        first, second = (
            parser.parse_model(f'<ir_version: 10, opset_import: ["" : {version}]> {graph}{{{body}}}')
            for version, body in zip((sets[0], sets[-1]), bodies, strict=True)
        )
        yield Case(name, kind == "equal", (first, second))


def main() -> None:
    """Prove each pair in both directions, run it, and print what is wrong."""
    counts: collections.Counter[str] = collections.Counter()
    wrong = False
    for case in cases():
        pair = Pair(case.title, *case.models, {})
        shapes = shapes_of(pair.original, 3)
        ways = (case.models, case.models[::-1])
        outcomes = [prove(*models, shapes, {}, limit=20) for models in ways]
        proven = any(one.proven for one in outcomes)
        different = apart(pair, calm_feed(pair), (), draws=40)
        counts[f"{'equal' if case.equal else 'different'}, {'proven' if proven else 'not proven'}"] += 1
        if proven and not case.equal:
            wrong = True
            print(f"PROVEN, BUT DIFFERENT: {case.title}")
        if not proven and case.equal:
            print(f"not proven: {case.title}: {outcomes[0].reason}")
        if different is not None and bool(different) == case.equal:
            print(f"ONNX Runtime: {case.title}: {different or 'equal bits'}")
        counts["not run in ONNX Runtime"] += different is None
    print(dict(counts))
    sys.exit(wrong)


if __name__ == "__main__":
    main()
