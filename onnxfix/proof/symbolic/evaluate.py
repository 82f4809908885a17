"""Computes the tensors of a graph on demand: control flow, sequences, constants, and operators as black boxes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    helper,
    numpy_helper,
)

from onnxfix.files.tensors import nbytes
from onnxfix.files.walk import captures, domain_of, subgraphs
from onnxfix.graph.signatures import schema_of
from onnxfix.proof.symbolic import hashes
from onnxfix.proof.symbolic.calls import OPERATORS, Call, Value, fold, versions_of
from onnxfix.proof.symbolic.inference import Kind, infer
from onnxfix.proof.symbolic.tables import tabulate
from onnxfix.proof.symbolic.tensor import (
    T,
    Tensor,
    Undecided,
    Weights,
    check_time,
    computed,
    constant,
    identify,
)

FOLDED = 1 << 24
"""Elements of known inputs up to which a call is computed by ONNX's reference implementation."""
ELEMENTS = 1 << 27
"""Elements that one tensor may have."""
_MOST_READ = 1 << 29
"""Bytes of weights that one model may have in memory."""
RANDOM = {
    *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"),
    *("Bernoulli", "Multinomial", "Dropout"),
}
"""Operators that may draw random numbers."""


Special = Callable[["Evaluator", "Frame", Call], Sequence[Value]]
SPECIAL: dict[str, Special] = {}
"""The operators that need more than their inputs: constants, and those with graphs (see ``control``)."""
_FOLD_THEMSELVES = (
    *("Cast", "CastLike", "QuantizeLinear", "Identity", "Shape", "Size", "Reshape", "Expand"),
    *("Squeeze", "Unsqueeze", "Concat", "ConstantOfShape", "OptionalGetElement", "OptionalHasElement"),
    *("SequenceConstruct", "SplitToSequence"),
)
"""Operators whose meaning computes known elements as well."""
_UNLIKE = {
    *("AveragePool", "GridSample", "LpNormalization", "LpPool", "MaxPool", "MaxUnpool", "PRelu", "Resize"),
}
"""Operators whose known results are not ONNX's in its reference implementation, which leaves NaN out of an average and
adds signed numbers for a norm."""
FAULTS = (ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError, AssertionError)
"""What a meaning raises for a call that ONNX does not allow."""
_LARGE = 1 << 20
"""Elements from which on a tensor of which nothing is known is told by its name instead of its hashes."""
_SHAPELESS = Kind(T.UNDEFINED, ())
"""Stands for the type and the shape of what an operator that is not ONNX's, or one after it, results in."""


class Table:
    """What a graph defines by name."""

    def __init__(self, graph: GraphProto) -> None:
        self.inputs = [one.name for one in graph.input]
        self.initializers = {one.name: one for one in graph.initializer}
        self.producers = {name: node for node in graph.node for name in node.output if name}
        self._nodes = list(graph.node)  # which keeps them alive, so that their ids stay theirs
        self._needs: dict[int, list[str]] = {}

    def origins(self, names: Iterable[str]) -> set[str]:
        """The names that this graph does not compute from which some tensors are computed, but for those of which only
        the shape counts."""
        waiting, seen, found = list(names), set[str](), set[str]()
        while waiting:
            name = waiting.pop()
            node = self.producers.get(name)
            if name in seen or (node is not None and node.op_type in ("Shape", "Size")):
                continue
            seen.add(name)
            if node is None:
                found.add(name)
            else:
                waiting += self.needs(node)
        return found

    def needs(self, node: NodeProto) -> list[str]:
        """The names whose values a node needs: its inputs, and what its subgraphs read."""
        if id(node) not in self._needs:
            self._needs[id(node)] = list(filter(None, dict.fromkeys(captures(node))))
        return self._needs[id(node)]


def check_names(graph: GraphProto, outer: Iterable[str] = ()) -> None:
    """Raise ``Undecided`` where a name is defined twice, or hides one of a graph around it, in which runtimes differ;
    and for sparse initializers."""
    if graph.sparse_initializer:
        raise Undecided("sparse initializers are not read")
    seen = set(outer)

    def define(names: Iterable[str]) -> None:
        for name in names:
            if name in seen:
                raise Undecided(f"{name} is defined twice, or hides a name outside of a subgraph")
            seen.add(name)

    define({one.name for one in graph.input} | {one.name for one in graph.initializer})
    for node in graph.node:
        for inner in subgraphs(node):
            check_names(inner, seen)
        define(filter(None, node.output))


