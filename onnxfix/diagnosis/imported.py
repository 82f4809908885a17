"""The network that TensorRT imported as the other side: lifted to ONNX, and run by ONNX Runtime."""

from __future__ import annotations

from onnxfix.causes import Cause
from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.lockstep import Side
from onnxfix.diagnosis.sides import Impossible, Prepared, opened
from onnxfix.trt import lift
from onnxfix.verification.readback.interface import partners
from onnxfix.verification.rungs.builder import Builder

_CAUSES: dict[str, Cause] = {"unlifted": "gap", "refused": "refused", "memory": "memory"}


def imported(truth: Graph, builder: Builder, bench: Bench) -> Prepared:
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
    return Prepared(
        Side(other, pairs),
        inputs,
        f"the network that {builder.product} imported, run by ONNX Runtime (no engine was executed)",
        tuple(lifted.notes),
    )
