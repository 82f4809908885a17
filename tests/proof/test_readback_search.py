"""Which tensors the search for a difference blames."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from onnxfix.proof.readback import locate
from onnxfix.proof.readback.child import Reply


@pytest.mark.parametrize(("top", "choices"), [("TopK", ("TopK",)), ("Split", ())])
def test_a_choice_within_noise_explains_what_differs_behind_it(top: str, choices: tuple[str, ...]) -> None:
    """Moved inputs choose others as well, so that the indices are within noise; what is made of them may not be."""
    text = (
        f"g (float[9] x, int64[1] k) => (float[K] y) {{ v, i = {top}(x, k)  a = Gather(x, i)  y = Relu(a) }}"
    )
    graph = onnx.parser.parse_graph(text)
    found = {"i": "within", "a": "different", "y": "different"}
    judged = [
        SimpleNamespace(agreement=one, kind="values", values=None, sides=None, reason="", at=None)
        for one in found.values()
    ]
    bench: Any = SimpleNamespace(
        load_with=lambda *_: Reply(),
        run=lambda *_, **__: Reply(size=1),
        judge=lambda *_: Reply(value=judged),
        ask=lambda function, **_: Reply(value=function == "chooses_alike" or {}),
    )
    sides = SimpleNamespace(
        path="", names={name: name for name in found}, outputs=[SimpleNamespace(name="y")]
    )
    pair: Any = SimpleNamespace(
        path="",
        lifted=sides,
        wires={},
        model=SimpleNamespace(graph=graph),
        network=SimpleNamespace(graph=graph),
        known=SimpleNamespace(draws_on=lambda _: False),
    )
    trial: Any = SimpleNamespace(values={}, label="")
    where = locate.Search(bench, pair, trial, "", "", "", time.monotonic() + 60).run(["y"])
    assert where.choices == choices
    assert [one.name for one in where.misreads] == ([] if choices else ["a"])
