"""What the truth is held against: how each kind of other side is made from the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.fingerprints import probe
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.matching import match
from onnxfix.diagnosis.opening import opened
from onnxfix.diagnosis.pairing import inputs_of
from onnxfix.diagnosis.rows import Side
from onnxfix.lowering.lowered import lowerable, with_casts
from onnxfix.proof.checks.builder import Builder
from onnxfix.proof.readback.values import partners
from onnxfix.runtime.causes import Cause
from onnxfix.tensorrt import lift

UNITS = {"fp16": 2.0**-11, "bf16": 2.0**-8}
"""Half of the distance between 1 and the next number of a low-precision type."""
LOW = {"fp16": "float16", "bf16": "bfloat16"}
"""Type names by what is asked."""
FIRST_OPSET = {"fp16": 6, "bf16": 13}
"""The first opset in which Cast has the type as an enumeration."""
KERNELS = 2e-5
"""Share of a tensor's scale that one kernel of a GPU may cost: other algorithms for convolutions, sums in parts."""


class Impossible(Exception):
    """The other side cannot be made; ``str`` is the reason, in one line, and ``cause`` the same as data."""

    def __init__(self, text: str, cause: Cause = "") -> None:
        super().__init__(text)
        self.cause = cause


def same_names(truth: Graph, other: Graph) -> dict[str, str]:
    """Tensors that carry the same name on both sides."""
    ours = {*truth.producer, *truth.inputs}
    return {name: name for name in (*other.producer, *other.inputs) if name in ours}


def optimized(truth: Graph, bench: Bench) -> Side:
    """The model as ONNX Runtime optimizes it by default.

    Raises:
        Impossible: ONNX Runtime does not load it.
    """
    out = bench.path(".onnx")
    error = bench.call("optimized", path=str(truth.path), out=str(out))
    if error:
        raise Impossible(f"ONNX Runtime does not load the model: {error}", "refused")
    other = opened(out, bench)
    pairs = same_names(truth, other)
    inputs = {name: name for name in other.inputs if name in truth.inputs}
    return Side(other, pairs, inputs=inputs, name="ONNX Runtime with its optimizations, on the CPU")


def itself(truth: Graph, backend: str, name: str) -> Side:
    """The model itself, on another backend."""
    inputs = {one: one for one in truth.inputs}
    kernels = KERNELS if backend else 0.0
    return Side(truth, same_names(truth, truth), backend, kernels=kernels, inputs=inputs, name=name)


def lowered(truth: Graph, against: Literal["fp16", "bf16"]) -> Side:
    """The model with the inputs and the output of every node rounded to half precision.

    Raises:
        Impossible: the model's opset has no Cast to the type.
    """
    low = LOW[against]
    opset = next((one.version for one in truth.proto.opset_import if one.domain in ("", "ai.onnx")), 1)
    if opset < FIRST_OPSET[against]:
        first = FIRST_OPSET[against]
        raise Impossible(
            f"ONNX casts to {low} from opset {first} on, and the model has opset {opset}", "refused"
        )
    able = lowerable(truth.proto, against, Path(truth.folder))
    other = Graph(
        with_casts(truth.proto, able, able.slots, apart=True),
        truth.folder,
        truth.mapped,
        untensored=truth.untensored,
    )
    notes: tuple[str, ...] = ()
    kept = Counter(truth.nodes[n].op_type for n in able.whole if truth.nodes[n].op_type != "Constant")
    if kept:
        text = ", ".join(f"{count} {kind}" for kind, count in sorted(kept.items()))
        notes = (f"nodes that stay in float32: {text}",)
    return Side(
        other,
        same_names(truth, other),
        unit=UNITS[against],
        inputs={one: one for one in truth.inputs},
        name=f"every node rounded to {low}, on the CPU (products and sums in float32)",
        notes=notes,
    )


def paired(truth: Graph, other: Graph, name: str, bench: Bench, samples: Iterable[Mapping[str, Any]]) -> Side:
    """The second model as the other side. Values of the first of ``samples`` that the truth accepts help to match.

    Raises:
        UsageError: the two have not the same interface.
    """
    inputs = inputs_of(truth, other)
    side = Side(other, inputs, inputs=inputs, name=name)
    matching = match(truth, other, probe(truth, other, side.feed, bench, samples))
    return replace(side, pairs=matching.pairs, notes=matching.notes)


_CAUSES: dict[str, Cause] = {"unlifted": "gap", "refused": "refused", "memory": "memory"}


def imported(truth: Graph, builder: Builder, bench: Bench) -> Side:
    """TensorRT's network of the model file of ``truth``.

    Raises:
        Impossible: TensorRT refuses the model, or a layer cannot be read back.
    """
    out = bench.path(".onnx")
    choice = builder.choice
    lifted = lift.attempt(
        builder.worker, str(truth.path), out, package=choice.package, timeout=builder.options.timeout
    )
    if not lifted.lifted:
        cause = _CAUSES.get(lifted.status, "")
        verb = (
            "imports no network" if lifted.status != "unlifted" else "imports a network that is not read back"
        )
        raise Impossible(f"{builder.product} {verb}: {lifted.reason}", cause)
    other = opened(out, bench)
    ours = {*truth.producer, *truth.inputs}
    pairs = {value: name for name, value in lifted.names.items() if name in ours}
    theirs = [info.name for info in other.proto.graph.input]
    found = partners(list(truth.inputs), [tensor.name for tensor in lifted.inputs])
    inputs = {theirs[number]: name for name, number in found.items()}
    pairs.update(inputs)
    files = [info.name for info in other.proto.graph.output]
    for name, number in partners(truth.outputs, [tensor.name for tensor in lifted.outputs]).items():
        pairs[files[number]] = name
    name = f"the network that {builder.product} imported, run by ONNX Runtime (no engine was executed)"
    return Side(other, pairs, inputs=inputs, name=name, notes=tuple(lifted.notes))
