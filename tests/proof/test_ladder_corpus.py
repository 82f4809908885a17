"""Models of others against themselves: whatever ONNX Runtime loads must also run, and agree with itself."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxfix.proof.verdict import CPU_RUNGS
from onnxfix.proof.verify import verify
from onnxfix.runtime.sandbox import Worker
from support.models import write
from support.paths import ROOT

pytestmark = pytest.mark.corpus

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
EXPORTS = ROOT.parent / "shared" / "models"
# The nine networks under light/ take a second each and have one image as their only input.
MODELS = [path for path in sorted(DATA.rglob("*.onnx")) if "light" not in path.parts]
MODELS += sorted(EXPORTS.glob("*.onnx"))


def name_of(path: Path) -> str:
    return path.parent.name if path.stem == "model" else path.stem


@pytest.mark.parametrize("path", MODELS, ids=name_of)
def test_a_model_agrees_with_itself(path: Path, worker: Worker) -> None:
    verdict = verify(path, path, exact=True, rungs=["ort-cpu"], worker=worker)
    (rung,) = verdict.rungs
    if "the original cannot be loaded" in rung.reason:
        assert rung.status == "skipped"
    else:
        assert rung.status == "passed", rung.reason
        assert sum(one.status == "identical" for one in rung.feeds) >= 2


def test_most_of_them_run(worker: Worker) -> None:
    """Guards the test above: it would pass if nothing were loaded."""
    few = [path for path in MODELS if "sequence" in str(path) or "Conv2d" in str(path)]
    statuses = [
        verify(path, path, exact=True, rungs=["ort-cpu"], worker=worker).rungs[0].status for path in few
    ]
    assert len(few) > 15
    assert statuses.count("passed") >= 0.9 * len(few)


UNARY = ["Relu", "Neg", "Abs", "Sigmoid", "Identity", "Sign", "Exp"]
BINARY = ["Add", "Mul", "Sub", "Max"]


@given(data=st.data())
def test_random_chains_agree_with_themselves_and_differ_when_changed(data: st.DataObject) -> None:
    """A chain of operators is identical to itself; with its last operator negated it is not."""
    chain, last = "", "x"
    for place in range(data.draw(st.integers(1, 5))):
        op = data.draw(st.sampled_from(UNARY + BINARY))
        other = f", {data.draw(st.sampled_from(['x', last]))}" if op in BINARY else ""
        chain += f"t{place} = {op}({last}{other}) "
        last = f"t{place}"
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            write(
                Path(folder, f"{op}.onnx"),
                f"g (float[N,3] x) => (float[N,3] y) {{ {chain} y = {op}({last}) }}",
                17,
            )
            for op in ("Identity", "Neg")
        ]
        assert verify(paths[0], paths[0], exact=True, rungs=CPU_RUNGS).passed
        assert verify(*paths, exact=True, rungs=CPU_RUNGS).failed
