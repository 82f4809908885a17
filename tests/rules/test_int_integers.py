"""INT rules: random shape arithmetic computes the same before and after, judged by the reference and ONNX Runtime.

``ONNXFIX_EXAMPLES=2000 pytest tests/rules/test_int_integers.py`` runs more than the few hundred of the suite,
with new seeds.
"""
# Long because: generators of random shape subgraphs stand beside the tests that draw from them.

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety
from onnxfix.testing import assert_interface_kept, findings, fixed, overlay
from onnxfix_rules.int_ import _fold
from onnxfix_rules.int_._fold import FOLDABLE, evaluate
from onnxfix_rules.int_._known import Known
from support.models import of_opset
from support.ort import runner as by_runtime

RULES = [rule for rule in registry().rules if rule.code.startswith("INT")]
EXAMPLES = int(os.environ.get("ONNXFIX_EXAMPLES", "150"))
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
        result: Run | None = None  # a model whose every run fails may also fail to load
        for sizes in ASSIGNMENTS:
            feed = feed_of(before, dict(zip("NSC", sizes, strict=True)))
            want = attempt(lambda original=original, feed=feed: original(feed))
            if want is None:
                continue
            ran += 1
            result = result or backend(after)
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
        match self.pick("arithmetic", "float", "unary", "vector", "concat", "slice", "compare", "reduce", "fill",
                        "tile"):  # fmt: skip
            case "arithmetic":
                op = self.pick("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min")
                self.scalars.append(self.node(op, [self.scalar(), self.scalar()]))
            case "float":
                self.scalars.append(self.float_arithmetic(self.scalar()))
            case "unary":
                self.scalars.append(self.node(self.pick("Neg", "Abs", "Identity", "Sign"), [self.scalar()]))
            case "vector":
                left, right = self.vector(), self.vector()
                if (
                    1 in (self.vectors[left], self.vectors[right])
                    or self.vectors[left] == self.vectors[right]
                ):
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
        kind, dtype = self.pick(
            (TensorProto.FLOAT, np.float32),
            (TensorProto.DOUBLE, np.float64),
            (TensorProto.FLOAT16, np.float16),
        )
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
        unused = (
            ["", ""] if self.opset >= 13 else [self.constant([], np.float32), self.constant([], np.float32)]
        )
        return self.node("Resize", ["x", *unused, target], mode="nearest", coordinate_transformation_mode="asymmetric",
                         nearest_mode="floor")  # fmt: skip

    def branches(self) -> str:
        """An If whose branches read shapes of the graph around them."""
        shape, _ = self.target("x")
        graphs = []
        for number in range(2):
            out = f"b{len(self.nodes)}_{number}"
            inner = f"i{len(self.nodes)}_{number}"
            nodes = [
                helper.make_node("Neg", ["x"], [inner]),
                helper.make_node("Reshape", [inner, shape], [out]),
            ]
            info = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
            graphs.append(helper.make_graph(nodes, out, [], [onnx.ValueInfoProto(name=out, type=info)]))
        condition = self.node("Greater", [self.scalar(), self.constant(2)])
        return self.node("If", [condition], then_branch=graphs[0], else_branch=graphs[1])

    def model(self, outputs: Sequence[str]) -> ModelProto:
        kinds = dict.fromkeys((*self.vectors, *self.scalars), TensorProto.INT64)
        for node in self.nodes:
            reads_int = any(name in kinds for name in node.input[:1])
            if node.op_type in ("Range", "Concat") or (
                node.op_type in ("Add", "Sub", "Neg", "Identity") and reads_int
            ):
                kinds[node.output[0]] = TensorProto.INT64
        infos = [
            onnx.ValueInfoProto(
                name=name, type=helper.make_tensor_type_proto(kinds.get(name, TensorProto.FLOAT), None)
            )
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


@pytest.mark.slow
@property_test
@given(model=shape_subgraphs())
def test_random_shape_subgraphs(model: ModelProto) -> None:
    assert_sound(model)


@pytest.mark.slow
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
                same = (want.dtype, want.shape, want.tobytes()) == (
                    result.dtype,
                    result.shape,
                    result.tobytes(),
                )
                assert same, f"{name}: {want} {result} at {sizes}\n{onnx.printer.to_text(model)}"


# ---- single operators
INTS = st.integers(-9, 9)
KINDS = st.sampled_from([np.int64, np.int32, np.float32, np.float64])
NUMBERS = st.sampled_from([-3.5, -2.0, -0.5, -0.0, 0.0, 0.1, 1.0, 1.5, 2.5, 7.0])


def arrays(kind: Any, size: int | None = None) -> st.SearchStrategy[np.ndarray]:
    items = NUMBERS if kind in (np.float32, np.float64) else INTS
    if size is None:
        return st.one_of(items.map(lambda v: np.array(v, kind)), *(arrays(kind, n) for n in (0, 1, 2, 3)))
    return st.lists(items, min_size=size, max_size=size).map(lambda v: np.array(v, kind))


def is_positive(array: np.ndarray) -> np.ndarray:
    return np.asarray(array > 0)


def vector(*items: int) -> np.ndarray:
    return np.array(items, np.int64)


def calls(op: str) -> st.SearchStrategy[tuple[list[np.ndarray | None], dict[str, Any]]]:
    """Inputs and attributes of a call, by no means always a valid one."""
    sizes = st.lists(st.integers(0, 4), min_size=0, max_size=3).map(lambda v: vector(*v))
    axis = st.integers(-1, 0)

    def of(*inputs: Any, **attributes: Any) -> Any:
        return st.tuples(st.tuples(*inputs).map(list), st.fixed_dictionaries(attributes))

    def same(count: int) -> Any:
        return KINDS.flatmap(lambda kind: of(*[arrays(kind)] * count))

    table = {
        "Cast": KINDS.flatmap(lambda k: of(arrays(k), to=st.sampled_from([1, 6, 7, 9, 11]))),
        "Concat": KINDS.flatmap(lambda k: of(arrays(k, 2), arrays(k, 0), arrays(k, 3), axis=axis)),
        "ConstantOfShape": of(sizes),
        "Expand": KINDS.flatmap(lambda k: of(arrays(k), sizes)),
        "Gather": KINDS.flatmap(lambda k: of(arrays(k, 3), arrays(np.int64), axis=axis)),
        "Not": of(arrays(np.int64).map(is_positive)),
        "Range": of(*[arrays(np.int64).filter(lambda a: a.ndim == 0)] * 3),
        "Reshape": KINDS.flatmap(lambda k: of(arrays(k), sizes, allowzero=st.integers(0, 1))),
        "Slice": of(arrays(np.int64, 3), *[arrays(np.int64, 1)] * 2, st.just(vector(0)), arrays(np.int64, 1)),
        "Split": of(arrays(np.int64, 3), st.just(vector(3))),
        "Squeeze": of(arrays(np.int64, 1), st.one_of(st.just(vector(0)), st.none())),
        "Tile": of(arrays(np.int64, 3), arrays(np.int64, 1)),
        "Transpose": of(arrays(np.int32, 3).map(lambda a: a.reshape(1, 3))),
        "Unsqueeze": KINDS.flatmap(
            lambda k: of(arrays(k), st.sampled_from([vector(0), vector(0, 1), vector(-1)]))
        ),
        "Where": KINDS.flatmap(lambda k: of(arrays(np.int64).map(is_positive), arrays(k), arrays(k))),
        "Mod": KINDS.flatmap(lambda k: of(arrays(k), arrays(k), fmod=st.integers(0, 1))),
    }
    if op in ("And", "Or", "Xor"):
        return of(*[arrays(np.int64).map(is_positive)] * 2)
    if op.startswith("Reduce"):
        kinds = st.sampled_from([np.int64, np.int32])
        return kinds.flatmap(lambda k: of(arrays(k), st.just(vector(0)), keepdims=st.integers(0, 1)))
    unary = op in ("Abs", "Ceil", "Floor", "Identity", "Neg", "NonZero", "Sign", "Sqrt")
    return table[op] if op in table else same(1 if unary else 2)


def single(op: str, inputs: list[np.ndarray | None], attributes: dict[str, Any]) -> ModelProto:
    names = [f"i{n}" if array is not None else "" for n, array in enumerate(inputs)]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(op, names, ["y"], **attributes)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, inputs, strict=False)
        if name and array is not None
    ]
    model = helper.make_model(helper.make_graph([node], "single", infos, []), ir_version=9)
    model.opset_import[0].version = 18
    return model


