"""benchmarks/diagnose: one fault in a copy, which runs and differs at its node and not before; what counts as named."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from diagnose import cases, choosing, copies, feeding, judging, observing, places, planting, run, tables
from diagnose.choosing import Fault, Subject
from diagnose.copies import Graph
from diagnose.faults import KINDS, Kind, Site

from onnxfix.errors import OnnxfixError
from onnxfix.files import saving
from onnxfix.sandbox import Worker
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
    found = model(NET, opset=17)
    for name, value in (
        ("kernel", rng.normal(size=(8, 3, 3, 3)).astype(np.float32)),
        ("bias", rng.normal(size=8).astype(np.float32)),
        ("weight", rng.normal(size=(4, 4)).astype(np.float32)),
        ("scale", rng.normal(size=(8, 1, 4)).astype(np.float32)),
        ("starts", np.array([1, 1])),
        ("ends", np.array([5, 5])),
        ("sliced", np.array([2, 3])),
    ):
        found.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    for node in found.graph.node:
        node.name = f"node_{node.output[0]}"
    return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("diagnose") / "net.onnx"
    onnx.save(net(), path)
    return path


@pytest.fixture(scope="module")
def subject(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with Worker() as worker:
        found = Subject(path, 0, observing.Observer(worker), tmp_path_factory.mktemp("planted"))
        found.feed["keep"][0, 0] = False  # where everything is masked, the value of the mask shows
        yield found


def changed(one: onnx.ModelProto, other: onnx.ModelProto) -> tuple[set[str], set[str]]:
    """The nodes (by their outputs) and the initializers that are not the same in both."""

    def parts(of: onnx.ModelProto) -> tuple[dict[str, bytes], dict[str, bytes]]:
        nodes = {node.output[0]: node.SerializeToString() for node in of.graph.node}
        return nodes, {tensor.name: tensor.SerializeToString() for tensor in of.graph.initializer}

    a, b = parts(one), parts(other)
    nodes, tensors = (
        {name for name in x.keys() | y.keys() if x.get(name) != y.get(name)}
        for x, y in zip(a, b, strict=True)
    )
    return nodes, tensors


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_plants_one_change_that_shows_at_its_node_alone(subject: Subject, kind: Kind) -> None:
    trials = choosing.Counter()
    (fault,) = subject.faults(kind, 1, "fixtures", trials)
    assert trials[f"{kind}: planted"] == 1
    planted = planting.plant(subject.loaded.proto, fault.site)
    assert planted is not None
    nodes, tensors = changed(planted.truth, planted.other)
    assert nodes | tensors, "nothing was changed"
    assert nodes <= set(planted.outputs) | {f"{one}.back" for one in nodes} | {
        one for one in nodes if one.startswith(f"{planted.output}/planted")
    }
    read = {name for node in subject.graph.nodes if planted.output in node.output for name in node.input}
    assert tensors <= {*read, *(f"{planted.output}/planted.{n}" for n in range(4))}
    every = [name for name in subject.graph.makers if name not in subject.graph.stored]
    before, after = (subject._run(one, "one.onnx", every) for one in (planted.truth, planted.other))
    off = [name for name in every if observing.off(before[name], after[name])]
    order = list(subject.graph.makers)
    assert min(off, key=order.index) == planted.output
    assert "y" in off
    assert fault.own > observing.VISIBLE["float32"]


def test_the_same_seed_gives_the_same_faults(subject: Subject) -> None:
    def found(seed: int) -> list[list[Site]]:
        graph = Graph(net())
        return [places.sites(graph, kind, subject.seen, random.Random(f"{seed}/{kind}")) for kind in KINDS]

    assert found(0) == found(0)
    assert found(0) != found(1)
    for sites in found(0):
        one, again = (planting.plant(net(), sites[0]) for _ in range(2))
        assert one == again


def test_planting_leaves_the_model_as_it_is(subject: Subject) -> None:
    given = net()
    for kind in KINDS:
        for site in places.sites(Graph(net()), kind, subject.seen, random.Random(0)):
            planting.plant(given, site)
    assert given == net()


def site_of(kind: Kind, output: str, operand: int = 0, choice: int = 0) -> Site:
    number = next(n for n, node in enumerate(net().graph.node) if output in node.output)
    return Site(kind, number, operand, choice)


@pytest.mark.parametrize(
    ("site", "words"),
    [
        (site_of("weight scaled", "w", 1), "weight[4, 4] × 1.01"),
        (site_of("epsilon", "e", 1), "epsilon 1e-05 → 0.001"),
        (site_of("axis", "s", 0, -2), "axis -1 → -2"),
        (site_of("axis", "v", 0, -3), "axes [-1] → [-3]"),
        (site_of("pads", "c", 0, 1), "pads [1, 1, 1, 1] → [1, 2, 1, 0]"),
        (site_of("perm", "t", 0, 5), "perm [0, 1, 3, 2] → [0, 1, 2, 3]"),
        (site_of("mask value", "m", 2), "mask value -3e+38 → -10000"),
        (site_of("lost bias", "c", 2), "bias bias[8] is gone"),
        (site_of("shape constant", "cut", 1, 3), "input 1: [1, 1] → [1, 0]"),
        (site_of("operands", "m"), "inputs 1 and 2 swapped"),
        (site_of("operator", "r"), "Relu → LeakyRelu"),
        (site_of("lost Cast", "w", 0, 1), "the Casts to int64 and back after it are lost"),
        (site_of("half precision", "w", 0, 1), "reads and writes float16"),
    ],
)
def test_what_is_changed(site: Site, words: str) -> None:
    planted = planting.plant(net(), site)
    assert planted is not None
    assert planted.what.endswith(f": {words}")


def test_an_element_moves_by_the_largest_magnitude_of_its_weight() -> None:
    planted = planting.plant(net(), site_of("weight element", "w", 1, 7))
    assert planted is not None
    before, after = (Graph(one).array("weight") for one in (planted.truth, planted.other))
    off = np.abs(after - before)
    assert np.count_nonzero(off) == 1
    assert off.max() == pytest.approx(np.abs(before).max())
    assert np.abs(after).max() > np.abs(before).max() or np.abs(after[off > 0]) > np.abs(before[off > 0])


def test_a_whole_weight_is_scaled_and_a_bias_is_gone() -> None:
    planted = planting.plant(net(), site_of("weight scaled", "w", 1))
    assert planted is not None
    before, after = (Graph(one).array("weight") for one in (planted.truth, planted.other))
    np.testing.assert_allclose(after, before * 1.01, rtol=1e-6)
    lost = planting.plant(net(), site_of("lost bias", "c", 2))
    assert lost is not None
    assert list(lost.other.graph.node[0].input) == ["x", "kernel"]


@pytest.mark.parametrize("kind", ["lost Cast", "half precision"])
def test_which_model_has_the_casts(kind: Kind) -> None:
    planted = planting.plant(net(), site_of(kind, "w", 0, 1))
    assert planted is not None
    casts = [sum(node.op_type == "Cast" for node in one.graph.node) for one in (planted.truth, planted.other)]
    assert casts == ([2, 0] if kind == "lost Cast" else [0, 6])
    assert planted.output == "w"


def test_a_constant_that_others_read_stays_for_them() -> None:
    given = net()
    given.graph.node[0].input[2] = "shared"
    given.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(8, np.float32), "shared"))
    given.graph.node.append(onnx.helper.make_node("Identity", ["shared"], ["also"]))
    graph = Graph(given)
    copies.replaced(graph, graph.nodes[0], 2, np.zeros(8, np.float32))
    assert Graph(given).array("shared").all()
    assert not Graph(given).array(given.graph.node[0].input[2]).any()


def test_silent_and_rounding_faults_do_not_count(subject: Subject) -> None:
    assert subject.attempt(site_of("axis", "s", 0, -1))[0] == "silent"
    assert subject.attempt(site_of("shape constant", "cut", 1))[0] == "does not run"
    tiny = np.float32([1.0, 2.0])
    assert not observing.shows(tiny, np.nextafter(tiny, np.float32(9)))
    assert observing.shows(tiny, tiny + np.float32(1e-5))
    assert observing.off(tiny, np.float32([1.0, np.nan])) == float("inf")
    assert observing.off(np.float32([np.nan]), np.float32([np.nan])) == 0.0


def test_a_mask_has_a_full_a_padded_and_an_empty_row() -> None:
    feed = feeding.inputs_of(choosing.FIXTURES / "bert.legacy.op17.onnx", 0)
    assert feed["attention_mask"].tolist() == [[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0]]
    again = feeding.inputs_of(choosing.FIXTURES / "bert.legacy.op17.onnx", 0)
    assert all((feed[name] == again[name]).all() for name in feed)


def test_other_names_change_no_output(path: Path, subject: Subject, tmp_path: Path) -> None:
    other = cases.renamed(net())
    assert not {node.name for node in other.graph.node} & {node.name for node in net().graph.node}
    assert [one.name for one in other.graph.output] == ["y"]
    inner = {name for node in net().graph.node for name in node.output} - {"y"}
    assert not inner & {name for node in other.graph.node for name in node.output}
    saving.save(other, tmp_path / "other.onnx")
    a, b = (subject.observer.see(one, subject.feed)[0] for one in (path, tmp_path / "other.onnx"))
    assert (a["y"] == b["y"]).all()


# ------------------------------------------------------------------------------------------------------- judging


def fault(**more: Any) -> Fault:
    given: dict[str, Any] = {
        "model": "net", "group": "fixtures", "kind": "axis", "site": Site("axis", 3, 0, -2), "node": "node_s",
        "op_type": "Softmax", "output": "s", "nodes": ("node_s", "s"), "outputs": ("s",), "what": "axis -1 → -2",
        "own": 0.5, "effect": 0.1,
    }  # fmt: skip
    return Fault(**{**given, **more})


def culprit(
    output: str, node: str = "", own_error: float | None = 0.5, cause: str = "attribute"
) -> dict[str, Any]:
    return {
        "output": output,
        "node": node,
        "op_type": "X",
        "own_error": own_error,
        "cause": cause,
        "reason": "so",
    }


def test_which_culprits_are_right() -> None:
    assert judging.place_of([culprit("m", "node_m"), culprit("s", "other")], fault()) == 2
    assert judging.place_of([culprit("t", "node_s")], fault()) == 1
    assert judging.place_of([culprit("m", "node_m")], fault()) == 0


def test_what_is_kept_of_a_run() -> None:
    said = {
        "status": "differ",
        "reason": "",
        "runs": 3.5,
        "culprits": [culprit("s")],
        "begins": [culprit("s")],
    }
    ended = judging.Ended(1, choosing.json.dumps(said), "", 1.0, 100.0)
    kept = judging.entry(ended, fault())
    assert (kept["place"], kept["status"], kept["runs"], kept["begins"]) == (1, "differ", 3.5, ["s"])
    broken = judging.entry(judging.Ended(2, "", "no such option", 1.0, 100.0), fault())
    assert (broken["status"], broken["place"], broken["reason"]) == ("error", 0, "no such option")


def test_a_process_that_hangs_is_ended() -> None:
    ended = judging.executed([choosing.sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    assert ended.code == judging.TIMED_OUT
    assert ended.seconds < 30
    assert ended.megabytes > 1


def results() -> dict[str, dict[str, Any]]:
    kept = {
        "exit": 1,
        "seconds": 2.0,
        "megabytes": 100,
        "runs": 4.0,
        "reason": "",
        "status": "differ",
        "commit": "c0ffee",
    }
    named = {**kept, "place": 1, "culprits": [culprit("s")]}
    missed = {**kept, "place": 0, "culprits": [culprit("m", "node_m", None)]}
    calm = {**kept, "status": "rounding", "culprits": []}
    loud = {**kept, "culprits": [culprit("m", cause="overflow")]}
    return {
        f"fixtures/{fault().key}": named,
        f"fixtures/{fault(kind='pads').key}": missed,
        "fixtures/net/copy": calm,
        "fixtures/net/fp16": loud,
    }


def test_the_tables() -> None:
    rows = tables.rows_of([fault(), fault(kind="pads"), fault(kind="perm")], results())
    assert [row.place for row in rows] == [1, 0]
    controls = tables.controls_of(results())
    assert controls.keys() == {"fixtures/net/copy", "fixtures/net/fp16"}
    text = "\n".join(tables.page(rows, rows[:1], controls, {"axis: planted": 1, "axis: silent": 2}))
    assert "Of 2 planted faults 1 (50%) are named first" in text
    assert "| axis | 1 | 1 (100%) | 1 (100%) | 1 (100%) |" in text
    assert "| pads | 1 | 0 (0%) | 0 (0%) | 0 (0%) |" in text
    assert set(tables.CAUSES) == set(KINDS)
    assert "(∞): so" in text
    assert "1 (100%) of 1 are named first" in text
    assert "2 silent" in text
    assert "onnxfix at `c0ffee`" in text
    assert [one.partition(":")[0] for one in tables.lacking(rows, controls)] == [
        "1 of 2 are among the first 1",
        "1 of 2 are among the first 3",
    ], "a range that half precision leaves is no false culprit"
    loud = {"fixtures/net/copy": results()["fixtures/net/fp16"]}
    assert tables.lacking(rows[:1], loud) == ["fixtures/net/copy: a false culprit"]


def test_the_record() -> None:
    seed, faults, trials = choosing.read(run.PLANTED)
    assert seed == 0
    assert len(faults) >= 200
    assert {one.kind for one in faults} == set(KINDS)
    assert len({one.key for one in faults if one.group == "fixtures"}) == sum(
        one.group == "fixtures" for one in faults
    )
    assert sum(count for name, count in trials.items() if name.endswith(": planted")) == len(faults)


@pytest.mark.corpus
def test_every_recorded_fault_is_planted_again() -> None:
    _, faults, _ = choosing.read(run.PLANTED)
    for one in cases.planted_cases(faults, None):
        assert one.fault is not None
        planted = planting.plant(onnx.load(one.path), one.fault.site)
        assert planted is not None
        assert (planted.output, planted.what) == (one.fault.output, one.fault.what)


def test_another_model_under_the_same_name_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(OnnxfixError, match="another model"):
        cases.arguments(cases.Case("fixtures", path, fault(site=site_of("axis", "v", 0, -3))), tmp_path, 0)
