"""TRT004: silent mis-imports found by reading TensorRT's network back, without the rule that knows them, and gone after
its fix. The real TensorRT-RTX imports; nothing is executed by it."""
# Long because: a table of models that TensorRT reads differently, one for each trap that is known.

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from onnx import ModelProto

import onnxfix
from onnxfix.graph.overlay import Node
from onnxfix.model import Model
from onnxfix.place import Place
from onnxfix.report import confirm
from onnxfix.report.confirm import headline, import_notes
from onnxfix.report.report import Finding, Report
from onnxfix.rewrite import engine
from onnxfix.rewrite.edits import Draft
from onnxfix.rewrite.registry import Registry, registry
from onnxfix.rule import Fix, Match, Safety, rule
from onnxfix.tensorrt.reading import Misread, Reading
from onnxfix.tensorrt.records import TrtBuild
from support import networks
from support.real_tensorrt import REAL
from support.reports import at, trt_findings

RULES = registry().rules
RUNGS = ("contract", "trt-network")
LOOP = """g (float[2] x) => (float[2] last, float[M,2] rows)
    <int64 n = {6}, bool c = {1}, float[2] z = {0,0}, float[1] one = {1}, float lim = {2.5}> {
    last, rows = Loop(n, c, z)<body = b (int64 i, bool ci, float[2] s) => (bool co, float[2] so, float[2] r) {
        so = Add(s, one) t = ReduceMax<keepdims = 0>(so) co = Less(t, lim) r = Add(so, x) }> }"""
RECURRENT = """g (float[3,2,4] x, float[1,12,4] w, float[1,12,3] r) => (float[3,2,1,3] y, float[3,1,3] h) {
    y, h = LSTM<hidden_size = 3, layout = 1>(x, w, r) }"""
ATTENTION = """g (float[1,2,4,8] q, float[1,2,4,8] k, float[1,2,4,8] v{more}) => (float[1,2,4,8] y) {{
    y = Attention{how} }}"""


def shapeless() -> ModelProto:
    model = networks.model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.ClearField("shape")
    return model


@dataclass(frozen=True)
class Case:
    """A model that TensorRT reads differently. ``found`` are the kinds and places of TRT004's findings that are errors,
    or warnings with ``mild``; ``rule`` is what knows it; ``fix`` says which fixes repair it, "" for none."""

    text: str | ModelProto
    found: tuple[tuple[str, str], ...]
    rule: str
    fix: str = "exact"
    opset: int = 20
    mild: bool = False


