"""TRT004."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Match, Severity, rule
from onnxfix.trt.reading import Misread, Reading

_SHOWN = 3  # layers of a node that a message names


@rule("TRT004", per="network", severity=Severity.ERROR)
def network_differs(reading: Reading) -> Iterator[Match]:
    """TensorRT accepts the model but misimports it: the imported network computes something else.

    ## Why it matters
    The parser can accept a model and silently compute something else: a `Trilu` without `upper` becomes a lower
    triangle, `layout=1` of an `LSTM` is ignored, a `ConvTranspose` is shifted by a pixel, a `QuantizeLinear` without
    zero point gives int8, an operator of a custom domain becomes the standard one of that name. The engine builds and
    runs, and its results are wrong.

    `check --trt` and the check `trt-network` of `apply` and `verify` read the imported network back, layer by layer,
    as an ONNX model, execute both with ONNX Runtime on the same inputs, and compare. If outputs differ by more than
    rounding, tensors with the same name in both are compared in the order of computation: the finding names the first
    node that differs, both values at the first differing element, and TensorRT's layers.

    - **error**: a value or a weight differs; an input or output has another name or type, or an input another shape;
      ONNX Runtime refuses a model that TensorRT imports; the imported network fails on inputs that the model accepts.
    - **warning**: infinity or NaN where ONNX has a finite value, for values at the limits of their type alone (0,
      1e4); float32 instead of float64 at an input or output; a wrong declared type or shape without a known effect on
      values; a model that ONNX Runtime refuses for its declared types, while ONNX's reference evaluator computes what
      TensorRT imported.

    If ONNX Runtime refuses a model and `onnx.checker` does too, with `full_check`, nothing is reported: the model has
    no defined meaning in ONNX. A wrong type in `value_info` alone does not change a model's meaning.

    This verifies the import, for the inputs that were tried. It does not verify kernels and fusions: no engine is
    executed, which the check `trt-gpu` does. Differences that no input exposes are not detected, and a network with a
    layer that cannot be read back is not judged.

    ## Fix
    The finding names the rule that reports the same node, and that rule's page describes the fix; its finding is
    marked as confirmed. Otherwise write the node differently: with explicit defaults, or as the operators of its ONNX
    definition. `onnxfix lift` writes the imported network as a model for inspection.

    ## References
    - The API that reads the network:
      https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/python-api/infer/Graph/Network.html
    - The definition of each operator: https://onnx.ai/onnx/operators/
    """
    for one in reading.misreads:
        yield Match(
            f"{one.words}{_layers(one)}",
            severity=Severity.WARNING if one.harmless else Severity.ERROR,
            at=one.place,
        )


def _layers(one: Misread) -> str:
    """The node's TensorRT layers, in brackets: the first few; the JSON has all of them."""
    more = ", ..." if len(one.layers) > _SHOWN else ""
    return f" [layers: {', '.join(one.layers[:_SHOWN])}{more}]" if one.layers else ""
