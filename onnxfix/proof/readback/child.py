"""The child's side of the check trt-network: runs a model and the network that was read back, one at a time.

Outputs stay here until both have run, so that they need not cross the pipe. Every function is called through the
sandbox.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, helper

from onnxfix.files import walk
from onnxfix.proof import outputs
from onnxfix.proof.compare.compare import (
    Metrics,
    Terms,
    compare,
    compare_outputs,
    different,
    moved_by,
)
from onnxfix.proof.compare.rounding import SHARE, shaken
from onnxfix.runtime import backends
from onnxfix.runtime.allowance import cores
from onnxfix.runtime.backends import ort, ort_weights
from onnxfix.runtime.causes import NO_MEMORY, Cause
from onnxfix.runtime.sandbox import one_line

if TYPE_CHECKING:
    import numpy.typing as npt

#: Of ONNX Runtime: one for each of many cores takes far longer than half of them as soon as anything else runs.
THREADS = max(min(2, cores()), cores() // 2)
#: A quarter of a unit in float32's last place, of 1: where terms of that size cancel out, what is left is rounding, and
#: nothing shows it where a model has no floating-point input.
FLOOR = 2.0**-25
_LARGE = 1024  # bytes of a tensor that a variant of the model maps from a file
_WORDS = 1500  # characters of an error: ONNX Runtime names the node at the end of some


@dataclass(frozen=True)
class Reply:
    """The result of a call. ``error`` is "" on success; ``died``: the child crashed or was killed. ``lacking``: the
    backend cannot do this, which proves nothing about the model; ``starved``: because memory ran out. ``size`` is in
    bytes, of the outputs kept; ``blank`` are the outputs that are NaN or infinity throughout. ``cause``: why it failed,
    where the model is not to blame. ``seconds`` are those of the processor that a run took. ``unloaded``: there is no
    model to run. ``value`` is the result of a comparison."""

    error: str = ""
    lacking: bool = False
    starved: bool = False
    died: bool = False
    size: int = 0
    blank: frozenset[str] = frozenset()
    cause: Cause = ""
    seconds: float = 0.0
    unloaded: bool = False
    value: Any = None


@dataclass
class _State:
    session: backends.Session | None = None
    #: (side, feed) -> output -> value
    kept: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    #: path -> the model with its weights in files, and where these are: those of a small model in one file
    slim: dict[str, tuple[ModelProto, ort_weights.Stored]] = field(default_factory=dict)


_STATE = _State()


def drop() -> None:
    """Release everything."""
    _STATE.session = None
    _STATE.kept.clear()
    _STATE.slim.clear()


def unload() -> None:
    """Release the model, but keep its outputs."""
    _STATE.session = None


# --------------------------------------------------------------------------------------------- loading and running


def load(
    backend: str,
    path: str,
    *,
    extra: Sequence[str] = (),
    scratch: str = "",
    options: Mapping[str, Any] | None = None,
) -> Reply:
    """Load a model in place of the last. ``extra``: with these tensors of the main graph as outputs instead of its own,
    on ONNX Runtime's CPU provider or the reference evaluator; ``scratch`` is a folder to write to."""
    _STATE.session = None
    try:
        if not extra:
            _STATE.session = backends.load(backend, path, **(options or {}))
        elif backend == "reference":
            whole = _with_outputs(onnx.load(path), extra)
            variant = Path(scratch) / "variant.onnx"
            onnx.save(whole, variant)
            _STATE.session = backends.load(backend, str(variant))
        else:
            if path not in _STATE.slim:
                file = Path(scratch) / f"weights{len(_STATE.slim)}.bin"
                _STATE.slim[path] = ort_weights.shared(path, file, _LARGE + 1)
            model, where = _STATE.slim[path]
            chosen = ort.session_options(THREADS, lean=where.large)
            _STATE.session = ort.load_mapped(_with_outputs(model, extra), where, chosen)
    except Exception as error:
        return _failed(error)
    return Reply()


def _failed(error: Exception) -> Reply:
    lacking = isinstance(error, (backends.Unsupported, backends.Broken))
    starved = isinstance(error, MemoryError) or (not lacking and bool(NO_MEMORY.search(str(error))))
    words = str(error) if lacking else one_line(error, _WORDS)
    return Reply(words, lacking or starved, starved, cause="memory" if starved else "")


