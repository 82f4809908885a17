"""What became of each ONNX node: tables of layers by hand, and of real builds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from onnxfix.files import loading
from onnxfix.model import Model
from onnxfix.runtime.sandbox import Outcome, Worker
from onnxfix.tensorrt import layers as layers_module
from onnxfix.tensorrt.layers import attempt, differing, imported, table
from onnxfix.tensorrt.places import Places
from onnxfix.tensorrt.reading import EngineLayer, ImportedLayer, LayerTable, LayerTensor
from onnxfix.tensorrt.records import TrtBuild
from support.models import write
from support.paths import FIXTURES
from support.patience import PATIENCE
from support.real_tensorrt import REAL

# -------------------------------------------------------------------------------------------------------- the table

SMALL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x, bool c) => (float[4] y, float[4] z) {
  [twin] a = Abs(x)
  [twin] b = Neg(a)
  k = Constant<value_float = 2.0>()
  d = Mul(b, k)
  y = If(c) <then_branch = t () => (float[4] t1) { [twin] t1 = Exp(d) },
             else_branch = e () => (float[4] e1) { [twin] e1 = Sin(d) }>
  [gone] z = Identity(x)
}"""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(str(write(tmp_path / "m.onnx", SMALL)))


def layer(name: str, *stamps: str, reads: str = "", writes: str = "", kind: str = "kgen") -> EngineLayer:
    one = [LayerTensor(n, "float32", (4,), "a b") if n else None for n in (reads, writes)]
    tensors = [(tensor,) if tensor is not None else () for tensor in one]
    return EngineLayer(name, kind, f"k_{name}", "", tensors[0], (), tensors[1], stamps)


def test_each_node_is_in_the_table_once(places: Places) -> None:
    made = [
        ImportedLayer("twin", "twin", "UNARY", ("float32",), ("float32",)),
        ImportedLayer("node_of_d", "d", "CAST", ("float32",), ("float16",)),
        ImportedLayer("node_of_d", "d2", "ELEMENTWISE", ("float16",), ("float16",)),
        ImportedLayer("twin | t (then_branch) | node_of_y (If)", "t1", "UNARY"),
    ]
    layers = [
        layer("L0", "twin", "node_of_d", reads="x", writes="d"),
        layer("L1", "twin | t (then_branch) | node_of_y (If)", reads="d", writes="y"),
    ]
    rows = {row.place.output: row for row in table(places, made, layers)}
    assert list(rows) == ["a", "b", "d", "y", "z", "t1", "e1"]  # no Constant
    assert [row.fate for row in rows.values()] == [
        "engine", "engine", "engine", "inside", "folded", "engine", "folded"
    ]  # fmt: skip
    assert rows["d"].layers == ("L0",)
    assert [one.output for one in rows["d"].fused_with] == ["a", "b"]  # both are called twin
    assert (rows["d"].imported, rows["d"].inputs, rows["d"].outputs) == (
        ("CAST", "ELEMENTWISE"),
        ("float32",),
        ("float16",),
    )
    assert rows["d"].tactics == ("k_L0",)
    assert rows["t1"].layers == ("L1",)  # of the nodes called twin, the one in that branch
    assert not rows["t1"].fused_with


def test_what_is_not_known_is_not_said(places: Places) -> None:
    made = [ImportedLayer("node_of_d", "d", "ELEMENTWISE", ("float32",), ("float32",))]
    fates = Counter(row.fate for row in table(places, made, None))
    assert fates == {"unknown": 1, "folded": 5, "inside": 1}
    fates = Counter(row.fate for row in table(places, made, None, complete=False))
    assert fates == {"unknown": 6, "inside": 1}
    [merged] = [row for row in table(places, made, []) if row.fate == "merged"]
    assert merged.place.output == "d"