@pytest.mark.corpus
@pytest.mark.parametrize("op", sorted({*_fold._BY_NUMPY, "Range"}))
def test_numpy_says_what_the_reference_does(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = _fold._reference
    monkeypatch.setattr(_fold, "_reference", lambda *call: asked.append(op) or real(*call))
    alone = []

    @settings(parent=property_test, max_examples=max(60, EXAMPLES // 4))
    @given(call=calls(op))
    def run(call: tuple[list[np.ndarray | None], dict[str, Any]]) -> None:
        inputs, attributes = call
        node = overlay(single(op, inputs, attributes)).main.nodes[0]
        asked.clear()
        (found,) = evaluate(node, inputs[: len(node.inputs)])
        if found is None or asked:
            return
        (wanted,) = (np.asarray(array) for array in real(node, inputs[: len(node.inputs)]))
        assert (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())
        alone.append(found)

    run()
    assert len(alone) > 8


@pytest.mark.corpus
@pytest.mark.parametrize("op", sorted(FOLDABLE))
def test_folded_operators(op: str) -> None:
    """Where the fold gives a value at all, ONNX Runtime gives the same, to the last bit."""
    folded = []

    @settings(parent=property_test, max_examples=max(60, EXAMPLES // 4))
    @given(call=calls(op))
    def run(call: tuple[list[np.ndarray | None], dict[str, Any]]) -> None:
        inputs, attributes = call
        model = single(op, inputs, attributes)
        node = overlay(model).main.nodes[0]
        (found,) = evaluate(node, inputs[: len(node.inputs)])
        if found is None:
            return
        model.graph.output.add().CopyFrom(
            helper.make_tensor_value_info(
                "y", helper.np_dtype_to_tensor_dtype(found.dtype), [None] * found.ndim
            )
        )
        feed = {f"i{n}": array for n, array in enumerate(inputs) if array is not None}
        run_original = attempt(lambda: by_runtime(model))
        if run_original is None:
            return  # no kernel for this type
        (want,) = run_original(feed)
        folded.append(found)
        assert (found.dtype, found.shape, found.tobytes()) == (want.dtype, want.shape, want.tobytes()), (
            found,
            want,
        )

    run()
    assert folded, f"no call of {op} was folded: the test says nothing"


def test_what_is_listed_of_operators_is_what_their_schemas_say() -> None:
    names = {name for _, name in _fold.ATTRIBUTES} | {"to", "unknown"}
    assert {op for op, _ in _fold.ATTRIBUTES} | _fold.SINCE.keys() <= FOLDABLE
    for op in sorted(FOLDABLE):
        for opset in range(7, min(_fold.LATEST, onnx.defs.onnx_opset_version()) + 1):
            try:
                known = set(onnx.defs.get_schema(op, opset, "").attributes)
            except onnx.defs.SchemaError:
                assert not _fold.listed(op, opset, []), (op, opset)
                continue
            assert _fold.listed(op, opset, []), (op, opset)
            assert {name for name in names if _fold.listed(op, opset, [name])} == known, (op, opset)
            assert _fold.listed(op, opset, known)
            assert not _fold.listed(op, opset, [*known, "unknown"])
    assert not _fold.listed("Add", 1 + max(_fold.LATEST, onnx.defs.onnx_opset_version()), [])


@pytest.mark.parametrize(("op", "since"), [("Range", 11), ("Expand", 8)])
def test_operators_fold_from_the_opset_on_that_has_them(op: str, since: int) -> None:
    inputs = [np.array(0), np.array(3), np.array(1)] if op == "Range" else [np.array([1]), np.array([3])]
    for opset in (since - 1, since):
        model = single(op, list(inputs), {})
        model.opset_import[0].version = opset
        (found,) = evaluate(overlay(model).main.nodes[0], inputs)
        assert (found is not None) == (opset == since)


@pytest.mark.parametrize(
    ("op", "opset", "count", "outputs"),
    [
        ("Add", 18, 2, ["y", "z"]),
        ("Add", 18, 2, []),
        ("Add", 18, 3, ["y"]),
        ("Range", 18, 3, ["y", "z"]),
        ("Transpose", 18, 2, ["y"]),
        ("Squeeze", 11, 2, ["y"]),
        ("Unsqueeze", 11, 2, ["y"]),
        ("Split", 11, 2, ["y"]),
        ("Slice", 9, 3, ["y"]),
        ("Where", 18, 4, ["y"]),
    ],
)
def test_a_node_with_more_inputs_or_outputs_than_its_operator_is_not_computed(
    op: str, opset: int, count: int, outputs: list[str]
) -> None:
    one = np.array(1) if op == "Range" else np.array([1])
    inputs = [np.array([True]) if op == "Where" else one, *[one] * (count - 1)]
    model = single(op, list(inputs), {})
    model.opset_import[0].version = opset
    model.graph.node[0].output[:] = outputs
    assert evaluate(overlay(model).main.nodes[0], inputs) == [None] * len(outputs)


@pytest.mark.parametrize(
    "inputs",
    [
        [np.array(number, np.uint64) for number in (2**64 - 2, 2**64 - 1, 1)],  # numpy counts in floats there
        [np.array(0), np.array(3, np.int32), np.array(1)],
    ],
)
def test_ranges_of_other_types_than_onnx_has_are_left_alone(inputs: list[np.ndarray]) -> None:
    node = overlay(single("Range", list(inputs), {})).main.nodes[0]
    assert evaluate(node, inputs) == [None]


@pytest.mark.parametrize("second", [np.array([1, 2], np.int32), np.array([1.0, 2.0])])
def test_integers_of_one_type_are_added_and_no_others(second: np.ndarray) -> None:
    for inputs in ([np.array([3, 4]), second], [np.array([3, 4])] * 3):
        node = overlay(single("Add", list(inputs), {})).main.nodes[0]
        assert evaluate(node, inputs) == [None]


@pytest.mark.parametrize(
    ("value", "to", "folds"),
    [
        (300.0, TensorProto.UINT8, False),
        (-1.0, TensorProto.UINT8, False),
        (255.9, TensorProto.UINT8, True),
        (2.0**31, TensorProto.INT32, False),
        (-(2.0**31), TensorProto.INT32, True),
        (2.0**63, TensorProto.INT64, False),
        (np.nan, TensorProto.INT32, False),
        (np.inf, TensorProto.FLOAT, False),
    ],
)
def test_casts_out_of_range_are_not_decided(value: float, to: int, folds: bool) -> None:
    array = np.array(value, np.float64)
    (found,) = evaluate(overlay(single("Cast", [array], {"to": to})).main.nodes[0], [array])
    assert (found is not None) == folds


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("ConstantOfShape", [np.array([2**13, 2**12])]),
        ("Expand", [np.array([1]), np.array([2**25])]),
        ("Tile", [np.array([1]), np.array([2**25])]),
        ("Range", [np.array(0), np.array(2**25), np.array(1)]),
        ("Range", [np.array(2**25), np.array(0), np.array(-1)]),
        ("Add", [np.zeros((1, 2000), np.int64), np.zeros((2000, 1), np.int64)]),
    ],
)
def test_large_results_are_not_even_computed(op: str, inputs: list[np.ndarray]) -> None:
    node = overlay(single(op, list(inputs), {})).main.nodes[0]
    evaluate(node, [vector(1)] * len(inputs))  # whatever is loaded on first use
    tracemalloc.start()
    try:
        assert evaluate(node, inputs) == [None]
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


# ---- what the examples cannot say
def rule(code: str) -> Any:
    return registry().get(code)


text = of_opset(18, 9)


@pytest.mark.parametrize(("target", "severity"), [("trt11", "INFO"), ("rtx", "INFO"), ("trt8.6", "WARNING")])
@pytest.mark.parametrize("code", ["INT001", "INT002", "INT005"])
def test_severity_depends_on_the_target(code: str, target: str, severity: str) -> None:
    model = text("""g (int64[N,4] x) => (int64[N,2,2] y) <int64[1] two = {2}> {
        n = Shape<end = 1>(x)  c = Shape<start = 1>(x)  h = Div(c, two)  t = Concat<axis = 0>(n, two, h)
        y = Reshape(x, t) }""")
    found = findings(rule(code), model, target)
    assert found
    assert {item.severity.name for item in found} == {severity}


def test_interface_messages() -> None:
    model = text("g (int64[N] x) => (int64[N] y) { y = Neg(x) }")
    assert [f.match.message for f in findings(rule("INT005"), model)] == [
        "int64 input x is an int64 binding: 8 bytes per element, not 4",
        "int64 output y is an int64 binding: 8 bytes per element, not 4",
    ]


def test_condition_of_an_unproven_reshape_is_stated() -> None:
    model = text("""g (float[N,S,4] x, float[M] z) => (float[A,B] y, float[C,D] w) <int64[1] f = {4}> {
        n = Shape<end = 1>(x)  s = Shape<start = 1, end = 2>(x)  m = Mul(s, f)  t = Concat<axis = 0>(n, m)
        y = Reshape(x, t)  k = Shape(z)  u = Concat<axis = 0>(k, f)  w = Reshape(x, u) }""")
    empty, unequal = findings(rule("INT002"), model)
    assert empty.match.message.endswith("[0, -1] is equivalent provided that N is never 0")
    assert unequal.match.message.endswith("provided that 4*M equals 4*N*S in every run")
    assert {found.match.fix.safety for found in (empty, unequal) if found.match.fix} == {Safety.UNSAFE}


def test_clamped_number_and_its_reader_are_named() -> None:
    model = text("g (int64[N] x) => (int64[N] y) <int64 big = {-4294967296}> { y = Mod(x, big) }")
    (found,) = findings(rule("INT004"), model, "trt8.6")
    assert "-4294967296" in found.match.message
    assert "-2147483648" in found.match.message
    assert "Mod y" in found.match.message
    assert found.severity.name == "ERROR"


def test_large_constants_are_said_to_be_unexamined() -> None:
    array = np.zeros(200_000, np.int64)
    node = helper.make_node("Gather", ["w", "x"], ["y"])
    infos = [helper.make_tensor_value_info(name, TensorProto.INT64, ["N"]) for name in "xy"]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:], [numpy_helper.from_array(array, "w")])
    (found,) = findings(rule("INT004"), helper.make_model(graph, ir_version=9), "trt8.6")
    assert "200,000" in found.match.message
    assert found.severity.name == "INFO"


def test_no_constant_is_much_larger_than_what_it_replaces() -> None:
    for count in (10, 60, 64, 65, 100, 1000, 100_000, 2**38):
        model = text(f"""g (int64[N,K] x) => (int64[N,K] y) <int64 one = {{1}}, int64[1] n = {{{count}}}> {{
            e = Expand(one, n)  y = Add(x, e) }}""")
        result, run = fixed(RULES, model)
        assert bool(run.applied) == (count <= 66)
        assert result.ByteSize() <= model.ByteSize() + 600


def test_a_static_model_folds_in_one_round() -> None:
    """Every reader with several known inputs is served at once: further rounds would infer all shapes again."""
    model = text("""g (float[2,6,4] x) => (float[K,L] y) <int64[1] i = {0}, int64[1] j = {1}> {
        s = Shape(x)  a = Gather(s, i)  b = Gather(s, j)  c = Sub(b, a)  d = Mul(a, a)  k = Div(d, d)
        p = Slice(x, k, c, k, k)  q = Slice(p, i, d, i, j)  m = Neg(j)  u = Concat<axis = 0>(m, a)
        y = Reshape(q, u) }""")
    result, run = fixed([rule("INT001")], model)
    assert run.rounds == 2  # the second finds nothing
    assert [node.op_type for node in result.graph.node] == ["Slice", "Slice", "Reshape"]


def test_overridable_initializer_stays_overridable() -> None:
    model = text("""g (float[N,6] x, int64[1] k = {2}) => (float[A,B] y) <int64[1] m = {-1}> {
        u = Add(k, k)  t = Concat<axis = 0>(m, u)  y = Reshape(x, t) }""")
    result, run = fixed(RULES, model, safety=Safety.UNSAFE)
    assert not run.applied
    feed = {"x": np.zeros((4, 6), np.float32)}
    for backend in (by_reference, by_runtime):
        shapes = [backend(result)({**feed, **more})[0].shape for more in ({"k": vector(2)}, {"k": vector(3)})]
        assert shapes == [(6, 4), (4, 6)]


def test_shared_constant_is_not_changed_for_others() -> None:
    model = text("""g (float[2,3] x, float[N] w) => (float[6] y, float[N] v) <float k = {1.5}, int64[1] z = {0}> {
        s = Size(x)  f = Cast<to = 1>(s)  h = Mul(f, k)  i = Cast<to = 7>(h)  n = Unsqueeze(i, z)
        p = Constant<value = int64[1] {6}>()  o = Min(n, p)  y = Reshape(x, o)  v = Mul(w, k) }""")
    result = assert_sound(model)
    assert [numpy_helper.to_array(t) for t in result.graph.initializer if t.name == "k"] == [np.float32(1.5)]
