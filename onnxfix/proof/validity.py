"""Whether the original and the fixed model are valid ONNX, by onnx's own checker, and what follows from it.

The checker is foreign native code, so that it runs in a child, on a model without its weights. It runs ONNX's own (C++)
shape inference, which hangs or crashes at a malformed Einsum and at SequenceMap; shapes here are never its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from onnxfix.errors import ModelError
from onnxfix.files import lazy, loading, tensors, walk
from onnxfix.graph import order
from onnxfix.runtime.sandbox import Outcome, Worker, forked, one_line
from onnxfix.shapes.ops.base import Unknown
from onnxfix.shapes.ops.linalg import einsum_terms


@dataclass(frozen=True)
class Checked:
    """The result of onnx.checker for one model.

    ``refused`` is its complaint. Where that is empty, it also ran with ``full_check``, which infers types and shapes:
    ``inference`` is that complaint, and ``skipped`` why that did not run. ``starved``: it could not run at all, since
    memory ran out.
    """

    refused: str = ""
    inference: str = ""
    skipped: str = ""
    starved: str = ""

    @property
    def complaint(self) -> str:
        """Why the model is not valid ONNX; empty where no complaint is known."""
        return self.refused or self.inference

    @property
    def unsorted(self) -> bool:
        """Whether the complaint is about the order of nodes; there may be others behind it."""
        return "must be topologically sorted" in self.refused

    @property
    def complete(self) -> bool:
        """Whether all checks ran, and passed."""
        return not (self.complaint or self.skipped or self.starved)


class Judged(NamedTuple):
    """onnx.checker's part of the check ``contract``: its status, and a line."""

    status: Literal["passed", "failed", "skipped"]
    words: str
    notes: tuple[str, ...] = ()


def ask(
    paths: Sequence[Path], *, timeout: float, memory_mb: int | None, worker: Worker | None = None
) -> tuple[Checked, ...]:
    """Run onnx.checker on each model file. ``timeout`` is in seconds, for each run.

    ``worker`` is a child that is needed anyway; without it a fork of this process is made. That copies each page to
    which this process writes then, and takes the longer the larger this process is.

    Crashes and hangs of ONNX's shape inference are not complaints: they happen with valid models.
    """
    with tempfile.TemporaryDirectory(prefix="onnxfix-", ignore_cleanup_errors=True) as folder:
        names = [str(path) for path in paths]
        limits: dict[str, Any] = {"timeout": timeout, "memory_mb": memory_mb}
        checks: list[Checked] = []
        full = Outcome("ok")
        for name in names:
            if full.status != "timeout":  # a hang is not waited for again
                if worker is not None:
                    full = worker.call(f"{__name__}:check", timeout=timeout, path=name, folder=folder)
                else:
                    full = forked(check, name, folder, **limits)
            plain = full if full.ok else forked(check, name, folder, False, **limits)
            if full.ok or (plain.ok and plain.value.refused):
                checks.append(plain.value)
            elif plain.ok:  # shape inference ended it
                checks.append(Checked(skipped=full.message))
            else:
                memory = plain.status == "memory"
                checks.append(Checked(starved=plain.message) if memory else Checked(plain.message))
        first, second = checks[0], checks[-1]
        if not second.inference or not first.complete:
            return tuple(checks)
        # An original that passes only because of the shapes that it declares does not count as passing: inference
        # complains about the fixed model with and without them.
        again = forked(unclaimed, names[0], **limits)
        if again.ok and not again.value:
            return tuple(checks)
        why = again.value if again.ok else again.message
        return (replace(first, skipped=f"without the shapes that it declares: {why}"), second)


