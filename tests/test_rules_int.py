"""INT rules: random shape arithmetic computes the same before and after, judged by the reference and ONNX Runtime.

``ONNXFIX_EXAMPLES=2000 pytest tests/test_rules_int.py`` runs more than the few hundred of the suite, with new seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator
from onnxfix_rules.int_._fold import FOLDABLE, evaluate
from onnxfix_rules.int_._known import Known

from onnxfix.registry import registry
from onnxfix.rule import Safety
from onnxfix.testing import assert_interface_kept, findings, fixed, overlay

RULES = [rule for rule in registry().rules if rule.code.startswith("INT")]
EXAMPLES = int(os.environ.get("ONNXFIX_EXAMPLES", "250"))
ASSIGNMENTS = [(1, 1, 1), (2, 2, 2), (2, 3, 5), (4, 1, 3), (1, 6, 2), (0, 2, 3), (3, 0, 2), (0, 0, 0)]
"""What N, S and C are in a run."""

property_test = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="ONNXFIX_EXAMPLES" not in os.environ,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
Run = Callable[[dict[str, Any]], list[Any]]


def by_runtime(model: ModelProto) -> Run:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda feed: list(session.run(None, feed))


def by_reference(model: ModelProto) -> Run:
    evaluator = ReferenceEvaluator(model)

    def run(feed: dict[str, Any]) -> list[Any]:
        with np.errstate(all="ignore"):
            return list(evaluator.run(None, feed))

    return run


def attempt(function: Callable[[], Any]) -> Any:
    """The result; None where the model is one that this backend cannot run, for whatever reason it gives."""
    try:
        return function()
    except Exception:
        return None


def feed_of(model: ModelProto, env: dict[str, int]) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    feed = {}
    for info in model.graph.input:
        tensor = info.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else env[d.dim_param] for d in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feed[info.name] = np.asarray(rng.integers(0, 7, shape)).astype(dtype)
    return feed


def assert_same(before: ModelProto, after: ModelProto) -> int:
    """Wherever ``before`` runs, ``after`` gives the same, bit for bit. How often ``before`` ran."""
    ran = 0
    for backend in (by_reference, by_runtime):
        original = attempt(lambda backend=backend: backend(before))
        if original is None:
            continue
        result = backend(after)
        for sizes in ASSIGNMENTS:
            feed = feed_of(before, dict(zip("NSC", sizes, strict=True)))
            want = attempt(lambda original=original, feed=feed: original(feed))
            if want is None:
                continue
            ran += 1
            for a, b in zip(want, result(feed), strict=True):
                a, b = np.asarray(a), np.asarray(b)
                where = f"{backend.__name__} {sizes}\n{onnx.printer.to_text(before)}\n{onnx.printer.to_text(after)}"
                assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), f"{a} {b} {where}"
    return ran


def assert_sound(model: ModelProto) -> ModelProto:
    """All exact fixes: same results, same interface, valid, and nothing left for a second time."""
    valid = attempt(lambda: onnx.checker.check_model(model) or True)
    result, run = fixed(RULES, model)
    assert not run.problems, run.problems
    assert_interface_kept(model, result)
    if valid:
        onnx.checker.check_model(result)
    assert_same(model, result)
    again, more = fixed(RULES, result)
    assert not more.applied
    assert again.SerializeToString(deterministic=True) == result.SerializeToString(deterministic=True)
    return result


# ---- random shape subgraphs
class Builder:
    """A graph in the making: a float tensor ``x``, and integers computed from shapes and constants."""

    def __init__(self, draw: Callable[..., Any], opset: int) -> None:
        self.draw = draw
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.dims: dict[str, list[str | int]] = {}
        self.scalars: list[str] = []
        self.vectors: dict[str, int] = {}

    def pick(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def input(self, name: str) -> str:
        dims = [self.pick("N", "S", "C", 1, 2, 3, 4, 6) for _ in range(self.number(1, 4))]
        self.dims[name] = dims
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype=dtype), name))
        return name

    def node(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def along(self, op: str, value: str, axis: int, **attributes: Any) -> str:
        """An operator whose axes became an input with opset 13."""
        if self.opset < 13:
            return self.node(op, [value], axes=[axis], **attributes)
        return self.node(op, [value, self.constant([axis])], **attributes)

    def shape(self, name: str) -> str:
        """Shape of an input, whole or in part."""
        rank = len(self.dims[name])
        if self.opset < 15 or self.pick(True, False):
            vector = self.node("Shape", [name])
            self.vectors[vector] = rank
            return vector
        start, end = self.number(-rank, rank - 1), self.number(-rank, rank + 1)
        vector = self.node("Shape", [name], start=start, end=end)
        self.vectors[vector] = len(range(*slice(start, end).indices(rank)))
        return vector

    def dim(self, name: str, axis: int) -> str:
        """A dimension of an input as a vector of one, spelled in one of the ways that exporters have."""
        way = self.pick("gather", "vector", "slice", "part", "number", "size")
        dims = self.dims[name]
        if way == "number" and isinstance(dims[axis], int):
            return self.constant([dims[axis]])
        if way == "size" and len(dims) == 1:
            return self.along("Unsqueeze", self.node("Size", [name]), 0)
        if way == "part" and self.opset >= 15:
            return self.node("Shape", [name], start=axis, end=axis + 1)
        shape = self.node("Shape", [name])
        if way == "slice":
            start, end = self.constant([axis]), self.constant([axis + 1])
            return self.node("Slice", [shape, start, end, self.constant([0])])
        index = axis if self.pick(True, False) else axis - len(dims)
        if way == "vector":
            return self.node("Gather", [shape, self.constant([index])])
        scalar = self.node("Gather", [shape, self.constant(index)])
        if self.pick(True, False):
            kind = self.pick(TensorProto.INT32, TensorProto.FLOAT, TensorProto.DOUBLE)
            scalar = self.node("Cast", [self.node("Cast", [scalar], to=kind)], to=TensorProto.INT64)
        self.scalars.append(scalar)
        return self.along("Unsqueeze", scalar, 0)

    def scalar(self) -> str:
        if self.scalars and self.pick(True, True, False):
            return str(self.draw(st.sampled_from(self.scalars)))
        if self.vectors and self.pick(True, False):
            vector = self.vector()
            if self.vectors[vector]:
                index = self.constant(self.number(-self.vectors[vector], self.vectors[vector] - 1))
                return self.node("Gather", [vector, index])
        return self.constant(self.number(-3, 7))

    def vector(self) -> str:
        return str(self.draw(st.sampled_from(sorted(self.vectors))))

    def step(self) -> None:
        """One more integer value, from those that are there."""
        match self.pick("arithmetic", "float", "unary", "vector", "concat", "slice", "compare", "reduce", "fill", "tile"):
            case "arithmetic":
                op = self.pick("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min")
                self.scalars.append(self.node(op, [self.scalar(), self.scalar()]))
            case "float":
                self.scalars.append(self.float_arithmetic(self.scalar()))
            case "unary":
                self.scalars.append(self.node(self.pick("Neg", "Abs", "Identity", "Sign"), [self.scalar()]))
            case "vector":
                left, right = self.vector(), self.vector()
                if 1 in (self.vectors[left], self.vectors[right]) or self.vectors[left] == self.vectors[right]:
                    name = self.node(self.pick("Add", "Sub", "Mul", "Div", "Min"), [left, right])
                    sizes = {self.vectors[left], self.vectors[right]} - {1}
                    self.vectors[name] = sizes.pop() if sizes else 1
            case "concat":
                parts = [self.vector(), self.along("Unsqueeze", self.scalar(), 0)]
                name = self.node("Concat", parts, axis=0)
                self.vectors[name] = self.vectors[parts[0]] + 1
            case "slice":
                self.slice(self.vector())
            case "compare":
                test = self.node(self.pick("Equal", "Less", "Greater"), [self.scalar(), self.scalar()])
                self.scalars.append(self.node("Where", [test, self.scalar(), self.scalar()]))
            case "reduce":
                self.reduce(self.vector())
            case "fill":
                count = self.number(0, 4)
                fill = helper.make_tensor("", TensorProto.INT64, [1], [self.number(-2, 3)])
                name = self.node("ConstantOfShape", [self.constant([count])], value=fill)
                self.vectors[name] = count
            case _:
                vector = self.vector()
                name = self.node("Tile", [vector, self.constant([2])])
                self.vectors[name] = 2 * self.vectors[vector]

    def slice(self, vector: str) -> None:
        size = self.vectors[vector]
        start, end = self.number(-2, 3), self.pick(-1, 1, 2, 3, 2**63 - 1)
        step = self.pick(1, 1, 2, -1)
        inputs = [vector, *(self.constant([item]) for item in (start, end, 0, step))]
        self.vectors[self.node("Slice", inputs)] = len(range(*slice(start, end, step).indices(size)))

    def reduce(self, vector: str) -> None:
        op = self.pick("ReduceProd", "ReduceSum", "ReduceMax")
        if op == "ReduceSum" and self.opset >= 13:
            self.scalars.append(self.node(op, [vector, self.constant([0])], keepdims=0))
        elif op == "ReduceSum" or self.opset < 18:
            self.scalars.append(self.node(op, [vector], axes=[0], keepdims=0))
        else:
            self.scalars.append(self.node(op, [vector, self.constant([0])], keepdims=0))

    def float_arithmetic(self, value: str) -> str:
        kind, dtype = self.pick((TensorProto.FLOAT, np.float32), (TensorProto.DOUBLE, np.float64), (TensorProto.FLOAT16, np.float16))
        value = self.node("Cast", [value], to=kind)
        for _ in range(self.number(1, 3)):
            op = self.pick("Mul", "Div", "Add", "Sub", "Floor", "Ceil", "Sqrt", "Neg")
            if op in ("Mul", "Div", "Add", "Sub"):
                value = self.node(op, [value, self.constant(self.pick(0.5, 1.5, 0.1, 2.0, 3.0), dtype)])
            else:
                value = self.node(op, [value])
        return self.node("Cast", [value], to=TensorProto.INT64)

    # -- what reads the shapes
    def sink(self) -> str:
        match self.pick("reshape", "reshape", "reshape", "expand", "fill", "tile", "slice", "range", "pad", "resize",
                        "add", "output", "if"):  # fmt: skip
            case "reshape":
                return self.reshape("x")
            case "expand":
                return self.node("Expand", [self.constant(3.0, np.float32), self.bounded(self.vector())])
            case "fill":
                return self.node("ConstantOfShape", [self.bounded(self.vector())])
            case "tile":
                name = self.pick(*sorted(self.dims))
                repeats = [self.dim(name, self.number(0, len(self.dims[name]) - 1)) for _ in self.dims[name]]
                return self.node("Tile", [name, self.node("Concat", repeats, axis=0)])
            case "slice":
                bounds = [self.along("Unsqueeze", self.scalar(), 0) for _ in range(2)]
                return self.node("Slice", ["x", *bounds, self.constant([0])])
            case "range":
                limit = self.node("Min", [self.scalar(), self.constant(9)])
                return self.node("Range", [self.constant(0), limit, self.constant(self.pick(1, 2, 3))])
            case "pad":
                pads = self.pick([0] * 2 * len(self.dims["x"]), [1] * 2 * len(self.dims["x"]))
                return self.node("Pad", ["x", self.constant(pads)])
            case "resize":
                return self.resize()
            case "add":
                zeros = self.constant(self.pick(0, [0], [0, 0], [[0]]))
                return self.node(self.pick("Add", "Sub"), [self.vector(), zeros])
            case "if":
                return self.branches()
        return self.node(self.pick("Identity", "Neg"), [self.vector()])

    def bounded(self, vector: str) -> str:
        """Sizes that fit into memory."""
        small = self.node("Min", [vector, self.constant(5)])
        return self.node("Max", [small, self.constant(self.pick(0, 1))])

    def target(self, name: str) -> tuple[str, int]:
        """A shape for the tensor: its dimensions, some multiplied or split, perhaps one -1, 0 or another's."""
        parts: list[str] = []
        axes = list(range(len(self.dims[name])))
        if self.pick(True, False, False):
            axes = list(self.draw(st.permutations(axes)))
        for axis in axes:
            part, size = self.dim(name, axis), self.dims[name][axis]
            way = self.pick("keep", "keep", "keep", "merge", "split", "drop")
            if way == "merge" and parts:
                parts[-1] = self.node("Mul", [parts[-1], part])
            elif way == "split" and size in (4, 6):
                parts += [self.constant([2]), self.node("Div", [part, self.constant([2])])]
            elif way == "drop" and size == 1:
                continue
            else:
                parts.append(part)
        if parts and self.pick(True, False, False):
            at = self.number(0, len(parts) - 1)
            parts[at] = self.constant([self.pick(-1, -1, 0)])
        if not parts or self.pick(True, False, False, False):
            parts.insert(self.number(0, len(parts)), self.constant([1]))
        return self.node("Concat", parts, axis=0), len(parts)

    def reshape(self, name: str) -> str:
        shape, _ = self.target(name)
        if self.opset >= 14 and self.pick(True, False):
            return self.node("Reshape", [name, shape], allowzero=self.pick(0, 1))
        return self.node("Reshape", [name, shape])

    def resize(self) -> str:
        rank = len(self.dims["x"])
        sizes = self.node("Concat", [self.dim("x", axis) for axis in range(rank)], axis=0)
        kind = self.node("Cast", [sizes], to=TensorProto.FLOAT)
        scaled = self.node("Mul", [kind, self.constant([self.pick(1.0, 1.5, 2.0)] * rank, np.float32)])
        target = self.node("Cast", [scaled], to=TensorProto.INT64)
        # Before opset 13 the inputs that are left out are empty tensors.
        unused = ["", ""] if self.opset >= 13 else [self.constant([], np.float32), self.constant([], np.float32)]
        return self.node("Resize", ["x", *unused, target], mode="nearest", coordinate_transformation_mode="asymmetric",
                         nearest_mode="floor")  # fmt: skip

    def branches(self) -> str:
        """An If whose branches read shapes of the graph around them."""
        shape, _ = self.target("x")
        graphs = []
        for number in range(2):
            out = f"b{len(self.nodes)}_{number}"
            inner = f"i{len(self.nodes)}_{number}"
            nodes = [helper.make_node("Neg", ["x"], [inner]), helper.make_node("Reshape", [inner, shape], [out])]
            info = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
            graphs.append(helper.make_graph(nodes, out, [], [onnx.ValueInfoProto(name=out, type=info)]))
        condition = self.node("Greater", [self.scalar(), self.constant(2)])
        return self.node("If", [condition], then_branch=graphs[0], else_branch=graphs[1])

    def model(self, outputs: Sequence[str]) -> ModelProto:
        kinds = {name: TensorProto.INT64 for name in (*self.vectors, *self.scalars)}
        for node in self.nodes:
            reads_int = any(name in kinds for name in node.input[:1])
            if node.op_type in ("Range", "Concat") or (node.op_type in ("Add", "Sub", "Neg", "Identity") and reads_int):
                kinds[node.output[0]] = TensorProto.INT64
        infos = [
            onnx.ValueInfoProto(name=name, type=helper.make_tensor_type_proto(kinds.get(name, TensorProto.FLOAT), None))
            for name in dict.fromkeys(outputs)
        ]
        graph = helper.make_graph(self.nodes, "random", self.inputs, infos, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        live = overlay(model)
        for info in model.graph.output:
            rank = live.shapes.rank(live.main.values[info.name])
            if rank is not None:
                info.type.tensor_type.shape.SetInParent()
                info.type.tensor_type.shape.dim.extend([onnx.TensorShapeProto.Dimension()] * rank)
        return model


@st.composite
def shape_subgraphs(draw: Callable[..., Any]) -> ModelProto:
    """Models that compute shapes in every way that exporters have, and some that nobody has."""
    builder = Builder(draw, draw(st.sampled_from([12, 13, 14, 17, 18, 20])))
    for name in ("x", "z")[: builder.number(1, 2)]:
        builder.input(name)
        builder.shape(name)
        vector = builder.dim(name, builder.number(0, len(builder.dims[name]) - 1))
        builder.vectors[vector] = 1
    for _ in range(builder.number(0, 8)):
        builder.step()
    outputs = [builder.sink() for _ in range(builder.number(1, 3))]
    if builder.pick(True, False, False):
        outputs.append(builder.vector())
    constants = {tensor.name for tensor in builder.constants}
    return builder.model([name for name in outputs if name not in constants])


RAN: list[int] = []


@property_test
@given(model=shape_subgraphs())
def test_random_shape_subgraphs(model: ModelProto) -> None:
    assert_sound(model)


@property_test
@given(model=shape_subgraphs())
def test_known_values_are_what_runs_compute(model: ModelProto) -> None:
    """Each value that is called known is compared itself, whether or not a fix used it."""
    live = overlay(model)
    known = Known(live)
    found = {value.name: known.array(value) for value in known.computed() if value.scope is live.main}
    if not found:
        return
    probe = ModelProto()
    probe.CopyFrom(model)
    declared = {info.name for info in probe.graph.output}
    for name, array in found.items():
        if name not in declared:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            probe.graph.output.add().CopyFrom(
                onnx.ValueInfoProto(name=name, type=helper.make_tensor_type_proto(kind, None))
            )
    names = [info.name for info in probe.graph.output]
    run = attempt(lambda: by_runtime(probe))
    if run is None:
        return
    for sizes in ASSIGNMENTS:
        feed = feed_of(model, dict(zip("NSC", sizes, strict=True)))
        results = attempt(lambda feed=feed: run(feed))
        if results is None:
            continue
        for name, result in zip(names, results, strict=True):
            if name in found:
                want = found[name]
                assert (want.dtype, want.shape, want.tobytes()) == (result.dtype, result.shape, result.tobytes()), (
                    name, want, result, sizes, onnx.printer.to_text(model))  # fmt: skip
