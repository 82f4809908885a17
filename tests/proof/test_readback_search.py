"""Which tensors the search for a difference blames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxfix.proof.compare.tolerance import shaken
from onnxfix.runtime.sandbox import Worker
from support import networks

COUNT = 7  # too few for a weight to be taken for a changed copy of another
TEXT = """g (float[7] x) => (float[1] y) <float[7] factors = {FACTORS}, int64[1] k = {1}, float[7] table = {TABLE}> {
    s = Mul(x, factors) v, i = TopK(s, k) a = Gather(table, i) y = Relu(a) }"""


def listed(usual: str, other: str, at: int) -> str:
    return ", ".join(other if place == at else usual for place in range(COUNT))


@pytest.mark.parametrize(("factor", "cause"), [("1.0000004", "choice"), ("1.1", "")])
def test_a_choice_within_noise_explains_what_differs_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: Worker, factor: str, cause: str
) -> None:
    """Moved inputs choose others as well, so that the indices are within noise; what is made of them may not be."""
    x = np.ones(COUNT, np.float32)
    first = int(np.argmax(shaken({"x": x})["x"] < 1))
    x[:first] = 0.5  # the model takes the first of what is equal, which is less once it is moved
    moved = int(np.argmax(shaken({"x": x})["x"]))
    other = next(place for place in range(first + 1, COUNT) if place != moved)
    text = TEXT.replace("TABLE", listed("9", "1", other))
    model, network = (text.replace("FACTORS", listed("1", one, other)) for one in ("1", factor))
    stage = networks.Stage(tmp_path, monkeypatch, [], worker)
    rung = stage.climb((model, network), inputs=[{"x": x}])
    assert rung.cause == cause
    assert [one.name for one in rung.networks[0].misreads] == ([] if cause else ["s"])