CASES = {
    "46 Trilu without upper": Case(
        "g (float[4,4] x) => (float[4,4] y) { t = Neg(x) u = Trilu(t) y = Abs(u) }",
        (("value", "u"),),
        "OPS010",
    ),
    "7 QuantizeLinear without a zero point": Case(
        "g (float[2,3] x) => (uint8[2,3] y) <float s = {0.01}> { y = QuantizeLinear(x, s) }",
        (("value", "y"), ("type", "y")),
        "QDQ004",
        "numeric",
    ),
    "7 a scale of 256, whose limits no random value reaches": Case(
        "g (float[2,3] x) => (float[2,3] y) <float s = {256.0}, uint8 z = {0}> {"
        " q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }",
        (("value", "q"),),
        "QDQ004",
        "numeric",
    ),
    "13 a foreign operator": Case(
        '<ir_version: 10, opset_import: ["" : 20, "my.dom" : 1]> '
        "g (float[2,3] x) => (float[2,3] y) { t = Neg(x) y = my.dom.Relu(t) }",
        (("refused", "y"),),
        "OPS060",
        "",
    ),
    "16 float64": Case(
        "g (double[2,3] x) => (double[2,3] y) { y = Neg(x) }",
        (("type", "x"), ("type", "y")),
        "IFC002",
        "",
        mild=True,
    ),
    "18 an input without a shape": Case(shapeless(), (("shape", "x"),), "IFC001", ""),
    "40 the type of an output": Case(
        "g (float[2,3] x) => (int64[2,3] y) { t = Neg(x) y = Abs(t) }", (("type", "y"),), "GRA003", ""
    ),
    "40 the type of a tensor": Case(
        "g (float[2,3] x) => (float[2,3] y) <int64[2,3] t> { t = Neg(x) y = Abs(t) }",
        (("refused", "t"), ("type", "t")),
        "GRA003",
        mild=True,
    ),
    "40 the shape of an output": Case(
        "g (float[2,3] x) => (float[2,4] y) { t = Neg(x) y = Abs(t) }",
        (("shape", "y"),),
        "GRA003",
        "",
        mild=True,
    ),
    "43 Clip with crossed bounds": Case(
        "g (float[2,3] x) => (float[2,3] y) <float a = {1.0}, float b = {-1.0}> { y = Clip(x, a, b) }",
        (("value", "y"),),
        "OPS034",
    ),
    "43 an index out of range": Case(
        "g (float[2,3] x) => (float[2,1] y) <int64[1] i = {7}> { y = Gather<axis = 1>(x, i) }",
        (("refused", "y"),),
        "OPS035",
        "",
    ),
    "43 a reflection of what is not there": Case(
        'g (float[2,3] x) => (float[2,9] y) <int64[4] p = {0,3,0,3}> { y = Pad<mode = "reflect">(x, p) }',
        (("refused", "y"),),
        "OPS036",
        "",
    ),
    "47 batch first": Case(RECURRENT, (("shape", "y"),), "OPS011"),
    "51 Attention with lengths": Case(
        ATTENTION.format(more=", int64[1] n", how="(q, k, v, , , , n)"),
        (("value", "y"),),
        "OPS015",
        "numeric",
        24,
    ),
    "53 a Loop that ends early": Case(LOOP, (("shape", "last"),), "CTL001", ""),
}
EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def saved(case: Case, folder: Path) -> Path:
    text = networks.model(case.text, case.opset) if isinstance(case.text, str) else case.text
    return networks.write(folder / "m.onnx", text)


def of_tensorrt(report: Report) -> list[Finding]:
    """What it reads differently, also what is listed as the confirmation of a rule's finding."""
    found = trt_findings(
        None, RULES, report.findings, RULES, reading=report.networks[-1] if report.networks else None
    )
    return [item for item in found if item.code == "TRT004"]


@REAL
@EACH
def test_found_without_its_own_rule(case: Case, tmp_path: Path) -> None:
    report = onnxfix.apply(saved(case, tmp_path), select=["TRT004"], rungs=RUNGS)
    (reading,) = report.networks
    shown = [one for one in reading.misreads if one.harmless == case.mild]
    assert tuple((one.kind, one.place.text) for one in shown) == case.found
    level = "warning" if case.mild else "error"
    found = [(item.severity, item.place.text) for item in of_tensorrt(report)]
    assert [item for item in found if item[0] == level] == [(level, place) for _, place in case.found]
    assert reading.status == ("agrees" if case.mild else "differs")
    assert report.exit_code == 1
    assert json.dumps(report.to_json(), allow_nan=False)


@REAL
@EACH
def test_gone_after_its_fix_and_borne_out(case: Case, tmp_path: Path) -> None:
    report = onnxfix.apply(
        saved(case, tmp_path), tmp_path / "out.onnx", rungs=RUNGS, numeric_fixes=case.fix == "numeric"
    )
    borne = [item.code for item in (*report.findings, *report.applied) if item.confirmed]
    assert case.rule in borne
    if not case.fix:
        assert of_tensorrt(report)
        assert {item.pointer for item in of_tensorrt(report)} == {f"see {case.rule}"}
        return
    assert case.rule in [item.code for item in report.applied]
    assert of_tensorrt(report) == []
    assert [one.status for one in report.networks] == ["agrees" if case.mild else "differs", "agrees"]
    assert (tmp_path / "out.onnx").exists()