class Frame:
    """The values of one graph in one call of it; ``values`` has what is known of them at the beginning, ``cut`` what
    stands in for a value instead of what computes it."""

    def __init__(
        self,
        side: Evaluator,
        table: Table,
        values: dict[str, Value],
        parent: Frame | None = None,
        cut: Callable[[str], Value | None] = lambda name: None,
    ) -> None:
        self.side, self.table, self.values, self.parent, self.cut = side, table, values, parent, cut
        self.failed: dict[str, Undecided] = {}

    def find(self, name: str) -> Value | None:
        """The value of a name, here or in the graphs around."""
        if name in self.values:
            return self.values[name]
        return self.parent.find(name) if self.parent is not None else None

    def value(self, name: str) -> Value:
        """The value of a name, computed if need be. What cannot be computed is tried once."""
        waiting, begun = [name], set[str]()
        try:
            while waiting:
                if self._advance(waiting, begun):
                    waiting.pop()
        except Undecided as error:
            for one in {*begun.intersection(waiting), waiting[-1]}:
                node = self.table.producers.get(one)
                self.failed |= dict.fromkeys(node.output if node is not None else [one], error)
            raise
        found = self.find(name)
        assert found is not None
        return found

    def _advance(self, waiting: list[str], begun: set[str]) -> bool:
        """Compute the last name of those ``waiting``, or append what it needs; returns whether its value is known."""
        current = waiting[-1]
        if self.find(current) is not None:
            return True
        if (known := self.cut(current)) is not None:
            self.values[current] = known
        elif current in self.failed:
            raise self.failed[current]
        elif current in self.table.initializers:
            self.values[current] = self.side.initializer(self.table.initializers[current])
        elif (node := self.table.producers.get(current)) is not None:
            missing = [one for one in self.table.needs(node) if self.find(one) is None]
            if missing and current in begun:
                raise Undecided(f"{current} depends on itself")
            begun.add(current)
            waiting.extend(missing)
            if not missing:
                self.side.run(self, node)
        elif self.parent is None:
            raise Undecided(f"{current} is not defined")
        else:
            self.parent.value(current)
        return False

    def depth(self) -> int:
        """How many graphs are around this one."""
        return 0 if self.parent is None else 1 + self.parent.depth()


class Evaluator:
    """Computes tensors of one model without local functions. ``as_real``: without rounding."""

    def __init__(self, model: ModelProto, weights: Weights, *, as_real: bool = False) -> None:
        self.versions = versions_of(model)
        self._weights, self._as_real = weights, as_real
        self.elements = self._read = 0

    def initializer(self, proto: TensorProto) -> Tensor:
        """An initializer's elements, which stay in memory."""
        self._read += nbytes(proto)
        if self._read > _MOST_READ:
            raise Undecided(f"{proto.name}: {self._read / 1e9:.1f} GB of weights would have to be read")
        return constant(self._weights.read(proto), proto.data_type)

    def run(self, frame: Frame, node: NodeProto) -> None:
        """Compute a node's outputs, whose inputs the frame has."""
        domain = domain_of(node.domain)
        inputs = [frame.find(name) if name else None for name in node.input]
        call = Call(node, self.versions.get(domain, 0), inputs, self._as_real)
        check_time()
        try:
            outputs = self._outputs(frame, call, domain)
        except FAULTS as error:
            raise call.stuck(f"{type(error).__name__}: {error}") from error
        for name, value in zip(node.output, outputs, strict=False):
            if name and isinstance(value, Tensor):
                self.elements += value.size
                if value.size > ELEMENTS:
                    raise call.stuck(f"{value.size} elements are too many")
            if name:
                frame.values[name] = value
        missing = [name for name in node.output if name and name not in frame.values]
        if missing:
            raise call.stuck(f"its output {missing[0]} is not computed")

    def _outputs(self, frame: Frame, call: Call, domain: str) -> Sequence[Value]:
        if domain or _is_shapeless(call):
            return self.black_box(frame, call)
        if call.name in SPECIAL:
            return SPECIAL[call.name](self, frame, call)
        folded = self._fold(call)
        if folded is not None:
            return folded
        aligned = call.version >= 7 or call.name == "Gemm" or not call.attributes.get("broadcast")
        meaning = OPERATORS.get(call.name) if aligned else None
        result = meaning(call) if meaning is not None else None
        if result is None or isinstance(result, Call):
            return self.black_box(frame, result or call)
        return [tabulate(call, result)] if isinstance(result, Tensor) else result

    def _fold(self, call: Call) -> Sequence[Value] | None:
        """The outputs for known inputs, where ONNX's reference implementation is to be relied on."""
        arrays = [one.known if isinstance(one, Tensor) else None for one in call.inputs]
        sizes = [one.size for one in arrays if one is not None]
        if not sizes or len(sizes) < sum(one is not None for one in call.inputs) or sum(sizes) > FOLDED:
            return None
        if call.name in {*_FOLD_THEMSELVES, *_UNLIKE, *RANDOM}:
            return None
        try:
            return [constant(np.asarray(one)) if one is not None else () for one in fold(call, arrays)]
        except (Undecided, ValueError, TypeError, KeyError):
            return None

    def black_box(self, frame: Frame, call: Call) -> Sequence[Value]:
        """Random functions of all inputs and attributes, by position; of an operator whose meaning is not known."""
        if call.name in RANDOM and frame.parent is not None:
            raise call.stuck("it may draw other numbers each time")
        if subgraphs(call.node):
            raise call.stuck("an operator with graphs whose meaning is not known")
        domain = domain_of(call.node.domain)
        schema = schema_of(call.name, call.version, domain)
        since = schema.since_version if schema is not None else call.version
        attributes = sorted((name, repr(value)) for name, value in call.attributes.items())
        dtypes = [one.dtype if isinstance(one, Tensor) else None for one in call.inputs]
        name = f"{domain} {call.name} {since} {attributes} {dtypes} {len(call.node.output)}"
        if call.name in RANDOM:
            name += f" {list(call.node.output)}"
        recipe = identify(name.encode(), *map(_key, call.inputs))

        @cache
        def content() -> hashes.Words:
            digests = [summarize(one) for one in call.inputs] or [np.zeros((2,), np.uint64)]
            return hashes.mix(name, *digests)

        results: list[Value] = []
        kinds = [_SHAPELESS] * len(call.node.output) if _is_shapeless(call) else self._types(call)
        for place, (output, kind) in enumerate(zip(call.node.output, kinds, strict=True)):
            kind = _SHAPELESS if kind is None and schema is None else kind
            if output and kind is None:
                # Integers, booleans and scalars are what decides shapes.
                deciding = [
                    index
                    for index, one in enumerate(call.inputs)
                    if isinstance(one, Tensor) and (one.is_integer or not one.shape)
                ]
                raise call.stuck("the shape of its result is not known before the model runs", *deciding)
            same = identify(recipe, str((place, kind)).encode())
            results.append(spread(f"output {place}", content, *kind, same) if output and kind else ())
        return results

    def _types(self, call: Call) -> list[Kind | None]:
        """Element type and shape of each output, as ONNX infers them for this node alone."""
        node = NodeProto()
        node.CopyFrom(call.node)
        del node.input[:], node.output[:]
        model = ModelProto(ir_version=10)
        for place, one in enumerate(call.inputs):
            node.input.append("" if one is None else f"i{place}")
            if one is not None and not isinstance(one, Tensor):
                raise call.stuck("a sequence goes into an operator whose meaning is not known")
            if one is not None and one.known is not None and one.dtype == T.INT64:
                model.graph.initializer.append(
                    numpy_helper.from_array(np.ascontiguousarray(one.known), f"i{place}")
                )
            elif one is not None:
                model.graph.input.append(helper.make_tensor_value_info(f"i{place}", one.dtype, one.shape))
        node.output.extend(f"o{place}" if name else "" for place, name in enumerate(call.node.output))
        model.graph.node.append(node)
        model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in node.output if name)
        model.opset_import.extend(
            OperatorSetIdProto(domain=domain, version=version)
            for domain, version in self.versions.items()
            if version
        )
        kinds = _infer(model.SerializeToString())
        return [kinds.get(name) for name in node.output]

    def branch(self, frame: Frame, graph: GraphProto, values: Mapping[str, Value]) -> list[Value]:
        """The outputs of a subgraph, for values of its inputs."""
        inner = Frame(self, Table(graph), dict(values), frame)
        try:
            return [inner.value(one.name) for one in graph.output]
        except Undecided as error:
            raise Undecided(str(error), list(inner.table.origins(error.names))) from error


