"""Random models of all families of shape arithmetic, casts, reshapes, branches, loops and local functions."""

# Long because: the generator is one list of small builders.

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

F, I64, I32, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
FLOATS = (F, TensorProto.DOUBLE, TensorProto.FLOAT16)
NARROW = (TensorProto.UINT8, TensorProto.INT16)


class Maker:
    """One random graph. ``values`` maps names to (element type, rank or None); every node reads earlier names."""

    def __init__(self, rng: random.Random, opset: int) -> None:
        self.rng = rng
        self.opset = opset
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.values: dict[str, tuple[int, int | None]] = {}
        self.functions: list[onnx.FunctionProto] = []
        self.far: set[str] = set()
        self.prefix = ""
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"{self.prefix}v{self.count}"

    def pick(self, *types: int, rank: int | None = None) -> str | None:
        names = [
            name
            for name, (elem, known) in self.values.items()
            if elem in types and name not in self.far and (rank is None or known == rank)
        ]
        # The latest values are read most: chains find more than fans.
        return self.rng.choice(names[-6:] if self.rng.random() < 0.7 else names) if names else None

    def constant(self, array: Any, elem: int | None = None) -> str:
        """An initializer or a Constant node in one of its forms; some are shared."""
        array = np.asarray(array)
        same = [t for t in self.constants if self.rng.random() < 0.3 and _equals(t, array)]
        if same:
            return str(same[0].name)
        name = self.name()
        if self.rng.random() < 0.6:
            self.constants.append(numpy_helper.from_array(array, name))
        elif array.dtype == np.int64 and array.ndim == 1 and self.opset >= 12:
            self.nodes.append(helper.make_node("Constant", [], [name], value_ints=array.tolist() or None))
            if not array.size:
                self.nodes[-1].attribute.append(AttributeProto(name="value_ints", type=AttributeProto.INTS))
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        self.values[name] = (helper.np_dtype_to_tensor_dtype(array.dtype), array.ndim)
        return name

    def node(self, op: str, inputs: list[str], elem: int, rank: int | None, **attributes: Any) -> str:
        name = self.name()
        label = self.rng.choice(["", "", name, "n"])
        self.nodes.append(helper.make_node(op, inputs, [name], name=label, **attributes))
        self.values[name] = (elem, rank)
        return name

    def along(self, op: str, x: str, axes: list[int], rank: int | None) -> str:
        """An operator whose axes became an input with opset 13."""
        if self.opset >= 13:
            return self.node(op, [x, self.constant(np.array(axes))], self.values[x][0], rank)
        return self.node(op, [x], self.values[x][0], rank, axes=[abs(axis) for axis in axes])

    def rank(self, name: str) -> int | None:
        return self.values[name][1]


def _equals(tensor: TensorProto, array: Any) -> bool:
    other = numpy_helper.to_array(tensor)
    return other.dtype == array.dtype and np.array_equal(other, array)


def _ints(m: Maker, count: int, low: int = -1, high: int = 4) -> list[int]:
    return [m.rng.randint(low, high) for _ in range(count)]


def _on(*elems: int, rank: int | None = None) -> Callable[[Callable[..., None]], Callable[[Maker], None]]:
    """A builder that goes on from a value of these types, with its type and rank; does nothing where there is none."""

    def of(build: Callable[..., None]) -> Callable[[Maker], None]:
        def built(m: Maker) -> None:
            x = m.pick(*elems, rank=rank)
            if x is not None:
                build(m, x, *m.values[x])

        return built

    return of


@_on(F, I64, I32, B)
def _shape(m: Maker, x: str, elem: int, rank: int | None) -> None:
    if m.rng.random() < 0.1:
        m.node("Size", [x], I64, 0)
    elif m.opset >= 15 and m.rng.random() < 0.4:
        m.node("Shape", [x], I64, 1, start=m.rng.randint(-2, 2), end=m.rng.randint(-1, 4))
    else:
        m.node("Shape", [x], I64, 1)


def _gather(m: Maker) -> None:
    x = m.pick(I64, rank=1) or m.pick(F)
    if x is not None:
        index = np.array(m.rng.choice([[0], 1, [1, 0], -1, [-1, 0]]), np.int64)
        rank = m.rank(x)
        result = None if rank is None else rank - 1 + index.ndim
        m.node("Gather", [x, m.constant(index)], m.values[x][0], result)


