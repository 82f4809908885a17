"""benchmarks/diagnose: one fault in a copy, which runs and differs at its node and not before; what counts as named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from diagnose import cases, choosing, observing, planting, run
from diagnose.choosing import Fault, Subject
from diagnose.places import KINDS, Kind, Site

from onnxfix.runtime.sandbox import Worker
from support.models import model

#: Bears every kind of fault: a convolution, a mask, a decomposed normalization, attention between axes of equal size.
NET = """g (float[2,3,6,6] x, bool[1,8,1,4] keep) => (float[2,8,4,4] y) {
c = Conv<pads = [1, 1, 1, 1]>(x, kernel, bias)
cut = Slice(c, starts, ends, sliced)
t = Transpose<perm = [0, 1, 3, 2]>(cut)
low = Constant<value = float {-3.0e38}>()
zero = Constant<value = float {0.0}>()
m = Where(keep, zero, low)
a = Add(t, m)
s = Softmax<axis = -1>(a)
w = MatMul(s, weight)
mean = ReduceMean<axes = [-1]>(w)
d = Sub(w, mean)
two = Constant<value = float {2.0}>()
p = Pow(d, two)
v = ReduceMean<axes = [-1]>(p)
eps = Constant<value = float {0.00001}>()
e = Add(v, eps)
q = Sqrt(e)
n = Div(d, q)
r = Relu(n)
y = Mul(r, scale) }"""


def net() -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    shapes = {"kernel": (8, 3, 3, 3), "bias": (8,), "weight": (4, 4), "scale": (8, 1, 4)}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    found = model(NET, 17, starts=[1, 1], ends=[5, 5], sliced=[2, 3], **weights)
    for node in found.graph.node:
        node.name = f"node_{node.output[0]}"
    return found


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    folder = tmp_path_factory.mktemp("planted")
    onnx.save(net(), folder / "net.onnx")
    with Worker() as worker:
        found = Subject(folder / "net.onnx", 0, observing.Observer(worker), folder)
        found.feed["keep"][0, 0] = False  # where everything is masked, the value of the mask shows
        yield found


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_plants_one_change_that_shows_at_its_node_alone(subject: Subject, kind: Kind) -> None:
    trials = choosing.Counter()
    (fault,) = subject.faults(kind, 1, "fixtures", trials)
    assert trials[f"{kind}: planted"] == 1
    planted = planting.plant(subject.loaded.proto, fault.site)
    assert planted is not None
    every = [name for name in subject.graph.makers if name not in subject.graph.stored]
    before, after = (subject._run(one, "one.onnx", every) for one in (planted.truth, planted.other))
    off = [name for name in every if observing.off(before[name], after[name])]
    order = list(subject.graph.makers)
    assert min(off, key=order.index) == planted.output
    assert "y" in off
    assert fault.own > observing.VISIBLE["float32"]


def test_silent_and_rounding_faults_do_not_count(subject: Subject) -> None:
    place = {node.output[0]: number for number, node in enumerate(subject.loaded.proto.graph.node)}
    assert subject.attempt(Site("axis", place["s"], 0, -1))[0] == "silent"
    assert subject.attempt(Site("shape constant", place["cut"], 1, 0))[0] == "does not run"
    tiny = np.float32([1.0, 2.0])
    assert not observing.shows(tiny, np.nextafter(tiny, np.float32(9)))
    assert observing.shows(tiny, tiny + np.float32(1e-5))
    assert observing.off(tiny, np.float32([1.0, np.nan])) == float("inf")
    assert observing.off(np.float32([np.nan]), np.float32([np.nan])) == 0.0


def culprit(output: str, node: str) -> dict[str, Any]:
    return {
        "output": output,
        "node": node,
        "op_type": "X",
        "own_error": 0.5,
        "cause": "attribute",
        "reason": "so",
    }


def test_which_culprits_are_right() -> None:
    fault = Fault(
        model="net", group="fixtures", kind="axis", site=Site("axis", 3, 0, -2), node="node_s", op_type="Softmax",
        output="s", nodes=("node_s", "s"), outputs=("s",), what="axis -1 → -2", own=0.5, effect=0.1,
    )  # fmt: skip
    assert cases.place_of([culprit("m", "node_m"), culprit("s", "other")], fault) == 2
    assert cases.place_of([culprit("t", "node_s")], fault) == 1
    assert cases.place_of([culprit("m", "node_m")], fault) == 0


@pytest.mark.corpus
def test_every_recorded_fault_is_planted_again() -> None:
    _, faults, _ = choosing.read(run.PLANTED)
    assert {fault.kind for fault in faults} == set(KINDS)
    for one in cases.planted_cases(faults, None):
        assert one.fault is not None
        planted = planting.plant(onnx.load(one.path), one.fault.site)
        assert planted is not None
        assert (planted.output, planted.what) == (one.fault.output, one.fault.what)
