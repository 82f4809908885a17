"""Single operators and small groups of them on the values of a host, in the form of its opset."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from random_models.pieces import Dims, F, Host, Value

I64, B, F16, D = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT16, TensorProto.DOUBLE
_UNARY = ("Abs", "Ceil", "Exp", "Floor", "Neg", "Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "LeakyRelu", "Elu",
          "Identity", "Identity", "Dropout", "HardSigmoid", "Sqrt")  # fmt: skip
_NEWER = {"Erf": 9, "Sign": 9, "Sinh": 9, "Cosh": 9, "Round": 11, "HardSwish": 14, "Gelu": 20, "Mish": 18}
_FIRST = np.array([0])
_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean")


def unary(host: Host) -> None:
    """An element-wise operator."""
    x = host.any_float()
    newer = [name for name, since in _NEWER.items() if since <= host.opset]
    host.node(host.rng.choice((*_UNARY, *newer)), [x.name], x.elem, x.dims)


def binary(host: Host) -> None:
    """An operator of two: with a weight that broadcasts, with a number, or with a value of the same sizes."""
    x = host.any_float()
    op = host.rng.choice(_BINARY)
    same = [one for one in host.among(F) if one.dims == x.dims and x.dims is not None]
    kind = host.rng.choice(("weight", "number", "value"))
    if kind == "value":
        other = host.rng.choice(same or [x]).name
    elif kind == "weight" and x.dims and isinstance(x.dims[-1], int):
        other = host.constant(_numbers(host, x.dims[-1]))
    else:
        number = host.rng.choice((0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 1e-5))
        other = host.constant(np.full(host.rng.choice(((), (1,))), number, np.float32))
    dims = x.dims if x.dims or kind != "weight" else None
    if x.dims == ():
        dims = None
    names = [x.name, other]
    if host.chance(0.3):
        names.reverse()
    host.node(op, names, F, dims)


def _numbers(host: Host, *dims: int) -> np.ndarray:
    kind = host.rng.choice(("random", "random", "ones", "zeros", "equal"))
    rng = np.random.default_rng(host.rng.randrange(1 << 30))
    made = {"ones": np.ones(dims), "zeros": np.zeros(dims), "equal": np.full(dims, 0.5)}
    return made.get(kind, rng.standard_normal(dims)).astype(np.float32)


def cast(host: Host) -> None:
    """A Cast, or a chain of them back to float."""
    x = host.any_float()
    kinds = [I64, F16, D, F, TensorProto.INT32, B]
    middle = host.rng.choice(kinds)
    name = host.node("Cast", [x.name], middle, x.dims, to=middle)
    if host.chance(0.8):
        host.node("Cast", [name], F, x.dims, to=F)


def transpose(host: Host) -> None:
    """A Transpose, often two in a row."""
    x = host.any_float()
    if not x.dims:
        return
    for _ in range(host.rng.choice((1, 1, 2))):
        order = list(range(len(x.dims or ())))
        host.rng.shuffle(order)
        dims = tuple((x.dims or ())[axis] for axis in order)
        x = host.values[host.node("Transpose", [x.name], F, dims, perm=order)]


def reshape(host: Host) -> None:
    """A Reshape: to its own sizes, flat, or with 0 and -1; with a weight or with what Shape gives."""
    x = host.any_float()
    if not x.dims:
        return
    kind = host.rng.choice(("flat", "zero", "shape", "expanded"))
    target: list[int] = [-1]
    dims: Dims = (None,)
    if kind == "zero":
        target, dims = [0] * (len(x.dims) - 1) + [-1], x.dims
    elif kind == "expanded":
        target, dims = [0, -1, 1], (x.dims[0], None, 1)
    if kind == "shape":
        shape = host.node("Shape", [x.name], I64, (len(x.dims),))
        host.node("Reshape", [x.name, shape], F, x.dims)
    else:
        host.node("Reshape", [x.name, host.constant(np.array(target, np.int64))], F, dims)


def matmul(host: Host) -> None:
    """A MatMul with a weight, with or without a bias, or a Gemm."""
    x = host.any_float()
    if not x.dims or not isinstance(x.dims[-1], int):
        return
    inner, outer = x.dims[-1], host.rng.choice((1, 2, 4, 8))
    weight = host.constant(_numbers(host, inner, outer))
    dims = (*x.dims[:-1], outer)
    if len(x.dims) == 2 and host.chance(0.5):
        bias = host.constant(_numbers(host, outer))
        host.node("Gemm", [x.name, weight, bias], F, dims, alpha=host.rng.choice((1.0, 0.5)))
        return
    made = host.node("MatMul", [x.name, weight], F, dims)
    if host.chance(0.6):
        host.node("Add", [made, host.constant(_numbers(host, outer))], F, dims)


def conv(host: Host) -> None:
    """A Conv over an input of its own, with what follows it in networks."""
    channels, out = host.rng.choice((1, 2, 4)), host.rng.choice((2, 4))
    x = host.add_input(F, (host.rng.choice((1, 2, "N0")), channels, 8, 8))
    weight = host.constant(_numbers(host, out, channels, 3, 3))
    pads = host.rng.choice(([1, 1, 1, 1], [0, 0, 0, 0]))
    size = 8 if pads[0] else 6
    dims: Dims = (host.values[x].dims[0], out, size, size)  # type: ignore[index]
    y = host.node("Conv", [x, weight], F, dims, pads=pads)
    if host.chance(0.5):
        parts = [host.constant(np.abs(_numbers(host, out)) + np.float32(0.5)) for _ in range(4)]
        y = host.node("BatchNormalization", [y, *parts], F, dims)
    if host.chance(0.5):
        y = host.node("Relu", [y], F, dims)
    if host.chance(0.5):
        half = (*dims[:2], size // 2, size // 2)
        pool = host.rng.choice(("MaxPool", "AveragePool"))
        y = host.node(pool, [y], F, half, kernel_shape=[2, 2], strides=[2, 2])
    if host.chance(0.3):
        host.node("GlobalAveragePool", [y], F, (*dims[:2], 1, 1))


def reduce(host: Host) -> None:
    """A reduction, with axes as the opset has them."""
    x = host.any_float()
    if not x.dims:
        return
    op = host.rng.choice(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2"))
    axis, keep = host.rng.randrange(len(x.dims)), host.rng.randint(0, 1)
    shown = axis - len(x.dims) if host.chance(0.5) and host.opset >= 11 else axis
    dims = tuple(1 if at == axis else d for at, d in enumerate(x.dims) if keep or at != axis)
    if host.opset >= (13 if op == "ReduceSum" else 18):
        axes = host.constant(np.array([shown], np.int64))
        host.node(op, [x.name, axes], F, dims, keepdims=keep)
    else:
        host.node(op, [x.name], F, dims, axes=[shown], keepdims=keep)


def squeeze(host: Host) -> None:
    """An Unsqueeze and the Squeeze that takes it back, perhaps with something between them."""
    x = host.any_float()
    if x.dims is None or len(x.dims) > 4:
        return
    wide = (1, *x.dims)
    y = host.set_by(13, "Unsqueeze", x.name, F, wide, axes=_FIRST)
    if host.chance(0.4):
        y = host.node("Relu", [y], F, wide)
    if host.chance(0.7):
        host.set_by(13, "Squeeze", y, F, x.dims, axes=_FIRST)


def concat(host: Host) -> None:
    """A Concat of a value with itself or another of its sizes; of one alone, too."""
    x = host.any_float()
    if not x.dims:
        return
    same = [one.name for one in host.among(F) if one.dims == x.dims]
    names = [host.rng.choice(same) for _ in range(host.rng.choice((1, 2, 3)))]
    axis = host.rng.randrange(len(x.dims))
    size = x.dims[axis]
    whole = size * len(names) if isinstance(size, int) else None
    host.node("Concat", names, F, tuple(whole if at == axis else d for at, d in enumerate(x.dims)), axis=axis)


def slices(host: Host) -> None:
    """A Slice of the first axis: of nothing, of all, of a part, backwards."""
    x = host.any_float()
    if not x.dims:
        return
    start, end = host.rng.choice(((0, 2**31 - 1), (0, 1), (0, -1), (-1, 2**31 - 1)))
    dims: Dims = (x.dims[0] if end > 1 and not start else None, *x.dims[1:])
    starts, ends = np.array([start]), np.array([end])
    host.set_by(10, "Slice", x.name, F, dims, starts=starts, ends=ends, axes=_FIRST)


def shapes(host: Host) -> None:
    """The arithmetic of sizes that exporters write: Shape, Gather, Unsqueeze, Concat, Reshape."""
    x = host.any_float()
    if x.dims is None or len(x.dims) < 2:
        return
    shape = host.node("Shape", [x.name], I64, (len(x.dims),))
    index = host.constant(np.array(0, np.int64))
    first = host.node("Gather", [shape, index], I64, ())
    one = host.set_by(13, "Unsqueeze", first, I64, (1,), axes=_FIRST)
    rest = host.constant(np.array([-1], np.int64))
    target = host.node("Concat", [one, rest], I64, (2,), axis=0)
    host.node("Reshape", [x.name, target], F, (x.dims[0], None))


def softmax(host: Host) -> None:
    """A Softmax or LogSoftmax over the last axis."""
    x = host.any_float()
    if x.dims:
        op = host.rng.choice(("Softmax", "Softmax", "LogSoftmax"))
        host.node(op, [x.name], F, x.dims, axis=len(x.dims) - 1)


def choose(host: Host) -> None:
    """A comparison, and what it selects."""
    x = host.any_float()
    if host.opset < 9:
        return
    zero = host.constant(np.array(0.25, np.float32))
    mask = host.node(host.rng.choice(("Greater", "Less")), [x.name, zero], B, x.dims)
    if host.chance(0.4):
        mask = host.node("Not", [mask], B, x.dims)
    host.node("Where", [mask, x.name, host.rng.choice((zero, x.name))], F, x.dims)


def clip(host: Host) -> None:
    """A Clip in the form of the opset."""
    x = host.any_float()
    low, high = sorted(host.rng.sample((-1.0, 0.0, 1.0, 6.0), 2))
    host.set_by(11, "Clip", x.name, F, x.dims, min=np.array(low, np.float32), max=np.array(high, np.float32))


def pad(host: Host) -> None:
    """A Pad of the last axis, of nothing at times."""
    x = host.any_float()
    if not x.dims:
        return
    more = host.rng.choice((0, 1, 2))
    pads = [0] * (2 * len(x.dims) - 1) + [more]
    last = x.dims[-1]
    dims = (*x.dims[:-1], last + more if isinstance(last, int) else last if not more else None)
    host.set_by(11, "Pad", x.name, F, dims, pads=np.array(pads))


def expand(host: Host) -> None:
    """An Expand to no more than the value's sizes, or to one axis more; before opset 8 nothing."""
    x = host.any_float()
    if x.dims is None or host.opset < 8:
        return
    target, dims = host.rng.choice((([1], x.dims or (1,)), ([2] + [1] * len(x.dims), (2, *x.dims))))
    host.node("Expand", [x.name, host.constant(np.array(target, np.int64))], F, dims)


