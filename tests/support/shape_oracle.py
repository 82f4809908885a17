"""Judges inferred shapes, types and values by what ONNX Runtime or given outputs really have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx_cases import onnx_cases

from onnxfix.files import walk
from onnxfix.graph.overlay import Value
from onnxfix.model import Model
from onnxfix.shapes.shapes import Shapes
from onnxfix.shapes.symbols import Dim, evaluate
from support import ort


@dataclass
class Verdict:
    """What a comparison found: ``wrong`` in words, and how much was compared."""

    wrong: list[str] = field(default_factory=list)
    dims: int = 0
    undecided: int = 0
    values: int = 0
    ranks: int = 0
    unknown_ranks: int = 0
    unknown_types: int = 0

    def __iadd__(self, other: Verdict) -> Verdict:
        self.wrong += other.wrong
        for name in ("dims", "undecided", "values", "ranks", "unknown_ranks", "unknown_types"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


def run_all(proto: ModelProto, feeds: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """Every value of the main graph that a node makes, by name, from ONNX Runtime without optimizations."""
    copy = walk.copied(proto)
    present = {output.name for output in copy.graph.output}
    for node in copy.graph.node:
        for name in node.output:
            if name and name not in present:
                copy.graph.output.add().name = name
    session = ort.session(copy)
    names = [output.name for output in session.get_outputs()]
    wanted = {i.name for i in session.get_inputs()} | {i.name for i in session.get_overridable_initializers()}
    results = session.run(names, {k: v for k, v in feeds.items() if k in wanted})
    return dict(zip(names, results, strict=True))


def runtime_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises for a model that it does not take, or an execution that fails."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return (
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.NotImplemented,
        state.RuntimeException,
    )


def judge(
    proto: ModelProto, feeds: Mapping[str, Any], results: Mapping[str, Any], shapes: Shapes | None = None
) -> Verdict:
    """Compare what was inferred for ``proto`` with ``results`` (arrays by name) of an execution on ``feeds``.

    Symbols of graph inputs are bound to what was fed; a symbol that depends on data, to the first value it names.
    """
    shapes = shapes or Shapes(Model(proto))
    judge_ = _Judge(shapes)
    model = next((value.scope.model for value in shapes._infos), None)
    if model is None:
        return judge_.verdict
    known = {**feeds, **results}
    for value in model.main.inputs:
        if value.name in feeds:
            judge_.compare(value, feeds[value.name], binding_only=True)
    for node in model.main.topological():
        for output in node.outputs:
            if output is not None and output.name in known:
                judge_.compare(output, known[output.name])
    return judge_.verdict


class _Judge:
    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.env: dict[str, int] = {}
        self.verdict = Verdict()

    def compare(self, value: Value, actual: Any, binding_only: bool = False) -> None:
        info = self.shapes.info(value)
        if isinstance(actual, TensorProto):
            actual = numpy_helper.to_array(actual)
        if info.kind != "tensor" or actual is None or isinstance(actual, (list, dict)):
            if isinstance(actual, list) and info.item is not None and not binding_only:
                self._items(value, actual)
            if isinstance(actual, np.ndarray) and info.kind in ("sequence", "map"):
                self.verdict.wrong.append(f"{value.name}: is a tensor, not a {info.kind}")
            return
        actual = np.asarray(actual)
        self._type(value, actual, binding_only)
        shape = self.shapes.shape(value)
        if shape is None:
            self.verdict.unknown_ranks += 1
            return
        self.verdict.ranks += 1
        if len(shape) != actual.ndim:
            self.verdict.wrong.append(
                f"{value.name}: rank {len(shape)}, really {actual.ndim} {_producer(value)}"
            )
            return
        for axis, dim in enumerate(shape):
            self._dim(f"{value.name}.{axis}", dim, actual.shape[axis], value)
        self._value(value, actual)

    def _items(self, value: Value, actual: list[Any]) -> None:
        item = self.shapes.info(value).item
        for array in actual:
            if item is None or item.shape is None or not isinstance(array, np.ndarray):
                continue
            if len(item.shape) != array.ndim:
                self.verdict.wrong.append(f"{value.name}[]: rank {len(item.shape)}, really {array.ndim}")
                continue
            for axis, dim in enumerate(item.shape):
                self._dim(f"{value.name}[].{axis}", dim, array.shape[axis], value)

    def _type(self, value: Value, actual: Any, binding_only: bool) -> None:
        elem = self.shapes.elem_type(value)
        if elem is None:
            self.verdict.unknown_types += not binding_only
            return
        expected = helper.tensor_dtype_to_np_dtype(elem)
        if actual.dtype.kind in "OUS":
            right = elem == onnx.TensorProto.STRING
        else:
            # ONNX Runtime hands out types that numpy lacks as integers of the same width.
            right = actual.dtype == expected or (
                expected.kind == "V" and actual.dtype.itemsize == expected.itemsize
            )
            right = right or (elem > 16 and actual.dtype.kind in "iuV")
        if not right:
            name = onnx.TensorProto.DataType.Name(elem)
            self.verdict.wrong.append(f"{value.name}: type {name}, really {actual.dtype} {_producer(value)}")

    def _dim(self, what: str, dim: Dim, actual: int, value: Value) -> None:
        self.verdict.dims += 1
        found = evaluate(dim, self.env)
        if found is None:
            if len(dim.symbols) == 1 and str(dim) in dim.symbols:
                self.env[str(dim)] = actual
            else:
                self.verdict.undecided += 1
                return
        elif found != actual:
            self.verdict.wrong.append(f"{what}: {dim} = {found}, really {actual} {_producer(value)}")
        if not dim.lo <= actual <= dim.hi:
            self.verdict.wrong.append(
                f"{what}: {dim} in [{dim.lo}, {dim.hi}], really {actual} {_producer(value)}"
            )

    def _value(self, value: Value, actual: Any) -> None:
        known = self.shapes.value(value)
        if known is None:
            return
        if known.shape != actual.shape:
            self.verdict.wrong.append(f"{value.name}: value of shape {known.shape}, really {actual.shape}")
            return
        self.verdict.values += 1
        for k, (dim, item) in enumerate(zip(known.data, actual.reshape(-1), strict=True)):
            self._dim(f"{value.name}[{k}]", dim, int(item), value)
            self.verdict.dims -= 1


def _producer(value: Value) -> str:
    return f"({value.producer.op_type})" if value.producer is not None else ""


def random_feeds(proto: ModelProto, sizes: Mapping[str, int], seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """An array for every input that has no default; integers and booleans are 0 or 1, so that indices are valid."""
    rng = np.random.default_rng(seed)
    defaults = {tensor.name for tensor in proto.graph.initializer}
    feeds = {}
    for info in proto.graph.input:
        if info.name in defaults:
            continue
        tensor = info.type.tensor_type
        dims = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        array = rng.integers(0, 2, dims) if dtype.kind in "iub" else rng.standard_normal(dims)
        feeds[info.name] = array.astype(dtype)
    return feeds


def symbolized(proto: ModelProto, inputs: Sequence[Any], constants: bool) -> ModelProto:
    """A copy in which no input's size is known; with ``constants``, small integer inputs become initializers."""
    copy = walk.copied(proto)
    kept = []
    defaults = {tensor.name for tensor in proto.graph.initializer}
    for info, array in zip(proto.graph.input, inputs, strict=False):
        if info.type.WhichOneof("value") != "tensor_type" or info.name in defaults:
            kept.append(info)
            continue
        if constants and isinstance(array, np.ndarray) and array.dtype.kind in "iub" and array.size < 64:
            copy.graph.initializer.append(numpy_helper.from_array(array, info.name))
            copy.graph.initializer[-1].data_type = info.type.tensor_type.elem_type
            continue
        fresh = walk.copied(info)
        for axis, dim in enumerate(fresh.type.tensor_type.shape.dim):
            dim.dim_param = f"{info.name}_{axis}"
        kept.append(fresh)
    del copy.graph.input[:]
    copy.graph.input.extend(kept)
    for output in copy.graph.output:
        if output.type.WhichOneof("value") == "tensor_type":
            output.type.tensor_type.ClearField("shape")
    return copy