def test_a_reformat_changes_layout_or_type_and_nothing_else(places: Places) -> None:
    def reformat(name: str, before: LayerTensor, after: LayerTensor, kind: str = "kgen") -> EngineLayer:
        return EngineLayer(name, kind, inputs=(before,), outputs=(after,))

    x, d = LayerTensor("x", "float32", (4,), "row major"), LayerTensor("d", "float32", (4,), "row major")
    node = EngineLayer("L", "kgen", inputs=(d,), outputs=(x,), stamps=("node_of_d",))

    def around(*others: EngineLayer) -> tuple[str, ...]:
        [row] = [row for row in table(places, [], [node, *others]) if row.fate == "engine"]
        return row.reformats

    other = LayerTensor("i", "float32", (4,), "channel major")
    assert around(reformat("in", other, d)) == ("in",)
    assert around(reformat("out", x, other)) == ("out",)
    assert around(reformat("far", other, other)) == ()
    assert around(reformat("copy", LayerTensor("i", "float32", (4,), "row major"), d)) == ()
    assert around(reformat("cast", LayerTensor("i", "float16", (4,), "row major"), d)) == ("cast",)
    assert around(reformat("slice", LayerTensor("i", "float32", (8,), "channel major"), d)) == ()
    assert around(reformat("undescribed", LayerTensor("i", "float32", (4,), "Float"), d)) == ("undescribed",)
    assert around(reformat("said", LayerTensor("i", "float32", (8,), "row major"), d, "Reformat")) == (
        "said",
    )


def test_engines_differ_where_tactics_or_fusions_do(places: Places) -> None:
    def made(*layers: EngineLayer) -> LayerTable:
        return LayerTable(TrtBuild("accepted"), tuple(table(places, [], layers)), layers, "log")

    first = made(layer("L0", "node_of_d", "gone"))
    assert differing(first, made(layer("L7", "node_of_d", "gone"))) != ()  # the kernel is called after it
    renamed = EngineLayer("L7", "kgen", "k_L0", stamps=("node_of_d", "gone"))
    assert differing(first, made(renamed)) == ()
    other = EngineLayer("L0", "gemm", "k_L0", stamps=("node_of_d", "gone"))
    assert [one.output for one in differing(first, made(other))] == ["d", "z"]
    apart = made(EngineLayer("L0", "kgen", "k_L0", stamps=("node_of_d",)))
    assert [one.output for one in differing(first, apart)] == ["d", "z"]


# ------------------------------------------------------------------------------------------------------- real builds


@REAL
@pytest.mark.parametrize(
    ("name", "fused"),
    [
        ("vit.legacy.op17", {"Add", "LayerNormalization", "Erf"}),
        pytest.param("segformer.dynamo.op20", {"Add", "Conv", "MatMul"}, marks=pytest.mark.slow),
    ],
)
def test_every_node_of_a_fixture_is_in_the_table_once(name: str, fused: set[str], worker: Worker) -> None:
    path = FIXTURES / f"{name}.onnx"
    found, tactics = attempt(worker, path, package="tensorrt-rtx", timeout=PATIENCE)
    assert found.build.accepted, found.build.reason
    assert (found.source, tactics) == ("log", None)
    model = Model(loading.load(path).proto, path.parent)
    nodes = [node for node in model.nodes() if node.op_type != "Constant"]
    assert [row.place for row in found.nodes] == [node.at for node in nodes]
    rows = {row.place: row for row in found.nodes}
    assert len(rows) == len(nodes)
    names = {layer.name: layer for layer in found.layers}
    for row in found.nodes:
        assert set(row.layers) <= set(names)
        assert bool(row.layers) == (row.fate == "engine")
        assert all(set(row.layers) & set(rows[other].layers) for other in row.fused_with)
    # Each node that computes with floats is in a layer, but for what only moves or renames data.
    heavy = {"MatMul", "Gemm", "Conv", "Softmax", "LayerNormalization", "Erf", "Tanh", "Sqrt", "ReduceMean"}
    assert {row.fate for row in found.nodes if row.place.op_type in heavy} == {"engine"}
    assert fused <= {row.place.op_type for row in found.nodes if row.fused_with}
    stamped = {stamp for layer in found.layers for stamp in layer.stamps}
    assert stamped, "the log names no node"
    assert stamped <= {row.place.node for row in found.nodes}


@REAL
def test_precision_is_that_of_the_network(worker: Worker) -> None:
    path = FIXTURES / "mixed_precision.legacy.op17.onnx"
    found, _ = attempt(worker, path, package="tensorrt-rtx", timeout=PATIENCE)
    types = {row.place.op_type: set() for row in found.nodes}
    for row in found.nodes:
        types[row.place.op_type].add((row.inputs, row.outputs))
    assert (("float32",), ("float16",)) in types["Cast"]
    assert (("float16",), ("float16",)) in types["MatMul"]
    assert any("Cast" in {one.op_type for one in row.fused_with} for row in found.nodes)


