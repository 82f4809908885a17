"""The real values of tensors inside a model: what ONNX Runtime computes, with optimizations off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto

from onnxfix.errors import ModelError, OnnxfixError
from onnxfix.files import saving
from onnxfix.model import Model
from onnxfix.reduction import case as cases
from onnxfix.reduction.case import Case
from onnxfix.reduction.child import Ran
from onnxfix.sandbox import shared

CHILD = "onnxfix.reduction.child"
_KEPT = 512 << 20  # bytes of values that are remembered
_APART = 8  # tensors that are computed one by one where all at once fail


class Values:
    """Values of inner tensors on demand. ``step`` is the time limit of one run in seconds, ``scratch`` a folder."""

    def __init__(self, scratch: Path, step: float = 300.0) -> None:
        self.scratch, self.step = scratch, step
        self.worker = shared("reduction")
        self._known: dict[str, Any] = {}
        self._size = 0
        self.runs = 0

    def forget(self) -> None:
        """Forget everything: inputs or weights have changed."""
        self._known.clear()
        self._size = 0

    def of(self, case: Case, names: Sequence[str]) -> dict[str, Any] | None:
        """The values of these tensors of the main graph; None where one of them cannot be computed."""
        found = {name: self._at_hand(case, name) for name in names}
        missing = [name for name, value in found.items() if value is None]
        if missing:
            ran = self._computed(case, missing)
            if ran is None:
                return None
            found.update(ran)
        return found

    def _at_hand(self, case: Case, name: str) -> Any:
        if name in case.inputs:
            return case.inputs[name]
        if name in self._known:
            return self._known[name]
        stored = next((one for one in case.model.graph.initializer if one.name == name), None)
        return cases.array_of(stored) if stored is not None else None

    def _computed(self, case: Case, names: list[str]) -> dict[str, Any] | None:
        ran = self.run(part_for(case, names))
        if ran.error and 1 < len(names) <= _APART:
            each = [self.run(part_for(case, [name])) for name in names]
            values = {name: value for one in each for name, value in one.values.items()}
        else:
            values = dict(ran.values)
        for name, value in values.items():
            size = getattr(value, "nbytes", 0)
            if self._size + size <= _KEPT:
                self._known[name], self._size = value, self._size + size
        return values if all(values.get(name) is not None for name in names) else None

    def run(self, case: Case) -> Ran:
        """Run a case with ONNX Runtime on the CPU. A crash or a time limit is an error of it."""
        path = self.scratch / "values.onnx"
        try:
            write(case.model, path)
        except OnnxfixError as error:
            return Ran(error=str(error), lacking=True)
        self.runs += 1
        outcome = self.worker.call(f"{CHILD}:run", timeout=self.step, path=str(path), feed=dict(case.inputs))
        if outcome.ok:
            ran: Ran = outcome.value
            return ran
        return Ran(error=outcome.message, status=outcome.status.upper(), stage="run")


def write(model: ModelProto, path: Path) -> None:
    """Write a model; what does not fit into one protobuf goes to a file beside it.

    Raises:
        OnnxfixError: it cannot be written.
    """
    path.unlink(missing_ok=True)  # a new inode, so that nothing takes it for the last one
    saving.save(model, path, path.with_name(path.name + ".data"))


def part_for(case: Case, names: Sequence[str]) -> Case:
    """The part of a case that computes these tensors, without declared types, which may be wrong."""
    graph = case.model.graph
    kept = cases.upstream(graph, names)
    model = cases.part(case.model, kept, [ValueInfoProto(name=name) for name in names])
    del model.graph.value_info[:]
    return case.with_model(model)


class Facts:
    """What is known of the tensors of a model without running it: types and symbolic shapes, by name."""

    def __init__(self, model: ModelProto, base_dir: Path | None = None) -> None:
        self._types: dict[str, tuple[int, tuple[Any, ...] | None]] = {}
        try:
            known = Model(model, base_dir)
            self._read(known)
        except ModelError:  # what is known to be wrong is not a graph that shapes can be derived for
            return

    def _read(self, known: Model) -> None:
        for name, value in known.main.values.items():
            elem, shape = known.shapes.elem_type(value), known.shapes.shape(value)
            if elem:
                self._types[name] = elem, shape

    def elem(self, name: str) -> int:
        """Element type; 0 where it is unknown."""
        return self._types.get(name, (0, None))[0]

    def info(self, name: str, value: Any, *, dynamic: bool) -> ValueInfoProto:
        """The declaration of a tensor of this value; ``dynamic``: with symbols where its size depends on the inputs."""
        if not isinstance(value, np.ndarray):
            return self._unvalued(name)
        found = cases.info_of(name, value)
        shape = self._types.get(name, (0, None))[1]
        if dynamic and shape is not None and len(shape) == value.ndim:
            for number, (dim, axis) in enumerate(zip(shape, found.type.tensor_type.shape.dim, strict=True)):
                if dim.value is None:
                    symbol = str(dim)
                    axis.dim_param = symbol if symbol.isidentifier() else f"{name}.{number}"
        return found

    def _unvalued(self, name: str) -> ValueInfoProto:
        found = ValueInfoProto(name=name)
        if self.elem(name):
            found.type.tensor_type.elem_type = self.elem(name)
            shape = self._types[name][1]
            if shape is not None:
                found.type.tensor_type.shape.SetInParent()
            for number, dim in enumerate(shape or ()):
                axis = found.type.tensor_type.shape.dim.add()
                if dim.value is not None:
                    axis.dim_value = dim.value
                else:
                    axis.dim_param = str(dim) if str(dim).isidentifier() else f"{name}.{number}"
        return found

    def made(self, name: str) -> np.ndarray[Any, Any] | None:
        """A value of the tensor's type and static shape, for one that cannot be computed; None where one is unknown."""
        elem, shape = self._types.get(name, (0, None))
        if not elem or elem == TensorProto.STRING or shape is None or any(dim.value is None for dim in shape):
            return None
        from onnx import helper  # lazy: seldom used

        dtype = helper.tensor_dtype_to_np_dtype(elem)
        sizes = tuple(dim.value for dim in shape)
        if "float" in dtype.name:
            return np.random.default_rng(0).normal(size=sizes).astype(dtype)
        return np.ones(sizes, dtype)


def declared(model: ModelProto) -> dict[str, ValueInfoProto]:
    """The declarations of the main graph's tensors, by name."""
    graph = model.graph
    return {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}