def parse(text: str, opset: int = 17, extra: str = "", ir: int = 8) -> ModelProto:
    return onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}{extra}]>\n{text}')


def known(proto: ModelProto) -> tuple[Shapes, dict[str, Value]]:
    """The shapes of a model, and the values of its main graph by name."""
    model = Model(proto)
    return Shapes(model), model.main.values


def text_of(proto: ModelProto, name: str) -> str:
    """The dimensions of a value, as printed."""
    shapes, values = known(proto)
    shape = shapes.shape(values[name])
    return "unknown" if shape is None else "[" + ", ".join(map(str, shape)) + "]"


def judged(proto: ModelProto, *assignments: dict[str, int]) -> Verdict:
    """The comparison with ONNX Runtime, for each assignment of the symbols."""
    shapes = Shapes(Model(proto))
    total = Verdict()
    for seed, sizes in enumerate(assignments):
        feeds = random_feeds(proto, sizes, seed)
        total += judge(proto, feeds, run_all(proto, feeds), shapes)
    return total


def dims_of(proto: ModelProto) -> tuple[Dim, ...] | None:
    shapes, values = known(proto)
    return shapes.shape(values["y"])


MODES = ("static", "symbolic", "constants")


def judge_case(proto: ModelProto, inputs: Sequence[Any], outputs: Sequence[Any], mode: str) -> Verdict:
    """One model of ONNX's own with its data: outputs as given, what lies between as ONNX Runtime has it, if it runs."""
    feeds = {info.name: array for info, array in zip(proto.graph.input, inputs, strict=False)}
    given = {info.name: array for info, array in zip(proto.graph.output, outputs, strict=False)}
    if mode != "static":
        proto = symbolized(proto, inputs, constants=mode == "constants")
    try:
        found = run_all(proto, {k: v for k, v in feeds.items() if v is not None})
    except (*runtime_errors(), RuntimeError, ValueError):
        found = {}  # not every operator and type exists in ONNX Runtime: the given outputs are judged alone
    return judge(proto, feeds, {**found, **given})


