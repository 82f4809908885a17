"""The findings of onnxfix's rules on a model, by the node that they are about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from onnxfix import engine, walk
from onnxfix.files.lazy import with_payload
from onnxfix.files.tensors import is_external, nbytes
from onnxfix.model import Model
from onnxfix.place import Place
from onnxfix.registry import registry
from onnxfix.rule import NO_MODEL, Rule, Severity
from onnxfix.targets import DEFAULT

_HALF = "PRC"
"""The family of the rules about half precision."""


@dataclass(frozen=True)
class Hazard:
    """A finding at a node. ``fix`` is the title of its fix, and ``safety`` that fix's ("exact", "numeric", "unsafe"),
    both "" where there is none. ``half``: it was found in the model as it would be in half precision, not as it is."""

    code: str
    name: str
    severity: Severity
    place: Place
    message: str
    fix: str = ""
    safety: str = ""
    half: bool = False


@dataclass(frozen=True)
class Findings:
    """All findings, by the outputs of the nodes of the main graph that they are about or that are around them."""

    by_output: Mapping[str, tuple[Hazard, ...]] = field(default_factory=dict)

    def at(self, outputs: Iterable[str]) -> tuple[Hazard, ...]:
        """The findings about the node with these outputs: the worst first, then by code."""
        found = dict.fromkeys(one for output in outputs for one in self.by_output.get(output, ()))
        return tuple(sorted(found, key=lambda one: (-one.severity, one.code)))


def collect(proto: ModelProto, base_dir: Path | None = None, low: str = "") -> Findings:
    """Run the default rules on a model, and with ``low`` "float16" those about half precision on the model in that
    precision.

    The model is not changed. A rule that fails finds nothing.

    Raises:
        ModelError: names are defined twice or not at all, or the graph has a cycle.
        OnnxfixError: the built-in rules could not be loaded.
    """
    rules = [rule for rule in registry().choose() if rule.per not in NO_MODEL]
    found = list(_check(Model(proto, base_dir), rules, half=False))
    # bfloat16 has the range of float32: what the rules say about the range of float16 does not apply.
    if low == "float16":
        rules = [rule for rule in rules if rule.code.startswith(_HALF)]
        found += _check(Model(halved(proto), base_dir), rules, half=True)
    by_output: dict[str, list[Hazard]] = {}
    for output, hazard in found:
        by_output.setdefault(output, []).append(hazard)
    return Findings({name: tuple(dict.fromkeys(some)) for name, some in by_output.items()})


def _check(model: Model, rules: list[Rule], *, half: bool) -> Iterable[tuple[str, Hazard]]:
    """The findings about nodes, each with the outputs of the node of the main graph."""
    model.target = DEFAULT
    for item in engine.check(model, rules, problems=[]):
        outer = item.match.node
        while outer is not None and outer.scope.parent is not None:
            outer = outer.scope.owner
        if outer is None or outer.scope is not model.main:
            continue
        fix = item.match.fix
        hazard = Hazard(
            item.rule.code,
            item.rule.name,
            item.severity,
            item.match.place,
            item.match.message,
            fix.title if fix is not None else "",
            fix.safety.name.lower() if fix is not None else "",
            half,
        )
        yield from ((value.name, hazard) for value in outer.outputs if value is not None)


# -------------------------------------------------------------------------------- the model in half precision


_FLOAT, _FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16
_SMALL = 4096
"""Bytes up to which a constant is converted. A larger one becomes an input: no rule looks at its values."""
_TYPED = ("to", "dtype")
"""Attributes that hold an element type."""


def halved(proto: ModelProto) -> ModelProto:
    """A copy with float16 in place of float32. It is for checking only: large weights become inputs of the graph."""
    model = ModelProto()
    model.CopyFrom(proto)
    for body in walk.bodies(model):
        for graph in [body] if isinstance(body, GraphProto) else []:
            for inner in walk.graphs(graph):
                _convert(inner, inputs=inner is graph)
        for node in walk.nodes(body.node):
            for attribute in node.attribute:
                if (
                    attribute.name in _TYPED
                    and attribute.type == AttributeProto.INT
                    and attribute.i == _FLOAT
                ):
                    attribute.i = _FLOAT16
                elif node.op_type in ("Constant", "ConstantOfShape"):
                    _convert_attribute(attribute)
    return model


def _convert(graph: GraphProto, *, inputs: bool) -> None:
    """Convert a graph's interface and initializers; ``inputs``: large ones may become inputs (not in a branch)."""
    del graph.value_info[:]
    for info in (*graph.input, *graph.output):
        _retype(info)
    kept: list[TensorProto] = []
    named = {info.name for info in graph.input}
    for tensor in graph.initializer:
        if tensor.data_type != _FLOAT:
            kept.append(tensor)
        elif not is_external(tensor) and (nbytes(tensor) <= _SMALL or not inputs):
            kept.append(_in_half(tensor))
        elif tensor.name not in named:
            graph.input.append(helper.make_tensor_value_info(tensor.name, _FLOAT16, list(tensor.dims)))
    copies = [TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
    del graph.initializer[:]
    graph.initializer.extend(copies)


def _retype(info: ValueInfoProto) -> None:
    kind = info.type.tensor_type
    if info.type.HasField("tensor_type") and kind.elem_type == _FLOAT:
        kind.elem_type = _FLOAT16


def _convert_attribute(attribute: AttributeProto) -> None:
    if attribute.type == AttributeProto.TENSOR and attribute.t.data_type == _FLOAT:
        if nbytes(attribute.t) <= _SMALL and not is_external(attribute.t):
            attribute.t.CopyFrom(_in_half(attribute.t))
    elif attribute.name in ("value_float", "value_floats"):
        stored = [attribute.f] if attribute.name == "value_float" else list(attribute.floats)
        shape = [] if attribute.name == "value_float" else [len(stored)]
        tensor = helper.make_tensor("", _FLOAT, shape, stored)
        attribute.CopyFrom(helper.make_attribute("value", _in_half(tensor)))


def _in_half(tensor: TensorProto) -> TensorProto:
    with np.errstate(all="ignore"):
        values = numpy_helper.to_array(with_payload(tensor)).astype(np.float16)
    return numpy_helper.from_array(values, tensor.name)