def _is_shapeless(call: Call) -> bool:
    """Whether an input is the result of an operator that is not ONNX's, and has no known type and shape."""
    return any(isinstance(one, Tensor) and one.dtype == T.UNDEFINED for one in call.inputs)


@lru_cache(256)
def _infer(data: bytes) -> dict[str, Kind]:
    """Types and shapes in a model, by its bytes, whose inputs all have a shape."""
    model = ModelProto.FromString(data)
    sizes = {one.name: [dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in model.graph.input}
    return infer(model, {name: tuple(shape) for name, shape in sizes.items()})


def summarize(value: Value | None) -> hashes.Words:
    """One hash of a whole value: words of shape (2,)."""
    if value is None:
        return hashes.mix("absent", np.zeros((2,), np.uint64))
    if isinstance(value, Tensor):
        value = value.settled()
        if value.atom and value.size > _LARGE:
            content = np.array(hashes.key(f"tensor {value.atom}"), np.uint64)
        else:
            content = hashes.digest(value.words)
        return hashes.mix(f"{value.dtype} {value.shape}", content)
    return hashes.mix(f"sequence {len(value)}", *(summarize(one) for one in value))


def _key(value: Value | None) -> bytes:
    """What tells apart values that ``summarize`` tells apart."""
    if isinstance(value, Tensor):
        return str((value.dtype, value.shape)).encode() + value.settled().key
    return summarize(value).tobytes()


def spread(
    name: str, content: Callable[[], hashes.Words], dtype: int, shape: tuple[int, ...], recipe: bytes = b""
) -> Tensor:
    """A tensor of which each element is a function of ``content``, words of shape (2,), and of its place."""

    def compute() -> hashes.Words:
        positions = hashes.encode(np.arange(math.prod(shape))).reshape(2, *shape)
        return hashes.mix(name, content().reshape(2, *[1] * len(shape)), positions)

    return computed(dtype, shape, recipe, compute)