QUANTIZED = """g (float[1,1,4,4] x, float[1,1,4,4] w) => (float[1,4,4,2] y) <float s = {256.0}, uint8 z = {0}> {
    a = QuantizeLinear(x, s, z) b = QuantizeLinear(w, s, z) c = Concat<axis = 1>(a, b)
    m = MaxPool<kernel_shape = [1, 1]>(c) t = Transpose<perm = [0, 2, 3, 1]>(m) y = DequantizeLinear(t, s, z) }"""


@REAL
def test_saturation_between_quantizers_and_what_follows_them(tmp_path: Path) -> None:
    """Nothing but the feed around the quantizers' limits shows it."""
    path = networks.write(tmp_path / "m.onnx", networks.model(QUANTIZED))
    report = onnxfix.verify(path, rungs=RUNGS)
    (reading,) = report.networks
    assert reading.status == "differs"
    assert {one.place.output for one in reading.misreads} == {"a", "b"}
    assert {one.feed for one in reading.misreads} == {"quantized values; seed 50"}
    rung = report.verdict.rung("trt-network") if report.verdict is not None else None
    assert rung is not None
    assert [feed.status == "different" for feed in rung.feeds] == [*[False] * (len(rung.feeds) - 1), True]


@REAL
def test_a_kernel_of_onnx_runtime_that_approximates_is_no_difference(tmp_path: Path) -> None:
    """Its GRU is 2e-4 off with inputs of 1e4; ONNX's reference evaluator is asked for a second opinion."""
    text = """g (float[2,3,2] x, float[2,15,2] w, float[2,15,5] r) => (float[2,2,3,5] y) {
        y = GRU<hidden_size = 5, direction = "bidirectional">(x, w, r) }"""
    path = networks.write(tmp_path / "m.onnx", networks.model(text, 14))
    for seed in range(4):
        report = onnxfix.verify(path, rungs=RUNGS, seed=seed)
        assert [one.status for one in report.networks] == ["agrees"], report.networks


OPEN = {
    "an order": """g (float[4,6] x) => (float[4,2] y, int64[4,2] i) <int64[1] k = {2}> {
        y, i = TopK<axis = 1, sorted = 0>(x, k) }""",
    "an order, and what follows it": """g (float[6,4] x) => (float[2,4] y) <int64[1] k = {2}, float[2,4] w =
        {1,1,1,1,-1,-1,-1,-1}> { t, i = TopK<axis = 0, sorted = 0>(x, k)  y = Mul(t, w) }""",
    "an order in a branch": """g (float[6,4] x, bool c) => (float[2,4] y) <int64[1] k = {2}> { y = If(c)<
        then_branch = p () => (float[2,4] t) { t, i = TopK<axis = 0, sorted = 0>(x, k) },
        else_branch = q () => (float[2,4] u) { u, j = TopK<axis = 0>(x, k) }> }""",
}  # fmt: skip


@REAL
@pytest.mark.parametrize("text", OPEN.values(), ids=OPEN)
def test_an_order_that_onnx_leaves_open_is_no_difference(text: str, tmp_path: Path) -> None:
    path = networks.write(tmp_path / "m.onnx", networks.model(text, 18))
    report = onnxfix.verify(path, rungs=["ort-cpu", *RUNGS])
    (reading,) = report.networks
    assert (reading.status, reading.misreads) == ("agrees", ())


@REAL
def test_a_misreading_behind_an_open_order_is_found(tmp_path: Path) -> None:
    text = """g (float[4,60] x) => (float[4,5] z) <int64[1] k = {5}> {
        y, i = TopK<sorted = 0>(x, k)  z = Trilu(y) }"""
    path = networks.write(tmp_path / "m.onnx", networks.model(text, 18))
    (reading,) = onnxfix.verify(path, rungs=RUNGS).networks
    assert [one.place.text for one in reading.misreads] == ["z"]