def has_open_order(model: ModelProto) -> bool:
    """Whether ONNX leaves the order of some elements open: TopK with sorted=0."""
    return any(map(_open_order, walk.model_nodes(model)))


def _open_order(node: NodeProto) -> list[AttributeProto]:
    """The attribute that leaves the order open, if it does."""
    if node.op_type != "TopK" or node.domain not in ("", "ai.onnx"):
        return []
    return [one for one in node.attribute if one.name == "sorted" and not one.i]


def _with_outputs(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """A copy of the model with only these tensors as outputs, and an order where it leaves that open."""
    found = ModelProto()
    found.CopyFrom(model)
    for node in walk.model_nodes(found):
        for attribute in _open_order(node):
            attribute.i = 1
    graph = found.graph
    made = {name for node in graph.node for name in node.output}
    declared = {info.name: info for info in model.graph.output}
    del graph.output[:]
    for name in names:
        if name in made:
            graph.output.append(declared.get(name, onnx.ValueInfoProto(name=name)))
        else:  # an input or a weight
            graph.node.append(helper.make_node("Identity", [name], [f"{name}{COPY}"]))
            graph.output.append(onnx.ValueInfoProto(name=f"{name}{COPY}"))
    return found


COPY = "/onnxfix-copy"
"""Suffix of the output that copies a tensor which no node computes."""


def run(
    side: str,
    key: str,
    feed: Mapping[str, Any],
    *,
    wires: Mapping[str, tuple[str, int]] | None = None,
    moved: bool = False,
) -> Reply:
    """Run the loaded model and keep its outputs as those of ``side`` for the feed ``key``.

    ``wires`` leads from the names of the feed to those of the model and to their element types there; ``moved`` moves
    every floating-point input a little first.
    """
    if _STATE.session is None:
        return Reply("no model is loaded", lacking=True, unloaded=True)
    given = shaken(feed) if moved else dict(feed)
    if wires is not None:
        with np.errstate(all="ignore"):
            given = {
                wires[name][0]: np.asarray(value).astype(helper.tensor_dtype_to_np_dtype(wires[name][1]))
                for name, value in given.items()
                if name in wires
            }
    began = time.process_time()
    try:
        values = dict(zip(_STATE.session.outputs, _STATE.session.run(given), strict=True))
    except Exception as error:
        return _failed(error)
    seconds = time.process_time() - began
    return _keep(side, key, {name.removesuffix(COPY): value for name, value in values.items()}, seconds)


def knows(path: str) -> bool:
    """Whether ONNX Runtime's check has left outputs of the model file."""
    return outputs.knows(path)


def recall(key: str, path: str, feed: Mapping[str, Any]) -> Reply | None:
    """Take what that check computed with the model file on these inputs for a run of "onnx" for the feed ``key``; None
    where it did not."""
    computed = outputs.find(path, feed)
    return None if computed is None else replace(_keep("onnx", key, *computed), value=True)


def _keep(side: str, key: str, values: dict[str, Any], seconds: float) -> Reply:
    _STATE.kept[side, key] = values
    blank = frozenset(name for name, value in values.items() if _is_blank(value))
    size = sum(getattr(value, "nbytes", 0) for value in values.values())
    return Reply(size=size, blank=blank, seconds=seconds)


def _is_blank(value: Any) -> bool:
    """Whether it is only NaN and infinity, which would hide any difference."""
    floats = isinstance(value, np.ndarray) and _kind(value.dtype) == "float" and value.size > 0
    return floats and not np.isfinite(value).any()


# ------------------------------------------------------------------------------------------------------ comparing


_LOST = Reply("the sandbox ended and its results are lost", died=True)


def known_keys() -> list[str]:
    """The feeds for which outputs of the model are kept."""
    return [key for side, key in _STATE.kept if side == "onnx"]


def _is_lost(key: str) -> bool:
    return not {("onnx", key), ("lifted", key)} <= _STATE.kept.keys()


def forget(key: str) -> None:
    """Release the outputs for a feed."""
    for place in [place for place in _STATE.kept if place[1] == key]:
        del _STATE.kept[place]


def judge(
    key: str, pairs: Sequence[tuple[str, str]], *, coarse: str, noise: Mapping[str, float]
) -> tuple[Metrics, ...] | Reply:
    """Compare what "onnx" and "lifted" computed for a feed: pairs of names on the one side and on the other. The
    metrics are called by the former."""
    if _is_lost(key):
        return _LOST
    wanted, found = _STATE.kept["onnx", key], _STATE.kept["lifted", key]
    both = {name: aligned(wanted[name], found[other]) for name, other in pairs if other in found}
    expected, network = ({name: values[side] for name, values in both.items()} for side in (0, 1))
    slack = {name: SHARE * far for name, far in noise.items()}
    names, terms = [name for name, _ in pairs], Terms(coarse=coarse)
    return compare_outputs(names, expected, network, terms, side="the network", slack=slack)


def chooses_alike(key: str, data: tuple[str, str], pair: tuple[str, str], *, axis: int, coarse: str) -> bool:
    """Whether "onnx" and "lifted" chose other elements of ``data`` that are the same up to rounding; ``pair`` are the
    indices, both by their names on either side ("" where there is none). Each slice along the axis is judged by itself:
    the order of elements that are equal, and that TensorRT computes to the bit, is no rounding."""
    if _is_lost(key):
        return False
    wanted, found = _STATE.kept["onnx", key], _STATE.kept["lifted", key]
    values, sides = wanted[data[0]], [wanted[pair[0]], found[pair[1]]]
    if not values.ndim or any(not one.size for one in sides):
        return False
    size, theirs = values.shape[axis], found.get(data[1], values)
    if not all(-size <= one.min() and one.max() < size for one in sides):
        return False
    sides = [one if one.ndim == values.ndim else np.expand_dims(one, axis) for one in sides]
    indices = [np.moveaxis(one.astype(np.int64) % size, axis, -1) for one in sides]
    values, theirs = np.moveaxis(values, axis, -1), np.moveaxis(theirs, axis, -1)
    slices = indices[0].shape[:-1] == values.shape[:-1]
    if not slices or indices[0].shape != indices[1].shape or values.shape != theirs.shape:
        return False
    values, theirs = aligned(values, theirs)
    for ours, other, scores, network in zip(
        *(one.reshape(-1, one.shape[-1]) for one in (*indices, values, theirs)), strict=True
    ):
        if np.array_equal(ours, other):
            continue
        a, b = scores[ours], scores[other]
        moved = (scores != network)[np.union1d(ours, other)].any() or (a != b).any()
        alike = not np.isnan(a).any() and not different(compare("", a, b, exact=False, coarse=coarse))
        if len({*other.tolist()}) < other.size or not moved or not alike:
            return False
    return True


def wobble(key: str, names: Sequence[str]) -> dict[str, float]:
    """How far "moved" is from "onnx" at most, by tensor: the greatest distance between finite values; of floats at
    least ``FLOOR``."""
    before, after = _STATE.kept.get(("onnx", key)), _STATE.kept.get(("moved", key))
    if before is None or after is None:
        return {}
    return {name: moved_by(name, before[name], after[name], FLOOR) for name in names}


def aligned(wanted: Any, value: Any) -> tuple[Any, Any]:
    """Both in one type, where TensorRT's differs from ONNX's, since types are compared separately. Floats in the
    narrower of the two, integers in the wider, both as float64 where only one is a float."""
    if not isinstance(wanted, np.ndarray) or not isinstance(value, np.ndarray) or wanted.dtype == value.dtype:
        return wanted, value
    kinds = [_kind(one.dtype) for one in (wanted, value)]
    if "" in kinds:
        return wanted, value
    common: npt.DTypeLike = np.float64 if "float" in kinds else np.int64
    if kinds == ["float", "float"]:
        common = min(wanted.dtype, value.dtype, key=lambda dtype: dtype.itemsize)
    with np.errstate(all="ignore"):
        return wanted.astype(common), value.astype(common)


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "b" or "int" in dtype.name:
        return "int"
    return "float" if "float" in dtype.name else ""
