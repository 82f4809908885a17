"""benchmarks/network: how a network that was read back is judged, what confirms a cause, and what the tables say."""

# Long because: it covers four scripts, and the tables that they wrote.

from __future__ import annotations

import itertools
import random
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from acceptance.cases import NodeCase, node_cases
from acceptance.measure import Settings
from acceptance.node_models import choice
from network import causes, exports, measuring, mutants, mutating, node_models, reading, tables
from network.memory import Watch, processor_seconds
from network.node_models import Row
from onnx import ModelProto, numpy_helper

import test_exports_table
from onnxfix.sandbox import Worker
from onnxfix.trt.lift import Lifted, NetTensor
from support.models import model
from support.paths import ROOT
from support.patience import PATIENCE
from support.real_tensorrt import REAL

FOLDER = ROOT / "benchmarks" / "network"
README = FOLDER / "README.md"


# ---------------------------------------------------------------------------------------------------- reading


def seen(*inputs: NetTensor, **rest: Any) -> Lifted:
    return Lifted("lifted", inputs=inputs, outputs=(NetTensor("y", "FLOAT", (2,)),), **rest)


def test_feeds_go_by_name_and_else_by_place() -> None:
    lifted = seen(NetTensor("x", "FLOAT", ()), NetTensor("cond_in", "BOOL", ()), names={"x": "x_1"})
    fed = reading.fed(lifted, {"x": np.float64(0.1), "cond": np.bool_(True)})
    assert list(fed) == ["x_1", "cond_in"]
    assert (fed["x_1"].dtype, fed["x_1"].item()) == (np.float32, np.float32(0.1))
    assert fed["cond_in"].dtype == bool


def test_only_float64_may_have_become_another_type() -> None:
    double, single = np.array([0.1], np.float64), np.array([0.1], np.float32)
    assert reading.compared([[double]], [[single]], 0.0, 0.0) == ()
    half = single.astype(np.float16)
    for expected, found in ((single, double), (single, half), (half, single), (np.uint8(1), np.int8(1))):
        [(number, miss)] = reading.compared([[expected]], [[found]], 1.0, 1.0)
        assert (number, miss.kind) == (0, "structure")


def test_misses_carry_the_number_of_their_output() -> None:
    one, two = np.array([1.0], np.float32), np.array([2.0], np.float32)
    assert [n for n, _ in reading.compared([[one, one]], [[one, two]], 1e-3, 0.0)] == [1]
    assert [n for n, _ in reading.compared([[one, one]], [[one]], 1e-3, 0.0)] == [-1]


@pytest.mark.parametrize(
    ("drawn", "value", "expected"),
    [
        (("y",), np.zeros(2, np.float32), "random"),
        (("z",), np.zeros(2, np.float32), "differs"),
        (("y",), np.zeros(3, np.float32), "differs"),
        ((), np.ones(2, np.float32), "equal"),
    ],
)
def test_random_excuses_values_alone_and_of_its_own_outputs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, drawn: tuple[str, ...], value: Any, expected: str
) -> None:
    lifted = seen(drawn=drawn)
    monkeypatch.setattr(reading.lift, "attempt", lambda *_, **__: lifted)
    monkeypatch.setattr(reading, "outputs_of", lambda *_: type("Ran", (), {"ok": True, "value": [[value]]}))
    with Worker() as idle:
        found = reading.Reader(idle, idle, "").read(
            tmp_path, tmp_path, [{}], [[np.ones(2, np.float32)]], 1e-3, 0.0
        )
    assert found.status == expected


# ---------------------------------------------------------------------------------------------------- causes


def case_of(graph: ModelProto, expected: Any, **feed: Any) -> NodeCase:
    return NodeCase("test_x", graph.SerializeToString(), (feed,), ([expected],), 1e-3, 1e-7)


def cause(graph: ModelProto, found: Any, folder: Path, **feed: Any) -> tuple[str, str]:
    """What is known of a model whose network gives ``found``."""
    case = case_of(graph, found, **feed)
    given = reading.Reading("differs", Lifted("lifted"), reason="so it is", outputs=([found],))
    with Worker() as runner:
        return causes.cause_of(causes.Seen(case, graph, graph, given, runner, folder))


TRILU = "g (float[3,3] x) => (float[3,3] y) { y = Trilu(x) }"


def test_a_cause_is_confirmed_by_what_the_edited_model_gives(tmp_path: Path) -> None:
    x = np.arange(9, dtype=np.float32).reshape(3, 3) + 1
    key, shown = cause(model(TRILU), np.tril(x), tmp_path, x=x)
    assert key == "hazard 1"
    assert shown == "so it is; ONNX's model with upper=0 gives the same (ort-cpu)"