def node_cases() -> list[Any]:
    """ONNX's 1,884 node models with inputs and expected outputs."""
    return list(onnx_cases().values())


def data_cases() -> Iterator[tuple[str, ModelProto, list[Any], list[Any]]]:
    """The models under onnx/backend/test/data, with data where there are some (else random)."""
    root = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for path in sorted(root.rglob("*.onnx")):
        proto = onnx.load(path)
        defaults = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
        folders = sorted(path.parent.glob("test_data_set_*")) or [None]
        for folder in folders:
            if folder is None:
                feeds = {**random_feeds(proto, {}, 0), **defaults}
                yield path.name, proto, [feeds.get(i.name) for i in proto.graph.input], []
                continue
            needed = [info for info in proto.graph.input if info.name not in defaults]
            read = {i.name: _read(folder / f"input_{k}.pb", i.type) for k, i in enumerate(needed)}
            inputs = [read.get(i.name, defaults.get(i.name)) for i in proto.graph.input]
            outputs = [_read(folder / f"output_{k}.pb", o.type) for k, o in enumerate(proto.graph.output)]
            yield path.parent.name, proto, inputs, outputs


def _read(path: Path, kind: onnx.TypeProto) -> Any:
    if not path.exists():
        return None
    if kind.WhichOneof("value") == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))
    if kind.WhichOneof("value") == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(path.read_bytes()))
    return numpy_helper.to_array(TensorProto.FromString(path.read_bytes()))