@REAL
def test_a_refused_model_has_rows_and_a_reason(worker: Worker) -> None:
    path = FIXTURES / "trt" / "int32_relu_in_functions.onnx"
    found, _ = attempt(worker, path, package="tensorrt-rtx", timeout=PATIENCE)
    assert (found.build.status, found.source, found.layers) == ("refused", "", ())
    assert {row.fate for row in found.nodes} == {"unknown", "inside"}


@REAL
def test_nodes_in_branches_have_their_own_layers(worker: Worker, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", SMALL)
    found, _ = attempt(worker, path, package="tensorrt-rtx", timeout=PATIENCE)
    rows = {row.place.output: row for row in found.nodes}
    assert rows["t1"].fate == rows["e1"].fate == "engine"
    assert set(rows["t1"].layers).isdisjoint(rows["e1"].layers)
    assert rows["t1"].place.graph == ("y.then_branch",)


@REAL
def test_the_log_is_listened_to_only_meanwhile(worker: Worker) -> None:
    """A build that asks for no layers, in the same process, must not collect any."""
    attempt(worker, FIXTURES / "mixed_precision.legacy.op17.onnx", package="tensorrt-rtx", timeout=PATIENCE)
    outcome = worker.call(f"{__name__}:listening", timeout=PATIENCE)
    assert (outcome.ok, outcome.value) == (True, False), outcome.message


def listening() -> bool:
    """In the sandbox: whether its log is still read for layers."""
    import tensorrt_rtx as trt  # lazy: only in the sandbox

    from onnxfix.tensorrt.log import logger_of  # lazy: only in the sandbox

    return logger_of(trt)[1].detail is not None


def test_the_networks_layers_are_read_without_constants() -> None:
    def native(name: str, kind: str, metadata: str, *types: str) -> Any:
        tensors = [SimpleNamespace(dtype=SimpleNamespace(name=one)) if one else None for one in types]
        return SimpleNamespace(
            name=name,
            metadata=metadata,
            type=SimpleNamespace(name=kind),
            num_inputs=len(tensors),
            num_outputs=1,
            get_input=lambda place: tensors[place],
            get_output=lambda place: SimpleNamespace(dtype=SimpleNamespace(name="BF16")),
        )

    layers = [
        native("w", "CONSTANT", "[ONNX Layer: a]"),
        native("helper", "SHUFFLE", ""),
        native("n", "MATRIX_MULTIPLY", "[ONNX Layer: a | call (G)]", "HALF", "", "HALF", "FLOAT"),
    ]
    network = SimpleNamespace(num_layers=3, get_layer=lambda number: layers[number])
    assert imported(network) == [
        ImportedLayer("a | call (G)", "n", "MATRIX_MULTIPLY", ("float16", "float32"), ("bfloat16",))
    ]


class Dying:
    """A sandbox that dies while it inspects, and does the rest."""

    def call(self, target: str, *, timeout: float, **options: Any) -> Outcome:
        if options.get("inspect"):
            return Outcome("crash", message="crashed (SIGSEGV)", note="inspect")
        return Outcome("ok", (LayerTable(TrtBuild("accepted"), unknown=("no list",)), None))


def test_an_inspector_that_dies_costs_only_what_it_would_have_said() -> None:
    found, _ = attempt(cast(Any, Dying()), "m.onnx", package="tensorrt", inspect=True)
    assert found.build.accepted
    assert found.unknown == ("TensorRT's inspector does not read the engine: crashed (SIGSEGV)", "no list")


def test_a_build_that_dies_is_a_table_without_layers() -> None:
    dead = SimpleNamespace(call=lambda *_, **__: Outcome("crash", message="crashed (SIGSEGV)", note="build"))
    found, _ = attempt(cast(Any, dead), "m.onnx", package="tensorrt", inspect=True)
    assert (found.build.status, found.build.stage, found.layers) == ("crash", "build", ())


def test_the_log_and_the_inspector_complete_each_other() -> None:
    listed, inspected = (
        (EngineLayer("a", "gemm"), EngineLayer("b", "kgen", "k")),
        (EngineLayer("a", "gemm", "k1"),),
    )
    assert [one.tactic for one in layers_module._filled(listed, inspected)] == ["k1", "k"]