def test_a_cause_that_gives_something_else_is_none(tmp_path: Path) -> None:
    x = np.arange(9, dtype=np.float32).reshape(3, 3) + 1
    assert cause(model(TRILU), np.tril(x, -1), tmp_path, x=x) == ("", "")
    lower = model(TRILU.replace("Trilu(x)", "Trilu<upper = 0>(x)"))  # has nothing to change
    assert cause(lower, np.tril(x), tmp_path, x=x) == ("", "")


POOL = """g (float[1,1,2,2] x) => (float[1,1,1,1] y) {
y = MaxPool<kernel_shape = [1, 1], strides = [2, 2], ceil_mode = 1>(x) }"""


def test_a_cause_is_confirmed_by_the_shape_that_tensorrt_declares() -> None:
    def witnessed(*dims: int, graph: str = POOL) -> str | None:
        found = Lifted("lifted", outputs=(NetTensor("y", "FLOAT", dims),))
        case = case_of(model(graph), np.zeros((1, 1, 1, 1), np.float32))
        seen = causes.Seen(
            case, model(graph), model(graph), reading.Reading("differs", found), Worker(), Path()
        )
        [one] = [one for one in causes.CAUSES if one.key == "hazard 14"]
        return one.witness(seen)

    assert witnessed(1, 1, 2, 2) == "y is [1, 1, 2, 2] in the network, [1, 1, 1, 1] in ONNX"
    assert witnessed(1, 1, 1, 1) is None  # as ONNX says
    assert witnessed(1, 1, -1, 2) is None  # TensorRT does not say
    assert witnessed(1, 1, 2, 2, graph=POOL.replace("ceil_mode = 1", "ceil_mode = 0")) is None


ROUNDS = "g (float16[4] x) => (float16[4] y) { a = Mul(x, x)  y = Sqrt(a) }"


@pytest.mark.parametrize(
    ("network", "off", "key"),
    [
        (ROUNDS, 1e-3, "rounding"),
        (ROUNDS, 0.5, ""),  # more than half precision's tolerance
        (ROUNDS.replace("Sqrt(a)", "Neg(a)"), 1e-3, ""),  # another function
    ],
)
def test_rounding_is_a_cause_where_the_float32_twins_agree(
    tmp_path: Path, network: str, off: float, key: str
) -> None:
    x = np.array([1.1, 2.2, 3.3, 4.4], np.float16)
    found = x + np.float16(off)
    case = case_of(model(ROUNDS), x, x=x)
    missed = reading.compared([[x]], [[found]], 1e-4, 0.0)
    given = reading.Reading("differs", Lifted("lifted"), outputs=([found],), misses=missed)
    with Worker() as runner:
        seen = causes.Seen(case, model(ROUNDS), model(network), given, runner, tmp_path)
        assert causes.cause_of(seen)[0] == key


def test_keys_of_causes_are_unique() -> None:
    keys = [one.key for one in causes.CAUSES]
    assert len(set(keys)) == len(keys)


# ---------------------------------------------------------------------------------------------------- tables


def row(name: str, status: str = "equal", **rest: Any) -> Row:
    return Row(name, status, **{"backend": "ort-cpu", "layers": 3, "seconds": (0.5, 0.25), **rest})


def test_a_model_that_is_not_equal_needs_a_cause() -> None:
    assert not row("a").unknown
    for status in ("differs", "not run", "failed"):
        assert row("a", status).unknown
        assert not row("a", status, cause="hazard 1").unknown
    assert not row("a", "unlifted").unknown  # its gap names the layer


def test_rows_survive_json() -> None:
    one = row("a", "unlifted", gaps=("PLUGIN_V2 layer x: no",), kinds=("PLUGIN_V2",))
    stored = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(one).items()}
    assert node_models.row_of(stored) == one


def test_the_table_counts_and_lists() -> None:
    rows = [
        row("a"),
        row("b", backend="reference", without="no kernel"),
        row("c", "differs", cause="hazard 1", shown="1 | 2"),
        row("d", "random"),
        row("e", "rounding", cause="rounding", shown="by a bit"),
    ]
    lines = list(tables.node_models(rows))
    assert lines[0] == "**2 of 5 models that TensorRT builds are read back, run and equal: 40.0 %.**"
    assert lines[4] == "| 5 | 2 | 1 | 1 | 1 | 0 | 0 | 1 | 1 | 15 | 2.5 | 1.2 |"
    [line] = [line for line in lines if line.startswith("| hazard 1 ")]
    assert line.endswith("| 1: `c` | 1 \\| 2 |")
    assert "| no kernel | 1: `b` |" in lines
    assert "| by a bit | 1: `e` |" in lines


