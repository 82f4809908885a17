"""Evidence about one node, computed by ONNX Runtime: a truth of one node, and another model that computes the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix.diagnosis.distance import distance
from onnxfix.diagnosis.evidence import Evidence
from onnxfix.diagnosis.findings import Hazard
from onnxfix.diagnosis.records import Against, NodeError
from onnxfix.files.tensors import to_array
from onnxfix.place import Place
from support import ort
from support.rounded import rounded

UNITS = {"fp16": 2.0**-11, "bf16": 2.0**-8}
LOW = {"fp16": "float16", "bf16": "bfloat16"}


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Any:
    """Normally distributed float32."""
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def evidence(
    truth: ModelProto,
    feed: Mapping[str, Any],
    other: ModelProto | None = None,
    against: Against = "model",
    *,
    own: Mapping[str, Any] | None = None,
    findings: Sequence[Hazard] = (),
) -> Evidence:
    """What a diagnosis knows about the last node of ``truth``; its other nodes are Constants.

    The other side is the model ``other``, the truth in half precision (``against`` "fp16" or "bf16"), or gave ``own``.
    """
    node = truth.graph.node[-1]
    names = [info.name for info in truth.graph.output]
    true = dict(zip(names, ort.run(truth, dict(feed)), strict=True))
    if other is None and own is None:
        assert against in UNITS
        other = rounded(truth, against)
    theirs = (
        dict(own) if own is not None else dict(zip(names, ort.run(_kept(other), dict(feed)), strict=True))
    )
    moved = dict(zip(names, ort.run(*_moved(truth, feed, UNITS.get(against, 1e-7))), strict=True))
    far = max((distance(true[name], theirs[name]) for name in names), key=lambda one: one.relative)
    noise = max(distance(true[name], moved[name]).relative for name in names)
    known = {**_constants(truth), **feed}
    return Evidence(
        against,
        NodeError(Place((), node.name, node.op_type, names[0], 0), far.relative, far.largest, noise),
        node,
        {name: known[name] for name in node.input if name},
        true,
        theirs,
        moved,
        list(other.graph.node) if other is not None else [node],
        {one.name: to_array(one, None, 1 << 30) for one in (other or truth).graph.initializer},
        findings,
        LOW.get(against, ""),
        {one.domain: one.version for one in truth.opset_import},
        {one.domain: one.version for one in (other or truth).opset_import},
    )


def _kept(model: ModelProto | None) -> ModelProto:
    assert model is not None
    return model


def _constants(model: ModelProto) -> dict[str, Any]:
    found = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            found[node.output[0]] = helper.get_attribute_value(node.attribute[0])
            if isinstance(found[node.output[0]], TensorProto):
                found[node.output[0]] = numpy_helper.to_array(found[node.output[0]])
    return found


def _moved(model: ModelProto, feed: Mapping[str, Any], unit: float) -> tuple[ModelProto, dict[str, Any]]:
    """The feed with its floats moved by one rounding, up or down."""
    random = np.random.default_rng(0)

    def moved(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            return value
        signs = random.choice([-1.0, 1.0], value.shape)
        return (value.astype(np.float64) * (1 + signs * unit)).astype(value.dtype)

    return model, {name: moved(value) for name, value in feed.items()}