def quantize(host: Host) -> None:
    """A pair of QuantizeLinear and DequantizeLinear."""
    x = host.any_float()
    if host.opset < 10:
        return
    kind = host.rng.choice((np.uint8, np.int8))
    scale, zero = host.constant(np.array(0.1, np.float32)), host.constant(np.array(3, kind))
    elem = TensorProto.UINT8 if kind is np.uint8 else TensorProto.INT8
    small = host.node("QuantizeLinear", [x.name, scale, zero], elem, x.dims)
    host.node("DequantizeLinear", [small, scale, zero], F, x.dims)


def normalize(host: Host) -> None:
    """A normalization of the last axis, whole or in its parts."""
    x = host.any_float()
    if not x.dims or not isinstance(x.dims[-1], int):
        return
    scale, bias = (host.constant(_numbers(host, x.dims[-1])) for _ in range(2))
    if host.opset >= 17 and host.chance(0.5):
        host.node("LayerNormalization", [x.name, scale, bias], F, x.dims, axis=-1)
        return
    narrow = (*x.dims[:-1], 1)
    if host.opset >= 18:
        axes = [host.constant(np.array([-1], np.int64))]
        attributes = {}
    else:
        axes, attributes = [], {"axes": [len(x.dims) - 1]}
    mean = host.node("ReduceMean", [x.name, *axes], F, narrow, keepdims=1, **attributes)
    moved = host.node("Sub", [x.name, mean], F, x.dims)
    square = host.node("Mul", [moved, moved], F, x.dims)
    spread = host.node("ReduceMean", [square, *axes], F, narrow, keepdims=1, **attributes)
    epsilon = host.constant(np.array(1e-5, np.float32))
    root = host.node("Sqrt", [host.node("Add", [spread, epsilon], F, narrow)], F, narrow)
    scaled = host.node("Mul", [host.node("Div", [moved, root], F, x.dims), scale], F, x.dims)
    host.node("Add", [scaled, bias], F, x.dims)


def alike(host: Host) -> None:
    """The last node once more, with another name for its output."""
    if not host.nodes or len(host.nodes[-1].output) != 1 or host.nodes[-1].output[0] not in host.values:
        return
    last = host.nodes[-1]
    found = host.values[last.output[0]]
    host.nodes.append(type(last).FromString(last.SerializeToString()))
    name = host.fresh("again")
    host.nodes[-1].output[0] = name
    host.values[name] = Value(name, found.elem, found.dims)


OPERATORS: tuple[Callable[[Host], None], ...] = (
    unary, unary, binary, binary, cast, transpose, reshape, matmul, conv, reduce, squeeze, concat, slices, shapes,
    softmax, choose, clip, pad, expand, quantize, normalize, alike,
)  # fmt: skip