def agreed(**rest: Any) -> dict[str, Any]:
    fine = measuring.Agreement("m", "lifted", shapes=[{"n": 1}], relative=1e-6, within=True)
    seconds = {"trt-build": 1.0, "trt-network": 2.0}
    cost = {"seconds": seconds, "processor": {}, "statuses": {"trt-network": "passed"}}
    peak = {"trt-network": [1500, 1900]}
    return {
        "agreement": asdict(replace(fine, **rest)),
        "cost": {**cost, "reasons": {"trt-network": ""}},
        "peak": peak,
    }


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"relative": 2e-4}, "differs by 2.0e-04"),
        ({"relative": float("nan")}, "differs by nan"),
        ({"status": "unlifted", "fault": "PLUGIN_V2: no"}, "PLUGIN_V2: no"),
        ({"half": "float16", "within": False, "relative": 0.5}, "5.0e-01 is not within float16's tolerance"),
        ({"half": "float16", "twin": 1e-3}, "differs by 1.0e-03 in float32"),
    ],
)
def test_faults_of_exports(change: dict[str, Any], text: str) -> None:
    assert exports.faults(agreed()) == []
    assert exports.faults(agreed(half="float16", relative=0.5, twin=1e-6)) == []
    assert text in exports.faults(agreed(**change))


def test_faults_of_what_the_rung_costs() -> None:
    dear = agreed()
    dear["cost"]["seconds"]["trt-network"] = 3.1
    dear["peak"]["trt-network"][0] = 2000
    dear["cost"]["statuses"]["trt-network"] = "failed"
    dear["cost"]["reasons"]["trt-network"] = "no"
    assert exports.faults(dear) == ["trt-network: failed: no", "costs 3.1 times trt-build", "takes 2,000 MB"]


def test_relative_difference() -> None:
    a = np.array([1.0, -4.0], np.float32)
    assert measuring.relative(a, a + np.float32(0.5)) == 0.125
    assert measuring.relative(a, np.array([1.0, np.nan], np.float32)) == float("inf")
    zero = np.zeros(2, np.float32)
    assert measuring.relative(zero, zero) == 0.0
    assert measuring.relative(zero, zero + 1) == float("inf")


def test_seconds_of_processors_count_those_of_children() -> None:
    before = processor_seconds()
    work = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", work], check=True)
    assert processor_seconds() - before >= 0.4


def test_memory_is_seen() -> None:
    with Watch() as watch:
        block = np.ones(200 << 17)  # 200 MB
        until = time.monotonic() + PATIENCE
        while watch.together < 200 and time.monotonic() < until:
            time.sleep(0.02)
        del block
    assert watch.together >= 200
    assert watch.largest >= 200


# ---------------------------------------------------------------------------------------------------- mutants

SMALL = """g (float[2,4] x) => (float[4,2] y) {
a = Add(x, w)  b = Cast<to = 6>(a)  c = Cast<to = 1>(b)  d = Softmax<axis = 1>(c)  y = Transpose<perm = [1, 0]>(d) }"""


def changed(kind: mutating.Kind) -> list[tuple[mutating.Mutant, ModelProto]]:
    small = model(SMALL)
    weight = np.arange(8, dtype=np.float32).reshape(2, 4) + 1
    small.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return [
        (one, small) for _, one in zip(range(8), mutating.MAKERS[kind](small, random.Random(1)), strict=False)
    ]


def test_one_element_of_one_weight() -> None:
    found = changed("weight")
    assert len(found) == 8
    for mutant, small in found:
        [before], [after] = small.graph.initializer, mutant.model.graph.initializer
        assert int((numpy_helper.to_array(before) != numpy_helper.to_array(after)).sum()) == 1
        assert list(mutant.model.graph.node) == list(small.graph.node)


def test_one_axis() -> None:
    found = changed("axis")
    assert {mutant.what.split()[0] for mutant, _ in found} == {"Softmax", "Transpose"}
    for mutant, small in found:
        pairs = zip(mutant.model.graph.node, small.graph.node, strict=True)
        assert sum(a != b for a, b in pairs) == 1


def test_one_type_of_a_cast() -> None:
    found = changed("cast")
    assert len(found) == 6
    for mutant, small in found:
        onnx.checker.check_model(mutant.model, full_check=True)
        types = [
            Counter(n.attribute[0].i for n in m.graph.node if n.op_type == "Cast")
            for m in (mutant.model, small)
        ]
        assert sum((types[0] - types[1]).values()) == 1