def violated(path: Path, *, timeout: float, memory_mb: int | None = None) -> str:
    """How the model violates ONNX's specification, in a line; empty where it does not, or that is not known."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-", ignore_cleanup_errors=True) as folder:
        found = forked(violation, str(path), folder, timeout=timeout, memory_mb=memory_mb)
    return str(found.value) if found.ok else ""


def judge(checks: Sequence[Checked]) -> Judged:
    """The result for the fixed model. ``checks`` are of the original and, unless that is the same, the fixed model.

    A fixed model must pass what the original passes, ``full_check`` included where the original passes that.
    """
    first, second, single = checks[0], checks[-1], len(checks) == 1
    starved = next((one.starved for one in checks if one.starved), "")
    if starved:
        return Judged("skipped", f"onnx.checker did not run: {starved}")
    if single and second.refused:
        return Judged("skipped", f"the model is not valid ONNX: {second.refused}")
    if single and second.inference:
        return Judged("passed", f"onnx.checker passes, but not with full_check: {second.inference}")
    if second.refused and not first.refused:
        return Judged("failed", f"the new model does not pass onnx.checker: {second.refused}")
    if second.inference and first.complete:
        why = f"with full_check, and the original does: {second.inference}"
        return Judged("failed", f"the new model does not pass onnx.checker {why}")
    if first.complaint:
        return Judged("skipped" if second.refused else "passed", invalid(first, second), _unknown(second))
    if second.inference:
        words = f"onnx.checker passes, but not with full_check: {second.inference}"
        return Judged(
            "passed", words, (f"whether the original passes full_check is not known: {first.skipped}",)
        )
    return Judged("passed", "onnx.checker passes", _unknown(second))


def _unknown(one: Checked) -> tuple[str, ...]:
    return (f"onnx.checker ran without full_check: {one.skipped}",) if one.skipped else ()


def invalid(original: Checked, fixed: Checked) -> str:
    """Why the original is not valid ONNX, and whether the fixed model is; in a line.

    What ``full_check`` alone refuses may be valid: ONNX's inference does not know every operator.
    """
    if original.refused:
        first, after = (
            f"is not valid ONNX: {original.refused.rstrip('.')}",
            "passes onnx.checker" if fixed.skipped else "is",
        )
        if fixed.refused:
            after = f"is not, either: {fixed.refused}"
        elif fixed.inference:
            after = f"passes onnx.checker, but not with full_check: {fixed.inference}"
    else:
        first = f"does not pass onnx.checker with full_check: {original.inference.rstrip('.')}"
        after = "passes without it" if fixed.skipped else "does"
        if fixed.complaint:
            after = f"does not, either: {fixed.complaint}"
    return f"the original {first}; the new model {after}"


# ------------------------------------------------------------------------------------------ in the child


def check(path: str, folder: str, full: bool = True) -> Checked:
    """onnx's checker on a model file, with ``full`` with its ``full_check``.

    The checker would read the weights only to count their bytes. It gets a copy of the model in ``folder`` that names
    an empty file for each weight of the right size.

    Declared shapes of anything but the graph's inputs are claims. A fix that turns a computed shape into a constant
    brings an old wrong one to light, and the model is as valid as before. So what inference complains of counts only
    where it does so without them as well. They are not left out from the start: where it cannot work out a shape by
    itself, inference depends on them.
    """
    import onnx  # lazy: start-up

    skipped, file = "", path
    try:
        loaded = loading.open_model(Path(path))
        if loaded.source is not None or loaded.outside:
            _without_weights(loaded.proto, Path(path).parent)
            (Path(folder) / _NOTHING).touch()
            file = str(Path(folder) / "model.onnx")
            Path(file).write_bytes(loaded.proto.SerializeToString())
        # A walk of all nodes may take longer than inference does.
        suspect = any(name in loaded.skeleton for name in DANGEROUS)
        if full and suspect and any(map(dangerous, walk.model_nodes(loaded.proto))):
            full, skipped = False, "it has a node at which ONNX's shape inference may hang or crash"
        if full and (reason := order.too_many(loaded.proto)):
            full, skipped = False, reason
        onnx.checker.check_model(file, full_check=full)
    except (onnx.checker.ValidationError, ModelError) as error:
        return Checked(one_line(error))
    except onnx.shape_inference.InferenceError as error:
        return Checked(inference=one_line(error) if _unclaimed(loaded.proto) else "")
    except ValueError as error:  # not about the model: inference does not know an element type
        plain = check(path, folder, False) if full else Checked(one_line(error))
        return (
            plain if plain.refused else Checked(skipped=f"ONNX's shape inference failed: {one_line(error)}")
        )
    return Checked(skipped=skipped)


def violation(path: str, folder: str) -> str:
    """How a model file violates ONNX's specification, whatever it declares of its tensors; empty where it does not.

    A wrong declared type in ``value_info`` or of an output does not change what the nodes compute.
    """
    checked = check(path, folder)
    return checked.refused if checked.refused or not checked.inference else unclaimed(path, types=False)


def unclaimed(path: str, *, types: bool = True) -> str:
    """The complaint of strict inference about a model file without its declared shapes, and without declared types if
    not ``types``; empty where it passes."""
    proto = loading.open_model(Path(path)).proto
    _without_weights(proto, Path(path).parent)
    return _unclaimed(proto, types=types)


_NOTHING = "weights"


def _without_weights(proto: ModelProto, base_dir: Path) -> None:
    """Let the tensors whose bytes lie in files name an empty file instead; small ones get their bytes.

    Raises:
        ModelError: external data are not where they should be, or too short.
    """
    for tensor in walk.model_tensors(proto):
        where, external = lazy.range_of(tensor), tensors.is_external(tensor)
        if where is not None and (
            external
            or where.field != lazy.RAW
            or where.length != tensors.nbytes(tensor)
            or tensor.data_type == TensorProto.INT64
        ):
            # The checker looks at the fields that hold numbers, at indices of sparse tensors, and at what is odd.
            lazy.fill(tensor, where)
            continue
        if where is not None:
            tensor.ClearField("raw_data")
            _empty(tensor)
        elif external:
            _, _, length = tensors.external_range(tensor, base_dir)
            if length <= SMALL_BYTES:  # it may be a shape, which inference reads
                tensor.CopyFrom(tensors.embedded(tensor, base_dir))
            else:
                _empty(tensor)


def _empty(tensor: TensorProto) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value=_NOTHING)


# ------------------------------------------------------------------------------------------- types and shapes


def _unclaimed(proto: ModelProto, *, types: bool = True) -> str:
    """The complaint of strict inference, as in ``full_check``, without declared shapes. ``proto`` is changed.

    ``types``: compare declared types with inferred ones.
    """
    from onnx import shape_inference  # lazy: start-up

    _trim(proto, types=types)
    for tensor in walk.model_tensors(proto):
        if len(tensor.raw_data) > SMALL_BYTES:
            tensor.ClearField("raw_data")
            _empty(tensor)
    try:
        shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=False)
    except shape_inference.InferenceError as error:
        return one_line(error)
    return ""


def _trim(proto: ModelProto, *, types: bool) -> None:
    """Remove what inference should not trust, or cannot read.

    That is declared shapes, without ``types`` declared types too, and sparse initializers: inference treats them as
    sparse tensors, which no operator reads, while they are initializers that are stored in another way.
    """
    graphs = [proto.graph]
    for function in proto.functions:
        _unclaim(function.value_info, types=types)
    for node in walk.model_nodes(proto):
        graphs.extend(walk.subgraphs(node))
    for graph in graphs:
        _unclaim(graph.value_info, graph.output, () if graph is proto.graph else graph.input, types=types)
        for sparse in graph.sparse_initializer:
            dense = graph.initializer.add(name=sparse.values.name, data_type=sparse.values.data_type)
            dense.dims.extend(sparse.dims)
            _empty(dense)
        graph.ClearField("sparse_initializer")


def _unclaim(*infos: Iterable[ValueInfoProto], types: bool) -> None:
    for info in chain.from_iterable(infos):
        if types:
            _unshape(info.type)
        else:
            info.ClearField("type")


def _unshape(kind: TypeProto) -> None:
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        getattr(kind, which).ClearField("shape")
    elif which in ("sequence_type", "optional_type"):
        _unshape(getattr(kind, which).elem_type)
    elif which == "map_type":
        _unshape(kind.map_type.value_type)


TIMEOUT_S = 20.0
MEMORY_MB = 2048
SMALL_BYTES = 1024
"""Bytes of a tensor that inference may read, as it may be a shape."""
DANGEROUS = (b"SequenceMap", b"Einsum")
"""Names of the operators for ``dangerous``, as they occur in a model's bytes."""


def dangerous(node: NodeProto) -> bool:
    """Whether shape inference may hang or crash at this node."""
    if node.op_type == "SequenceMap":
        return True
    if node.op_type != "Einsum":
        return False
    equation: Any = next((a.s for a in node.attribute if a.name == "equation"), b"")
    try:
        einsum_terms(equation.decode("utf-8", "replace"))
    except Unknown:
        return True
    return False
