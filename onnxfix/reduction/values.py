"""The real values of tensors inside a model: what ONNX Runtime computes, with optimizations off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.child import Reply
from onnxfix.errors import ModelError, OnnxfixError
from onnxfix.files import saving
from onnxfix.model import Model
from onnxfix.proof.compare.compare import Metrics, compare, different, identical, moved_by
from onnxfix.proof.compare.tolerance import RELATIVE, SHARE
from onnxfix.proof.readback.values import aligned
from onnxfix.reduction import case as cases
from onnxfix.reduction.case import Case
from onnxfix.runtime.sandbox import shared

_KEPT = 512 << 20  # most bytes of values that are cached
_APART = 8  # most tensors that are computed one by one if a run for all of them fails
_MOVES = 3
"""How many perturbed inputs must explain a difference before it counts as rounding."""


class Values:
    """Values of inner tensors on demand. ``step`` is the time limit of one run in seconds, ``scratch`` a folder."""

    def __init__(self, scratch: Path, step: float = 300.0) -> None:
        self.bench, self.path = Bench(shared("reduction"), scratch, step), scratch / "values.onnx"
        self._known: dict[str, Any] = {}
        self._size = 0

    def forget(self) -> None:
        """Forget everything: inputs or weights have changed."""
        self._known.clear()
        self._size = 0

    def of(self, case: Case, names: Sequence[str]) -> dict[str, Any] | None:
        """The values of these tensors of the main graph; None if any of them cannot be computed."""
        values: dict[str, Any] = {}
        for name in names:
            stored = next((one for one in case.model.graph.initializer if one.name == name), None)
            array = cases.array_of(stored) if stored is not None else None
            values[name] = case.inputs.get(name, self._known.get(name, array))
        missing = [name for name, value in values.items() if value is None]
        if missing:
            values.update(self._compute(case, missing))
        return values if all(value is not None for value in values.values()) else None

    def _compute(self, case: Case, names: list[str]) -> dict[str, Any]:
        reply = self.run(part_for(case, names))
        values = reply.values
        if reply.error and 1 < len(names) <= _APART:
            for name in names:
                values |= self.run(part_for(case, [name])).values
        for name, value in values.items():
            size = getattr(value, "nbytes", 0)
            if self._size + size <= _KEPT:
                self._known[name], self._size = value, self._size + size
        return values

    def run(self, case: Case) -> Reply:
        """Run a case with ONNX Runtime on the CPU. A crash or a timeout becomes the error of the reply."""
        try:
            write(case.model, self.path)
            return self.bench.run_file(self.path, case.inputs)
        except OnnxfixError as error:
            return Reply(error=str(error), unable=True)

    def runs(self, case: Case) -> bool:
        """Whether ONNX Runtime runs a case."""
        return not self.run(case).error


def differences(
    bench: Bench,
    path: Path,
    feed: Mapping[str, Any],
    truth: Mapping[str, Any],
    other: Mapping[str, Any],
    pairs: Sequence[tuple[str, str]],
    *,
    moves: int = _MOVES,
) -> list[Metrics]:
    """Where the values ``other`` differ from ``truth``, the values that the model file ``path`` computes from ``feed``.
    ``pairs`` are names in ``truth`` and in ``other`` of the same output.

    Perturbed inputs change the model's outputs. These changes widen the tolerance of the type, and a difference counts
    as rounding only if it is within tolerance for each of ``moves`` perturbations: a value that is rounded to fewer
    bits may be rounded the other way by chance.
    """
    both = {name: aligned(truth.get(name), other.get(theirs)) for name, theirs in pairs}
    if all(identical(*pair) for pair in both.values()):
        return []
    beyond: dict[str, list[Metrics]] = {}
    for seed in range(moves):
        moved = bench.run_file(path, feed, moved=RELATIVE, seed=seed).values
        for name, (a, b) in both.items():
            slack = SHARE * moved_by(name, truth.get(name), moved.get(name, truth.get(name)))
            beyond[name] = beyond.get(name) or different(compare(name, a, b, exact=False, slack=slack))
    return [metric for metrics in beyond.values() for metric in metrics]


def write(model: ModelProto, path: Path) -> None:
    """Write a model; what does not fit into one protobuf goes to a file beside it.

    Raises:
        OnnxfixError: it cannot be written.
    """
    path.unlink(missing_ok=True)  # a new inode, so that no cache confuses the new file with the old file
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
            for name, value in known.main.values.items():
                if elem := known.shapes.elem_type(value):
                    self._types[name] = elem, known.shapes.shape(value)
        except ModelError:  # shapes cannot be derived for an invalid graph
            return

    def elem(self, name: str) -> int:
        """Element type; 0 if unknown."""
        return self._types.get(name, (0, None))[0]

    def info(self, name: str, value: Any, *, dynamic: bool) -> ValueInfoProto:
        """The declaration of a tensor, with the type and shape of ``value``, or with the known facts if ``value`` is
        not an array. ``dynamic``: use symbols for sizes that depend on the inputs."""
        elem, shape = self._types.get(name, (0, None))
        if isinstance(value, np.ndarray):
            info = cases.info_of(name, value)
            dynamic = dynamic and shape is not None and len(shape) == value.ndim
        else:
            info, dynamic = ValueInfoProto(name=name), True
            if elem:
                sizes = None if shape is None else [dim.value for dim in shape]
                info = helper.make_tensor_value_info(name, elem, sizes)
        if dynamic:
            for number, (dim, axis) in enumerate(
                zip(shape or (), info.type.tensor_type.shape.dim, strict=False)
            ):
                if dim.value is None:
                    axis.dim_param = str(dim) if str(dim).isidentifier() else f"{name}.{number}"
        return info

    def made(self, name: str) -> np.ndarray[Any, Any] | None:
        """A made-up value for a tensor that cannot be computed; None if its type or static shape is unknown."""
        elem, shape = self._types.get(name, (0, None))
        if not elem or elem == TensorProto.STRING or shape is None or any(dim.value is None for dim in shape):
            return None
        dtype = helper.tensor_dtype_to_np_dtype(elem)
        sizes = tuple(dim.value for dim in shape)
        if "float" in dtype.name:
            return np.random.default_rng(0).normal(size=sizes).astype(dtype)
        return np.ones(sizes, dtype)


def declared(model: ModelProto) -> dict[str, ValueInfoProto]:
    """The declarations of the main graph's tensors, by name."""
    graph = model.graph
    return {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}