# ---------------------------------------------------------------------------------------------------- TensorRT


@REAL
@pytest.mark.corpus
def test_a_slice_of_the_node_models() -> None:
    settings = Settings(choice("tensorrt-rtx", None), (), None)
    cases = (
        node_cases(match="test_triu_one_row") + node_cases(match="test_and2d") + node_cases(match="test_det")
    )
    rows = node_models.measure_all(cases, 1, settings, lambda _: None)
    assert {one.name: (one.status, one.cause) for one in rows} == {
        "test_triu_one_row": ("differs", "hazard 1"),
        "test_and2d": ("equal", ""),
    }


# ---------------------------------------------------------------------------------------------------- the README


def between(name: str) -> list[str]:
    """The lines of the README between the markers of that name."""
    text = README.read_text(encoding="utf-8")
    return text.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0].splitlines()


def cells(lines: list[str], starts: str = "| ") -> list[list[str]]:
    return [[one.strip() for one in line[2:-2].split(" | ")] for line in lines if line.startswith(starts)]


def test_the_committed_node_models_add_up() -> None:
    lines = between("node models")
    at = next(number for number, line in enumerate(lines) if line.startswith("| built |"))
    names, found = cells(lines[at : at + 1])[0], cells(lines[at + 2 : at + 3])[0]
    count = {name: int(value.replace(",", "")) for name, value in zip(names[:9], found[:9], strict=True)}
    parts = {key: value for key, value in count.items() if key not in ("built", "equal")}
    assert sum(parts.values()) == count["built"]
    assert parts["of these by ONNX Runtime"] + parts["by onnx.reference"] == count["equal"]
    assert count["equal"] >= 0.97 * count["built"]
    said = re.search(r"\*\*(\d+) of (\d+) models", "\n".join(lines))
    assert said is not None
    assert [int(one) for one in said.groups()] == [count["equal"], count["built"]]
    assert not [line for line in lines if line.startswith("| unknown |")]


def test_committed_causes_are_known_and_list_as_many_models_as_they_count() -> None:
    lines = between("node models")
    head = next(line for line in lines if line.startswith("| built |"))
    values = cells([lines[lines.index(head) + 2]])[0]
    named = dict(zip(cells([head])[0], values, strict=True))
    at = lines.index("### TensorRT reads it differently")
    rows = list(itertools.takewhile(lambda line: line.startswith("| "), lines[at + 4 :]))
    listed = {line.split(" | ")[0][2:]: line.split(" | ")[3] for line in rows}
    assert set(listed) <= {one.key for one in causes.CAUSES}
    counts = {key: text.partition(":") for key, text in listed.items()}
    for number, _, names in counts.values():
        assert int(number) == len(names.split())
    assert sum(int(number) for number, _, _ in counts.values()) == int(named["TensorRT reads it differently"])


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("fixtures", {path.stem for path in (ROOT / "fixtures").glob("*.onnx")}),
        ("exports", set(test_exports_table.rows_of_make())),
    ],
)
def test_every_export_is_in_its_table_and_agrees(name: str, models: set[str]) -> None:
    rows = {row[0].strip("`"): row for row in cells(between(name), "| `")}
    assert set(rows) == models, f"run benchmarks/network/exports.py with --write-readme {name}"
    for row in rows.values():
        difference, half = re.fullmatch(r"(\S+)( \(\w+: within its tolerance\))?", row[3]).groups()  # type: ignore[union-attr]
        assert half or float(difference) <= exports.MOST_DIFFERENCE, row[0]
        assert row[4] == "–" or float(row[4]) <= exports.MOST_DIFFERENCE, row[0]
        assert (row[4] != "–") == bool(half), row[0]
        cheap = float(row[13].partition(" ")[0]) <= exports.MOST_COST
        assert cheap or row[0].strip("`") in exports.DEAR, row[0]
        assert int(row[14].replace(",", "")) < exports.MOST_MEGABYTES, row[0]


def test_every_committed_mutant_that_shows_is_caught() -> None:
    lines = between("mutants")
    rows = cells(lines, "| `")
    assert Counter(row[0].strip("`") for row in rows) == dict.fromkeys(mutants.MODELS, 10)
    assert Counter(row[1] for row in rows) == {kind: 3 * count for kind, count in mutants.WANTED.items()}
    showing = [row for row in rows if not row[3].startswith("0/")]
    assert all(row[6].startswith("failed: ") for row in showing)
    said = f"**{len(rows)} mutants, {len(showing)} of which change an output: {len(showing)} are caught.**"
    assert said in lines
