"""Sequences and optionals: the descriptions of their elements."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import TensorProto

from onnxfix.shapes.ops.base import UNKNOWN, Call, Info, Shape, axis_of, elements, transfer
from onnxfix.shapes.symbols import constant

INT64 = TensorProto.INT64


def merged(infos: Iterable[Info]) -> Info:
    """A description that is true for each of ``infos``; without a shape if a dimension differs."""
    found = list(infos)
    first = found[0]
    kind = first.kind if all(info.kind == first.kind for info in found) else "tensor"
    elem = first.elem if all(info.elem == first.elem for info in found) else None
    shape = (
        first.shape if all(info.shape is not None and info.shape == first.shape for info in found) else None
    )
    item = None
    items = [info.item for info in found if info.item is not None]
    if len(items) == len(found):
        item = merged(items)
    return Info(elem, shape, None, None, kind, item)


def sequence_of(item: Info) -> Info:
    """A sequence of such elements; their values are not followed."""
    return Info(kind="sequence", item=Info(item.elem, item.shape, None, None, item.kind, item.item))


@transfer("SequenceConstruct")
def _construct(call: Call) -> Info:
    return sequence_of(merged(call.inputs))


@transfer("SequenceEmpty")
def _empty(call: Call) -> Info:
    return sequence_of(Info(call.attr("dtype", TensorProto.FLOAT)))


@transfer("SequenceInsert")
def _insert(call: Call) -> Info:
    item = call.info(0).item
    if item is None:
        return sequence_of(Info(call.info(1).elem))
    return sequence_of(merged([item, call.info(1)]))


@transfer("SequenceErase")
def _erase(call: Call) -> Info:
    return sequence_of(call.info(0).item or UNKNOWN)


@transfer("SequenceAt")
def _at(call: Call) -> Info:
    return call.info(0).item or UNKNOWN


@transfer("SequenceLength")
def _length(call: Call) -> Info:
    return Info(INT64, ())


@transfer("SplitToSequence")
def _split_to_sequence(call: Call) -> Info:
    data = call.info(0)
    if data.shape is None:
        return sequence_of(Info(data.elem))
    axis = axis_of(call.attr("axis", 0), len(data.shape))
    shape: Shape | None = None
    if not call.has(1):
        kept = call.attr("keepdims", 1)
        shape = (*data.shape[:axis], *((constant(1),) if kept else ()), *data.shape[axis + 1 :])
    return sequence_of(Info(data.elem, shape))


@transfer("ConcatFromSequence")
def _concat_from_sequence(call: Call) -> Info:
    item = call.info(0).item or UNKNOWN
    if item.shape is None:
        return Info(item.elem)
    new = call.attr("new_axis", 0)
    rank = len(item.shape) + (1 if new else 0)
    axis = axis_of(call.attr("axis"), rank)
    rest = item.shape[axis:] if new else item.shape[axis + 1 :]
    return Info(item.elem, (*item.shape[:axis], call.fresh(0, axis), *rest))


@transfer("Optional")
def _optional(call: Call) -> Info:
    if not call.has(0):
        return Info(kind="optional")
    return Info(kind="optional", item=call.info(0))


@transfer("OptionalGetElement")
def _get_element(call: Call) -> Info:
    source = call.info(0)
    return (source.item or UNKNOWN) if source.kind == "optional" else source


@transfer("OptionalHasElement")
def _has_element(call: Call) -> Info:
    if not call.has(0):
        return Info(TensorProto.BOOL, (), elements([constant(0)], ()))
    return Info(TensorProto.BOOL, ())