def _arithmetic(m: Maker) -> None:
    elem = m.rng.choice([I64, I64, I32, F])
    a, b = m.pick(elem), m.pick(elem)
    if a is None or b is None:
        return
    if m.rng.random() < 0.6:
        value = m.rng.choice([0, 0, 1, 2, 3, -1]) if elem != F else m.rng.choice([0.0, -0.0, 1.5, 0.5, 2.0])
        shape = m.rng.choice([(), (1,), (1, 1), (2,)])
        b = m.constant(np.full(shape, value, dtype=helper.tensor_dtype_to_np_dtype(elem)))
    if m.rng.random() < 0.3:
        a, b = b, a
    op = m.rng.choice(["Add", "Sub", "Mul", "Add", "Mul", "Div", "Mod", "Max", "Min"])
    if op == "Mod" and elem == F:
        op = "Div"
    if op in ("Div", "Mod") and elem != F:
        b = m.constant(np.array(m.rng.choice([1, 2, 3]), dtype=helper.tensor_dtype_to_np_dtype(elem)))
    ranks = [m.rank(a), m.rank(b)]
    m.node(op, [a, b], elem, None if None in ranks else max(r for r in ranks if r is not None))


def _compare(m: Maker) -> None:
    elem = m.rng.choice([I64, F])
    a, b = m.pick(elem), m.pick(elem)
    if a is None or b is None:
        return
    ranks = [m.rank(a), m.rank(b)]
    rank = None if None in ranks else max(r for r in ranks if r is not None)
    c = m.node(m.rng.choice(["Less", "Greater", "Equal"]), [a, b], B, rank)
    if m.rng.random() < 0.5:
        m.node("Where", [c, a, b], elem, rank)


@_on(F, I64, I32, B)
def _cast(m: Maker, x: str, elem: int, rank: int | None) -> None:
    for _ in range(m.rng.randint(1, 3)):
        to = m.rng.choice([F, I64, I32, B, *FLOATS[1:], *NARROW])
        if elem in FLOATS and to in NARROW:
            continue  # out of range is undefined
        x, elem = m.node("Cast", [x], to, rank, to=to), to
    if elem not in (F, I64, I32, B):
        m.node("Cast", [x], F, rank, to=F)


def _concat(m: Maker) -> None:
    parts = [m.pick(I64, rank=1) or m.constant(np.array([2])) for _ in range(m.rng.randint(1, 3))]
    if m.rng.random() < 0.5:
        numbers = np.array(_ints(m, m.rng.randint(0, 2)), np.int64)
        parts.insert(m.rng.randint(0, len(parts)), m.constant(numbers))
    m.node("Concat", parts, I64, 1, axis=0)


def _reshape(m: Maker) -> None:
    x, shape = m.pick(F, I64), m.pick(I64, rank=1)
    if x is None:
        return
    if shape is None or m.rng.random() < 0.3:
        choices = [[-1], [0, -1], [1, -1], [-1, 1], [0, 0], [0, 1, -1], [0]]
        shape = m.constant(np.array(m.rng.choice(choices), np.int64))
    attributes = {"allowzero": m.rng.randint(0, 1)} if m.opset >= 14 and m.rng.random() < 0.4 else {}
    m.node("Reshape", [x, shape], m.values[x][0], None, **attributes)


@_on(F, I64)
def _squeeze(m: Maker, x: str, elem: int, rank: int | None) -> None:
    axes = m.rng.choice([[0], [-1], [1], [0, 1], None, None])
    if m.rng.random() < 0.5:
        axes = axes or [0]
        m.along("Unsqueeze", x, axes, None if rank is None else rank + len(axes))
    elif axes is None:
        m.node("Squeeze", [x], elem, None)
    else:
        m.along("Squeeze", x, axes, None if rank is None else rank - len(axes))


def _dimension(m: Maker, x: str, axis: int) -> str:
    """A dimension of ``x`` as a vector of one number, in one of the ways that exporters write it."""
    way = m.rng.choice(["vector", "slice", "part", "scalar", "scalar"])
    if way == "part" and m.opset >= 15:
        return m.node("Shape", [x], I64, 1, start=axis, end=axis + 1)
    shape = m.node("Shape", [x], I64, 1)
    if way == "slice":
        return m.node("Slice", [shape, *(m.constant(np.array([k])) for k in (axis, axis + 1, 0))], I64, 1)
    if way != "scalar":
        return m.node("Gather", [shape, m.constant(np.array([axis]))], I64, 1)
    size = m.node("Gather", [shape, m.constant(np.array(axis))], I64, 0)
    if m.rng.random() < 0.5:
        size = _through_another_type(m, size)
    return m.along("Unsqueeze", size, [0], 1)