@REAL
def test_check_reads_the_network_unless_nobody_wants_it(tmp_path: Path) -> None:
    path = saved(CASES["46 Trilu without upper"], tmp_path)
    report = onnxfix.check(path, trt=True)
    assert report.headline.endswith(" accepts it and reads it differently")
    assert report.network is not None
    (said,) = of_tensorrt(report)
    assert (said.place.text, said.severity, said.pointer) == ("u", "error", "OPS010 fixes it")
    assert "is 0.0 in ONNX and 1.69" in said.message
    assert "[layers: " in said.message
    (own,) = [item for item in report.findings if item.code == "OPS010"]
    assert own.confirmed == said.message
    assert onnxfix.check(path, trt=True, ignore=["TRT004"]).network is None
    assert onnxfix.check(path, trt=True, select=["OPS"]).network is None
    assert onnxfix.check(path).network is None


#: Not valid ONNX; onnx.checker (the last one with full_check alone) and ONNX Runtime refuse them, TensorRT does not.
INVALID = {
    "an unknown attribute": ("g (float[2] x) => (float[2] y) { y = Relu<foo = 3>(x) }", 20),
    "two inputs of Relu": ("g (float[2] x) => (float[2] y) { y = Relu(x, x) }", 20),
    "a shape in int32": ("g (float[2,3] x) => (float[3,2] y) <int32[2] s = {3,2}> { y = Reshape(x, s) }", 20),
}


@REAL
@pytest.mark.parametrize(("text", "opset"), INVALID.values(), ids=INVALID)
def test_an_invalid_model_is_not_read_differently(text: str, opset: int, tmp_path: Path) -> None:
    path = networks.write(tmp_path / "m.onnx", networks.model(text, opset))
    report = onnxfix.check(path, trt=True)
    assert report.build is not None
    assert report.build.accepted
    assert of_tensorrt(report) == []
    assert "differently" not in report.headline
    told = "TensorRT's network could not be compared with the model: it is not valid ONNX: "
    assert any(note.startswith(told) for note in report.notes)
    verdict = onnxfix.verify(path, rungs=RUNGS).verdict
    assert verdict is not None
    rung = verdict.rung("trt-network")
    assert rung is not None
    assert rung.status == "skipped"
    assert "it is not valid ONNX: " in rung.reason


# ------------------------------------------------------------------------------------------------ withdrawal


@rule("BBB001", ops=["Trilu"], safety=Safety.EXACT)
def default_upper(node: Node, model: Model) -> Iterator[Match]:
    """Right by ONNX, and misread."""
    if node.attribute("upper") is not None:
        draft = Draft(node)
        draft.remove(node)
        draft.add("Trilu", list(node.inputs), output=node.first_output)
        yield Match("upper is the default", node=node, fix=Fix("leave it out", draft.edits))


@REAL
def test_a_fix_that_tensorrt_reads_differently_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Registry((default_upper, registry().get("TRT004")), ())
    text = "g (float[4,4] x) => (float[4,4] y) { u = Trilu<upper = 1>(x) y = Abs(u) }"
    path = networks.write(tmp_path / "m.onnx", text)
    monkeypatch.setattr("onnxfix.verbs.job.registry", lambda: one)
    report = onnxfix.apply(path, tmp_path / "out.onnx", rungs=("contract", "ort-cpu", "trt-network"))
    assert [(item.code, item.place.text) for item in report.withdrawn] == [("BBB001", "u")]
    assert "reads the new model differently: u: Trilu: " in report.withdrawn[0].reason
    assert (report.applied, of_tensorrt(report)) == ((), [])


# ------------------------------------------------------------------------------------------------ without TensorRT


GRAVE = Misread(
    "value",
    Place((), "n", "Abs", "b", 1),
    "tensor",
    "1.0",
    "0.0",
    (0, 1),
    "3 of 6 differ",
    ("L b",),
    name="b",
)
READING = Reading("differs", "", (GRAVE, replace(GRAVE, kind="shape", index=None, harmless=True)))


INNER = Place(("n.body",), "inner", "Neg", "c", around=Place((), "n", "Abs", "b", 1))


