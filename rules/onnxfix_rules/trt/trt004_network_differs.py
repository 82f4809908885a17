"""TRT004: differences between the model and the network that TensorRT imports."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Match, Severity, rule
from onnxfix.trt.reading import Misread, Reading

_SHOWN = 3  # layers of a node that a message names


@rule("TRT004", per="network", severity=Severity.ERROR)
def network_differs(reading: Reading) -> Iterator[Match]:
    """TensorRT accepts the model, but the network that it imports computes something else.

    ## Why it matters
    The parser can accept a model and silently compute something else: a `Trilu` without `upper` becomes a lower
    triangle, `layout=1` of an `LSTM` is ignored, a `ConvTranspose` is shifted by a pixel, a `QuantizeLinear` without
    zero point gives int8, an operator of a foreign domain becomes the standard one of that name. The engine builds and
    runs, and its results are wrong.

    `check --trt` and the check `trt-network` of `apply` and `verify` convert the imported network back to an ONNX
    model, layer by layer, run both with ONNX Runtime on the same inputs, and compare. If outputs differ by more than
    rounding, tensors with the same name in both are compared in the order of computation. The finding names the first
    node whose results differ, both values at the first differing element, and TensorRT's layers.

    - **error**: a value or a weight differs; an input or output has another name or type, or an input another shape;
      ONNX Runtime refuses a model that TensorRT nevertheless imports; the imported network fails on inputs that the
      model accepts.
    - **warning**: infinity or NaN where ONNX has a number, only for values at the edge of their type (0, 1e4); float32
      in place of float64 at an input or output; a wrong declared type or shape on which no value was seen to depend; a
      model that ONNX Runtime refuses for its declared types, while ONNX's reference evaluator computes what TensorRT
      imported.

    If both ONNX Runtime and `onnx.checker` with `full_check` refuse a model, nothing is reported: ONNX does not define
    what such a model computes. A wrong type in `value_info` alone does not change what a model computes.

    This check proves the import, for the inputs that were tried. It proves nothing about kernels and fusions: no engine
    is executed (the check `trt-gpu` does that). Differences that no tested input exposes are not seen, and a network
    with a layer that cannot be converted back is not judged.

    ## Fix
    The finding names the rule that reports the same node; the page of that rule explains the fix, and its finding is
    marked as confirmed. Without such a rule, rewrite the node: with explicit defaults, or decomposed into the operators
    that define it in ONNX. `onnxfix lift` writes the imported network as an ONNX model for inspection.

    ## References
    - The API for reading the network:
      https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/python-api/infer/Graph/Network.html
    - What each operator computes: https://onnx.ai/onnx/operators/
    """
    for one in reading.misreads:
        yield Match(
            f"{one.words}{_layers(one)}",
            severity=Severity.WARNING if one.harmless else Severity.ERROR,
            at=one.place,
        )


def _layers(one: Misread) -> str:
    """The first few of the node's TensorRT layers, in brackets; the JSON report lists all of them."""
    more = ", ..." if len(one.layers) > _SHOWN else ""
    return f" [layers: {', '.join(one.layers[:_SHOWN])}{more}]" if one.layers else ""