def _through_another_type(m: Maker, size: str) -> str:
    """A number as another type and back, after arithmetic if that is a float."""
    to = m.rng.choice([I32, F, F, TensorProto.DOUBLE, TensorProto.FLOAT16])
    size = m.node("Cast", [size], to, 0, to=to)
    for _ in range(m.rng.randint(0, 2) if to != I32 else 0):
        op = m.rng.choice(["Mul", "Div", "Add", "Floor", "Ceil", "Sqrt"])
        number = np.array(m.rng.choice([0.5, 1.5, 0.1, 2.0]), helper.tensor_dtype_to_np_dtype(to))
        size = m.node(op, [size, m.constant(number)] if op in ("Mul", "Div", "Add") else [size], to, 0)
    return m.node("Cast", [size], I64, 0, to=I64)


@_on(F, rank=2)
def _sizes(m: Maker, x: str, elem: int, rank: int | None) -> None:
    """What reads sizes, by those that are computed from dimensions: some multiplied, split, -1, 0 or moved."""
    data = m.node(m.rng.choice(["Identity", "Neg", "Transpose"]), [x], F, 2) if m.rng.random() < 0.5 else x
    parts: list[str] = []
    for axis in m.rng.choice([[0, 1], [0, 1], [1, 0]]):
        part = _dimension(m, x, axis)
        match m.rng.choice(["keep", "keep", "keep", "merge", "split"]):
            case "merge" if parts:
                parts[-1] = m.node("Mul", [parts[-1], part], I64, 1)
            case "split":
                two = m.constant(np.array([2]))
                parts += [two, m.node("Div", [part, two], I64, 1)]
            case _:
                parts.append(part)
    if m.rng.random() < 0.3:
        parts[m.rng.randrange(len(parts))] = m.constant(np.array([m.rng.choice([-1, -1, 0])]))
    if m.rng.random() < 0.2:
        parts.insert(m.rng.randint(0, len(parts)), m.constant(np.array([1])))
    sizes = m.node("Concat", parts, I64, 1, axis=0)
    match m.rng.randint(0, 6):
        case 0:
            m.node("Expand", [m.constant(np.float32(3)), sizes], F, len(parts))
        case 1 if len(parts) == 2:
            m.node("Tile", [data, sizes], F, 2)
        case 2 if len(parts) == 2 and m.opset >= 13:
            m.node("Resize", [data, "", "", sizes], F, 2, mode="nearest",
                   coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
        case 3:
            m.node("Slice", [data, parts[0], parts[-1], m.constant(np.array([0]))], F, 2)
        case _:
            attributes = {"allowzero": m.rng.randint(0, 1)} if m.opset >= 14 and m.rng.random() < 0.4 else {}
            m.node("Reshape", [data, sizes], F, len(parts), **attributes)


@_on(F, I64)
def _slice(m: Maker, x: str, elem: int, rank: int | None) -> None:
    start, end = m.rng.choice(
        [(0, 2**31 - 1), (0, 2**63 - 1), (0, 3), (1, 2**63 - 1), (0, -1), (-2, 9), (-1, -9), (0, 0)]
    )
    step = -1 if start == -1 else m.rng.choice([1, 1, 2])
    inputs = [x, m.constant(np.array([start])), "", m.constant(np.array([m.rng.choice([0, -1])]))]
    if step != 1 or m.rng.random() < 0.3:
        inputs.append(m.constant(np.array([step])))
    far = m.constant(np.array([end]))
    if end > 9:
        m.far.add(far)  # as a size, it would take all memory
    inputs[2] = far
    m.node("Slice", inputs, elem, rank)


def _fill(m: Maker) -> None:
    s = m.pick(I64, rank=1)
    if s is None:
        return
    match m.rng.randint(0, 3):
        case 0:
            m.node("ConstantOfShape", [s], F, None)
        case 1:
            value = numpy_helper.from_array(np.array([m.rng.randint(0, 2)]))
            m.node("ConstantOfShape", [s], I64, None, value=value)
        case 2:
            x = m.pick(F, I64)
            if x is not None:
                m.node("Expand", [x, s], m.values[x][0], None)
        case _:
            m.node(m.rng.choice(["ReduceProd", "ReduceSum", "ReduceMax"]), [s], I64, 0, keepdims=0)


@_on(F, I64)
def _reduce(m: Maker, x: str, elem: int, rank: int | None) -> None:
    m.node(m.rng.choice(["ReduceSum", "ReduceProd"]), [x], elem, rank, keepdims=1)


@_on(F, I64)
def _move(m: Maker, x: str, elem: int, rank: int | None) -> None:
    match m.rng.randint(0, 4):
        case 0:
            m.node("Transpose", [x], elem, rank)
        case 1:
            m.node("Flatten", [x], elem, 2, axis=m.rng.randint(0, 1))
        case 2:
            m.node("Identity", [x], elem, rank)
        case 3:
            y = m.pick(elem, rank=rank) or x
            m.node("Concat", [x, y], elem, rank, axis=m.rng.choice([0, -1]))
        case _:
            if rank:
                pads = [0] * (2 * rank) if m.rng.random() < 0.7 else _ints(m, 2 * rank, 0, 1)
                m.node("Pad", [x, m.constant(np.array(pads, np.int64))], elem, rank)


@_on(F, I64)
def _count(m: Maker, x: str, elem: int, rank: int | None) -> None:
    m.node("NonZero", [x], I64, 2)


@_on(I64, rank=0)
def _range(m: Maker, x: str, elem: int, rank: int | None) -> None:
    m.node("Range", [m.constant(np.array(0)), x, m.constant(np.array(m.rng.choice([1, 2])))], I64, 1)


def _call(m: Maker) -> None:
    """A local function of one input and one output, called once or twice."""
    inner = Maker(m.rng, m.opset)
    inner.prefix = m.rng.choice(["", m.name() + "_"])
    elem = m.rng.choice([F, I64])
    inner.functions = m.functions
    inner.values["x"] = (elem, None)
    _fill_graph(inner, m.rng.randint(1, 4), nested=m.rng.random() < 0.5)
    for tensor in reversed(inner.constants):
        inner.nodes.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    results = [o for n in inner.nodes for o in n.output if n.op_type != "Constant"]
    arguments = [name for name in (m.pick(elem), m.pick(elem)) if name is not None]
    if not results or not arguments:
        return
    name = f"F{len(m.functions)}{inner.prefix}{m.count}"
    if m.rng.random() < 0.5:  # TensorRT takes such a function for the operator
        free = {"Relu", "Abs", "Neg", "Exp", "Floor"} - {function.name for function in m.functions}
        name = m.rng.choice(sorted(free) or [name])
    imports = [helper.make_opsetid("", m.opset), helper.make_opsetid("local", 1)]
    m.functions.append(helper.make_function("local", name, ["x"], [results[-1]], inner.nodes, imports))
    for argument in dict.fromkeys(arguments):
        m.node(name, [argument], *inner.values[results[-1]], domain="local")


def _branch(m: Maker, inner_names: str) -> tuple[GraphProto, dict[str, tuple[int, int | None]]]:
    inner = Maker(m.rng, m.opset)
    inner.prefix = inner_names
    inner.functions = m.functions
    inner.values = dict(m.values)
    inner.far = m.far
    _fill_graph(inner, m.rng.randint(1, 4), nested=m.rng.random() < 0.3)
    new = {k: v for k, v in inner.values.items() if k not in m.values}
    graph = helper.make_graph(inner.nodes, "branch", [], [], inner.constants)
    return graph, new


def _if(m: Maker) -> None:
    condition = m.pick(B, rank=0)
    if condition is None or m.rng.random() < 0.2:
        condition = m.constant(np.array(m.rng.random() < 0.5))
    names = m.name() + "_"
    (then, a), (other, b) = _branch(m, names), _branch(m, m.rng.choice([names, names + "e"]))
    pairs = [
        (x, y) for x, (t, _) in a.items() for y, (u, _) in b.items() if t == u and not _is_constant(then, x)
    ]
    if not pairs:
        return
    x, y = m.rng.choice(pairs)
    then.output.append(helper.make_tensor_value_info(x, a[x][0], None))
    other.output.append(helper.make_tensor_value_info(y, b[y][0], None))
    rank = a[x][1] if a[x][1] == b[y][1] else None
    m.node("If", [condition], a[x][0], rank, then_branch=then, else_branch=other)


def _is_constant(graph: GraphProto, name: str) -> bool:
    return any(t.name == name for t in graph.initializer)


@_on(F, I64)
def _loop(m: Maker, carried: str, elem: int, rank: int | None) -> None:
    names = m.name() + "_"
    inner = Maker(m.rng, m.opset)
    inner.prefix = names
    inner.functions = m.functions
    inner.far = m.far
    inner.values = {**m.values, names + "x": (elem, rank), names + "i": (I64, 0)}
    _fill_graph(inner, m.rng.randint(1, 4), nested=False)
    own = [k for k, v in inner.values.items() if k not in m.values and v[0] == elem and not k.endswith("i")]
    results = [k for k in own if not any(t.name == k for t in inner.constants)]
    result = m.rng.choice(results)
    inner.nodes.append(helper.make_node("Identity", [names + "c"], [names + "o"]))
    info = helper.make_tensor_value_info
    outputs = [info(names + "o", B, []), info(result, elem, None)]
    inputs = [info(names + "i", I64, []), info(names + "c", B, []), info(names + "x", elem, None)]
    body = helper.make_graph(inner.nodes, "body", inputs, outputs, inner.constants)
    trips = m.constant(np.array(m.rng.randint(0, 2)))
    m.node("Loop", [trips, "", carried], elem, None, body=body)


BUILDERS: list[Callable[[Maker], None]] = [
    _shape, _shape, _gather, _gather, _arithmetic, _arithmetic, _arithmetic, _compare, _cast, _cast, _concat, _concat,
    _reshape, _reshape, _sizes, _sizes, _sizes, _squeeze, _squeeze, _slice, _fill, _reduce, _move, _move, _count,
    _range,
]  # fmt: skip
NESTED = [_call, _if, _if, _loop]


def _fill_graph(m: Maker, count: int, *, nested: bool) -> None:
    for _ in range(count):
        builder = m.rng.choice(NESTED) if nested and m.rng.random() < 0.2 else m.rng.choice(BUILDERS)
        builder(m)


def random_model(seed: int) -> ModelProto:
    """A model of all families; many of them are not valid at any size, and those are passed over."""
    rng = random.Random(seed)
    m = Maker(rng, rng.choice([10, 11, 12, 13, 15, 17, 18, 18, 19, 21]))
    ir_version = rng.choice([3, 4, 8, 9, 10])
    declared = [
        ("x", F, ["N", "M"]),
        ("w", F, rng.choice([["N"], ["M", 2], [2, "N"], [1, "N"], ["N", "N"], [4]])),
        ("k", I64, rng.choice([[2], [1], [], ["N"]])),
        ("b", B, []),
    ]
    inputs = []
    for name, elem, dims in declared:
        inputs.append(helper.make_tensor_value_info(name, elem, dims))
        m.values[name] = (elem, len(dims))
    _fill_graph(m, rng.randint(3, 12), nested=True)
    produced = [o for n in m.nodes for o in n.output]
    outputs = list(dict.fromkeys(rng.choices(produced[-5:], k=2))) if produced else ["x"]
    if rng.random() < 0.1:
        outputs.append(rng.choice(["x", *[t.name for t in m.constants]]))
    nodes = m.nodes
    if rng.random() < 0.15:
        nodes = sorted(nodes, key=lambda n: rng.random())
    infos = [helper.make_tensor_value_info(o, m.values[o][0], None) for o in dict.fromkeys(outputs)]
    graph = helper.make_graph(nodes, "g", inputs, infos, m.constants)
    if ir_version == 3:
        for tensor in m.constants:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    imports = [helper.make_opsetid("", m.opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, functions=m.functions)


def feeds(model: ModelProto, n: int, m: int, seed: int) -> dict[str, Any]:
    """Inputs at these sizes, with zeros, -0.0 and negative numbers among them."""
    rng = np.random.default_rng(seed)
    known = {tensor.name for tensor in model.graph.initializer}
    result = {}
    for info in model.graph.input:
        if info.name in known:
            continue
        tensor = info.type.tensor_type
        shape = [{"N": n, "M": m}.get(d.dim_param, d.dim_value) for d in tensor.shape.dim]
        if tensor.elem_type == F:
            result[info.name] = rng.choice(np.array([0.0, -0.0, 1.0, -1.5, 2.5, 3.0], np.float32), shape)
        elif tensor.elem_type == I64:
            result[info.name] = np.asarray(rng.integers(-1, 4, shape), dtype=np.int64)
        else:
            result[info.name] = np.array(rng.integers(0, 2, shape), dtype=bool)
    return result