def finding(code: str, place: str = "b (n)", severity: str = "error", fix: str = "do it") -> Finding:
    return Finding(code, code.lower(), severity, at(place), "found", fix, "exact" if fix else "")


def test_severity_place_and_words() -> None:
    first, second = engine.check_build(None, RULES, reading=READING)
    assert (first.severity.name, first.match.place.text) == ("ERROR", "b (n)")
    assert first.match.message == (
        "Abs: tensor b at [0, 1] is 1.0 in ONNX and 0.0 in TensorRT (3 of 6 differ) [layers: L b]"
    )
    assert (second.severity.name, second.rule.code) == ("WARNING", "TRT004")
    nowhere = Reading("differs", "", (Misread("refused", Place(), "model", "no"),))
    (lone,) = engine.check_build(None, RULES, reading=nowhere)
    assert (lone.match.place.text, lone.match.message) == (
        "the graph",
        "ONNX Runtime refuses what TensorRT imports: no",
    )
    many = replace(GRAVE, layers=tuple("ABCDE"))
    (said,) = engine.check_build(None, RULES, reading=replace(READING, misreads=(many,)))
    assert said.match.message.endswith(" [layers: A, B, C, ...]")
    assert engine.check_build(None, RULES) == []


@pytest.mark.parametrize(
    ("own", "pointer", "borne"),
    [
        (finding("XYZ001"), "XYZ001 fixes it", True),
        (finding("XYZ001", "b"), "XYZ001 fixes it", True),
        (finding("XYZ001", severity="warning"), "XYZ001 may fix it", True),
        (finding("XYZ001", severity="info"), "", False),
        (finding("XYZ001", fix=""), "see XYZ001", True),
        (finding("XYZ001", "c"), "", False),
        (replace(finding("XYZ001"), place=INNER), "XYZ001 fixes it", True),
        (finding("XYZ001", "other.body / b"), "", False),
    ],
)
def test_pointers_and_what_is_borne_out(own: Finding, pointer: str, borne: bool) -> None:
    reading = replace(READING, misreads=(GRAVE,))
    listed = trt_findings(None, RULES, [own], RULES, reading=reading)
    assert [item.pointer for item in listed] == [pointer]
    found = confirm.merge_findings([own], None, RULES, RULES, [], reading)
    assert [bool(item.confirmed) for item in found if item.code == "XYZ001"] == [borne]


AGREES = Reading("agrees", "", package="tensorrt-rtx", version="1.7.1.116")
DIFFERS = replace(AGREES, status="differs", misreads=(GRAVE,))
BUILT = TrtBuild("accepted", package="tensorrt-rtx", version="1.7.1.116")


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([AGREES], "TensorRT-RTX 1.7.1 accepts it"),
        ([DIFFERS], "TensorRT-RTX 1.7.1 accepts it and reads it differently"),
        ([DIFFERS, AGREES], "TensorRT-RTX 1.7.1 read it differently and imports the new model correctly"),
        ([DIFFERS, DIFFERS], "TensorRT-RTX 1.7.1 accepts it and still reads it differently"),
        ([AGREES, DIFFERS], "TensorRT-RTX 1.7.1 accepts it"),
        ([], "TensorRT-RTX 1.7.1 accepts it"),
    ],
)
def test_headline(readings: list[Reading], expected: str) -> None:
    assert headline([BUILT], readings, always=True) == expected
    refused = replace(BUILT, status="refused", stage="parse")
    assert "differently" not in headline([refused], readings, always=True)


def test_a_network_that_was_not_read_is_told() -> None:
    gap = Reading("gap", "NMS layer n: not known")
    assert list(import_notes(gap)) == ["TensorRT's network cannot be read back: NMS layer n: not known"]
    unknown = list(import_notes(Reading("unknown", "no kernel")))
    assert unknown == ["TensorRT's network could not be compared with the model: no kernel"]
    assert [*import_notes(AGREES), *import_notes(None), *import_notes(Reading("refused", "no"))] == []
