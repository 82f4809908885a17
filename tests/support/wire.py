"""Models as bytes, by hand: also such as no library writes."""

from __future__ import annotations

from onnxfix.files.wire import prefix, varint


def field(number: int, content: bytes) -> bytes:
    """A field with a message or a text."""
    return prefix(number, len(content)) + content


def whole(number: int, value: int) -> bytes:
    """A field with a whole number, negative ones as protobuf has them."""
    return varint(number << 3) + varint(value & (1 << 64) - 1)


def times(number: int, content: bytes, size: int) -> bytes:
    """A field again and again, ``size`` bytes in all."""
    one = field(number, content)
    return one * (size // len(one))


def info(name: bytes, dims: bytes = field(1, whole(1, 1))) -> bytes:
    """A ValueInfoProto: float32, of one element."""
    return field(1, name) + field(2, field(1, whole(1, 1) + field(2, dims)))


def node(more: bytes = b"", op: bytes = b"Abs", output: bytes = b"y", read: bytes = b"x") -> bytes:
    """A NodeProto of one input and one output."""
    return field(1, read) + field(2, output) + field(4, op) + more


def graph(more: bytes = b"", nodes: bytes = field(1, node())) -> bytes:
    """A GraphProto with y = Abs(x)."""
    return nodes + field(2, b"g") + more + field(11, info(b"x")) + field(12, info(b"y"))


def model(inside: bytes = b"", more: bytes = b"", nodes: bytes = field(1, node())) -> bytes:
    """A ModelProto; ``inside`` are fields of its graph, ``more`` its own."""
    return whole(1, 8) + field(7, graph(inside, nodes)) + field(8, field(1, b"") + whole(2, 18)) + more


def function(name: bytes, more: bytes = b"", *calls: bytes) -> bytes:
    """A FunctionProto d::NAME(x) -> (y) that calls others of its domain, one after the other, or Abs."""
    ends = [b"x", *(b"v%d" % number for number in range(1, len(calls))), b"y"]
    each = zip(calls, ends[:-1], ends[1:], strict=False)
    body = b"".join(field(7, node(field(7, b"d"), one, out, read)) for one, read, out in each) or field(
        7, node()
    )
    opsets = field(9, field(1, b"") + whole(2, 18)) + field(9, field(1, b"d") + whole(2, 1))
    return field(1, name) + field(4, b"x") + field(5, b"y") + body + opsets + field(10, b"d") + more


def tensor(dims: tuple[int, ...] = (1,), more: bytes = field(9, bytes(4)), elem: int = 1) -> bytes:
    """A TensorProto named w, of float32 by default."""
    return b"".join(whole(1, one) for one in dims) + whole(2, elem) + field(8, b"w") + more
