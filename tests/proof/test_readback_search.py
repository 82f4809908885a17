"""How many tensors the search for a difference asks for at once."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfix.proof.readback import locate
from onnxfix.proof.readback.child import Reply


class Search(locate.Search):
    """Asks nobody, and notes how many tensors it would have asked for."""

    def __init__(self, elements: int, tensor: int) -> None:
        trial: Any = SimpleNamespace(values={"x": np.zeros(elements, np.float32)}, label="")
        super().__init__(self, None, trial, "ort-cpu", "", "", time.monotonic() + 60)  # type: ignore[arg-type]
        self.tensor, self.parts = tensor, list[int]()

    def _candidates(self, wrong: Any) -> list[tuple[str, str]]:
        return [(f"t{n}", f"t{n}") for n in range(2000)]

    def _look(self, part: Any, size: int) -> int:
        self.parts.append(len(part))
        reply = Reply(size=self.tensor * self.parts[-1], value=())
        self.bench = SimpleNamespace(  # type: ignore[assignment]
            load_with=lambda *_: Reply(),
            run=lambda *_, **__: reply,
            judge=lambda *_: reply,
            ask=lambda *_, **__: Reply(),
        )
        self.pair = SimpleNamespace(path="", lifted=SimpleNamespace(path=""), wires={})  # type: ignore[assignment]
        return super()._look(part, size)


@pytest.mark.parametrize(
    ("elements", "tensor", "parts"),
    [
        (64, 1000, [16, 64, 256, 1024, 640]),  # small ones, more and more at once
        (64, 64 << 20, [16, 4, 4, 4]),  # 256 MiB at once, as soon as their size is known
        (1 << 25, 8, [1, 1, 1]),  # inputs of 128 MiB: shapes come first, and what follows may be large
    ],
)
def test_what_is_asked_for_at_once(elements: int, tensor: int, parts: list[int]) -> None:
    search = Search(elements, tensor)
    search.run([])
    assert search.parts[: len(parts)] == parts
    assert sum(search.parts) == 2000


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
