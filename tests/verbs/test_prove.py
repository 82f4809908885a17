"""Proof and withdrawal: wrong fixes are found, named and undone; right ones stand; nothing unproven is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

import onnxfix
from onnxfix.graph.overlay import Node
from onnxfix.model import Model
from onnxfix.proof.checks import probe
from onnxfix.proof.request import Request
from onnxfix.proof.verdict import ALONE, RungResult
from onnxfix.report.report import Report
from onnxfix.rewrite.edits import Draft
from onnxfix.rule import Fix, Match, Rule, Safety, rule
from onnxfix.runtime.nvidia import Missing
from onnxfix.tensorrt.records import TrtBuild
from onnxfix.verbs.contract import interface_changes, untouched_changes
from support import models
from support.toy_rules import identity, unsafe_invalid, unsafe_sqrt, use, writes, wrong_abs

MODEL = """g (float[N, 4] x) => (float[N, 4] y) {
    a = Identity(x) b = Abs(a) c = Identity(b) d = Neg(c) e = Neg(d) f = Exp(e) h = Identity(f) y = Sqrt(h) }"""


wrong_sqrt = writes("BBB002", "Sqrt", "Exp")
invalid_sqrt = writes("BBB004", "Sqrt", "Concat")  # no backend loads it without its axis
#: Right where the second operand is 0, and nothing that ONNX Runtime's CPU provider has a kernel for.
relu_of_integers = writes("AAA000", "Max", "Relu")


proto_of = models.of_opset(18, domains={"custom": 1})


def apply(path: Path, **more: object) -> tuple[Report, Path]:
    out = path.with_name("out.onnx")
    return onnxfix.apply(path, out, **more), out


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return models.write(tmp_path / "m.onnx", proto_of(MODEL))


@pytest.mark.parametrize(
    ("rules", "codes"),
    [
        ([identity, wrong_abs], ["BBB001"]),
        ([identity, wrong_sqrt], ["BBB002"]),
        ([identity, invalid_sqrt], ["BBB004"]),
        ([identity, wrong_abs, wrong_sqrt], ["BBB001", "BBB002"]),
        ([wrong_abs], ["BBB001"]),
    ],
    ids=lambda value: "+".join(str(getattr(item, "code", item)) for item in value),
)
def test_culprits_are_withdrawn_and_the_rest_stands(
    model: Path, monkeypatch: pytest.MonkeyPatch, rules: list[Rule], codes: list[str]
) -> None:
    use(monkeypatch, rules)
    report, out = apply(model)
    assert sorted(item.code for item in report.withdrawn) == codes
    assert all("ort-cpu" in item.reason or "contract" in item.reason for item in report.withdrawn)
    assert report.verdict.passed
    assert report.exit_code_for(None) == 1
    fixed = onnx.load(out)
    ops = [node.op_type for node in fixed.graph.node]
    assert ops.count("Identity") == (0 if identity in rules else 3)
    assert "Abs" in ops
    assert "Sqrt" in ops
    assert sorted(p.name for p in model.parent.iterdir()) == ["m.onnx", "out.onnx"]
    if identity not in rules:
        assert out.read_bytes() == model.read_bytes()


INTEGERS = """g (int64[N, 4] x) => (int64[N, 4] y) <int64 z = {0}> {
    a = Identity(x) b = Max(a, z) c = Identity(b) d = Neg(c) e = Identity(d) y = Neg(e) }"""


@pytest.mark.parametrize("rungs", [None, ("ort-cpu",)], ids=["all rungs", "ort-cpu alone"])
def test_a_fix_for_which_a_runtime_has_no_kernel_stands_where_another_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rungs: tuple[str, ...] | None
) -> None:
    """And is withdrawn where none does, it and no other, so that the others are proven."""
    use(monkeypatch, [relu_of_integers, identity])
    # From opset 18 on ONNX says what Relu is made of, which a runtime may take instead.
    path = models.write(tmp_path / "m.onnx", proto_of(INTEGERS, 17))
    report, out = apply(path, rungs=rungs)
    assert report.verdict.passed
    assert [item.code for item in report.withdrawn] == (["AAA000"] if rungs else [])
    kept = "Max" if rungs else "Relu"
    assert [node.op_type for node in onnx.load(out).graph.node] == [kept, "Neg", "Neg"]
    (on_cpu,) = [rung for rung in report.verdict.rungs if rung.name == "ort-cpu"]
    assert on_cpu.status == ("passed" if rungs else "skipped")


def test_unsafe_change_is_made_and_said(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, [identity, unsafe_sqrt])
    report, out = apply(model, unsafe_fixes=True)
    assert {item.code for item in report.applied} == {"AAA001", "BBB003"}
    assert "Sqrt" not in [node.op_type for node in onnx.load(out).graph.node]
    assert any("BBB003" in note and "ort-cpu" in note for note in report.notes)
    ran = [rung for rung in report.verdict.rungs if rung.name not in ALONE and rung.status != "skipped"]
    assert {rung.name for rung in ran} >= {"symbolic", "ort-cpu"}
    for rung in ran:  # what passed is not what was written, and each rung says so
        assert rung.reason.startswith("without the UNSAFE fixes: ")
    report, out = apply(model)
    assert {item.code for item in report.applied} == {"AAA001"}


def test_unsafe_change_alone_is_not_called_unchanged(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, [unsafe_sqrt])
    report, out = apply(model, unsafe_fixes=True)
    assert out.read_bytes() != model.read_bytes()
    assert {rung.name for rung in report.verdict.rungs} <= set(ALONE)  # no rung compared the two
    assert "byte for byte" not in report.verdict.rungs[0].reason
    assert any("not proven equal" in note for note in report.notes)


def test_required_rung_is_asked_of_what_would_be_written(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, [identity, unsafe_sqrt])
    report, out = apply(model, unsafe_fixes=True, require=["ort-cpu"])
    assert report.exit_code == 3
    assert not out.exists()


@pytest.mark.parametrize("others", [[], [identity]], ids=["alone", "beside an exact fix"])
def test_unsafe_fix_that_makes_no_valid_model_is_withdrawn(
    model: Path, monkeypatch: pytest.MonkeyPatch, others: list[Rule]
) -> None:
    use(monkeypatch, [*others, unsafe_invalid])
    report, out = apply(model, unsafe_fixes=True)
    assert [item.code for item in report.withdrawn] == ["BBB005"]
    assert report.exit_code_for(None) == 1
    ops = [node.op_type for node in onnx.load(out).graph.node]
    assert "Concat" not in ops
    assert ops.count("Identity") == (0 if others else 3)


def test_wrong_exact_fix_is_withdrawn_under_unsafe_fixes_too(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, [wrong_abs, unsafe_sqrt])
    report, out = apply(model, unsafe_fixes=True)
    assert [item.code for item in report.withdrawn] == ["BBB001"]
    assert [item.code for item in report.applied] == ["BBB003"]
    assert "Abs" in [node.op_type for node in onnx.load(out).graph.node]


def test_what_no_rung_can_run_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    text = MODEL.replace("y = Sqrt(h)", "y = custom.Magic(h)")
    models.write(path, proto_of(text))
    use(monkeypatch, [wrong_abs])
    report, out = apply(path)
    assert not report.verdict.failed
    assert not report.verdict.passed
    assert report.exit_code == 3
    assert not out.exists()
    assert report.output == ""
    report, out = apply(path, verify=False)
    assert report.exit_code == 0
    assert out.exists()


def test_required_rung_that_cannot_run_fails_without_blaming_a_fix(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, [identity])
    monkeypatch.setattr(probe, "unavailable", lambda _: Missing("no NVIDIA GPU found", "no-gpu"))
    report, out = apply(model, require=["trt-gpu"])
    assert not report.withdrawn
    assert report.exit_code == 3
    assert not out.exists()
    assert [(one.name, one.cause) for one in report.verdict.rungs] == [("trt-gpu", "no-gpu")], (
        "all else is wasted"
    )


def test_shape_scalar_against_one_is_a_failure(tmp_path: Path) -> None:
    a = proto_of(
        "g (float[4] x) => (float[M] y) <int64[0] s = {}> { t = ReduceSum<keepdims=0>(x) y = Reshape(t, s) }"
    )
    b = proto_of(
        "g (float[4] x) => (float[M] y) <int64[1] s = {1}> { t = ReduceSum<keepdims=0>(x) y = Reshape(t, s) }"
    )
    for proto in (a, b):
        proto.graph.output[0].type.tensor_type.ClearField("shape")
    assert onnxfix.verify(a, a).verdict.passed
    assert onnxfix.verify(a, b).verdict.failed


def changed(change: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    text = (
        """g (float[N, 4] x, float[1] w = {1}, float[4] d) => (float[N, 4] y) { a = Mul(x, w) y = Neg(a) }"""
    )
    before = proto_of(text)
    before.metadata_props.add(key="k", value="v")
    for name in ("s", "d"):
        values = onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, [1], [3.0])
        indices = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [1], [2])
        before.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [4]))
    after = onnx.ModelProto()
    after.CopyFrom(before)
    exec(change, {"m": after, "onnx": onnx})
    return before, after


@pytest.mark.parametrize(
    "change",
    [
        "m.graph.input[0].name = 'z'",
        "m.graph.input[0].type.tensor_type.elem_type = 10",
        "m.graph.input[0].type.tensor_type.shape.dim[0].dim_param = 'M'",
        "m.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1",
        "m.graph.output[0].type.tensor_type.ClearField('shape')",
        "m.graph.output.add().CopyFrom(m.graph.output[0])",
        "del m.graph.input[1]",
        "del m.graph.initializer[:]",
        "m.graph.initializer[0].float_data[0] = 2",
        "m.graph.sparse_initializer[1].values.float_data[0] = 2",
        "m.graph.sparse_initializer[1].dims[0] = 5",
        "del m.graph.sparse_initializer[1]",
        "m.graph.initializer.append(m.graph.sparse_initializer.pop().values)",
        "m.graph.sparse_initializer[0].values.name = 'x'",
        "m.opset_import[0].version = 19",
        "m.ir_version = 9",
        "del m.metadata_props[:]",
        "m.producer_name = 'x'",
        "m.graph.doc_string = 'x'",
        "m.graph.name = 'x'",
        "m.graph.quantization_annotation.add(tensor_name='a')",
        "m.training_info.add()",
        "m.functions.add(name='f')",
        "m.MergeFromString(b'\\xfa\\x7f\\x01x')",
    ],
)
def test_contract_sees_every_change_of_the_interface(change: str) -> None:
    before, after = changed(change)
    assert interface_changes(before, before) == []
    found = interface_changes(before, after)
    assert found
    assert all("\n" not in line for line in found)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("m.graph.node[0].name = 'n'", "a"),
        ("m.graph.node[1].op_type = 'Abs'", "y"),
        ("del m.graph.node[1]", "y"),
        ("m.graph.node.add(op_type='Neg', input=['x'], output=['new'])", "new"),
        ("m.graph.value_info.add(name='a')", "a"),
        ("m.graph.initializer[0].float_data[0] = 2", "w"),
        ("m.graph.sparse_initializer[0].values.float_data[0] = 2", "s"),
        ("m.graph.sparse_initializer[0].indices.int64_data[0] = 1", "s"),
        ("m.graph.sparse_initializer[0].dims[0] = 5", "s"),
        ("del m.graph.sparse_initializer[0]", "s"),
    ],
)
def test_contract_sees_untouched_parts_change(change: str, name: str) -> None:
    before, after = changed(change)
    assert untouched_changes(before, before, frozenset()) == []
    assert untouched_changes(before, after, frozenset())
    assert untouched_changes(before, after, frozenset({name})) == []


def test_the_contract_is_no_matter_of_choice(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, [identity])
    report, _ = apply(model, rungs=["ort-cpu"])
    assert [rung.name for rung in report.verdict.rungs] == ["contract", "ort-cpu"]


@pytest.mark.parametrize("rungs", [("trt-build",), ("trt-build", "trt-network")])
def test_a_rung_that_was_asked_for_and_did_not_run_proves_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch, rungs: tuple[str, ...]
) -> None:
    use(monkeypatch, [identity])
    report, out = apply(model, rungs=rungs, trt=onnxfix.TrtOptions(package="tensorrt"))
    assert (report.verdict.passed, report.verdict.compared, out.exists()) == (False, False, False)
    assert report.exit_code == 3


def test_an_unchanged_model_needs_no_rung(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, [])
    report, out = apply(model, rungs=["trt-build"], trt=onnxfix.TrtOptions(package="tensorrt"))
    assert (report.exit_code, out.read_bytes()) == (0, model.read_bytes())


@dataclass(frozen=True)
class Judged:
    """Stands for trt-build: refuses a model that holds ``operator``, and the original if told so."""

    operator: str
    original: bool = False

    def __call__(self, request: Request, **more: object) -> RungResult:
        names = [node.op_type for node in onnx.load(request.fixed).graph.node]
        if self.operator in names or self.original:
            return RungResult("trt-build", "failed", "refused", inherited=self.original and request.inherit)
        return RungResult("trt-build", "passed", "accepted", builds=(TrtBuild("accepted"),) * 2)


def test_a_fix_that_tensorrt_refuses_is_withdrawn(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right for every rung that computes, and refused all the same."""

    @rule("BBB005", ops=["Neg"], safety=Safety.EXACT)
    def neg(node: Node, model: Model) -> Iterator[Match]:
        """Exact, and made of an operator that TensorRT is told to refuse."""
        draft = Draft(node)
        draft.remove(node)
        zero = draft.add("Sub", [node.input(0), node.input(0)])
        draft.add("Sub", [zero, node.input(0)], output=node.first_output)
        yield Match("Neg", node=node, fix=Fix("make it Sub", draft.edits))

    use(monkeypatch, [identity, neg])
    monkeypatch.setattr("onnxfix.proof.checks.build.run", Judged("Sub"))
    report, out = apply(model)
    assert [item.code for item in report.withdrawn] == ["BBB005"] * 2
    assert {item.code for item in report.applied} == {"AAA001"}
    assert out.exists()
    monkeypatch.setattr("onnxfix.proof.checks.build.run", Judged("Sub", original=True))
    assert not apply(model)[0].withdrawn  # the original is refused as well


def test_an_engine_of_a_model_with_unsafe_fixes(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What TensorRT builds is what is written: that a rung about values is not of it does not matter."""
    use(monkeypatch, [identity, unsafe_sqrt])
    monkeypatch.setattr("onnxfix.proof.checks.build.run", Judged("Concat"))
    report, out = apply(model, unsafe_fixes=True, require=["trt-build"])
    assert report.verdict.passed
    assert {item.code for item in report.applied} == {"AAA001", "BBB003"}
    assert "Sqrt" not in [node.op_type for node in onnx.load(out).graph.node]
