"""TRT004."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Match, Severity, rule
from onnxfix.trt.reading import Misread, Reading

_SHOWN = 3  # layers of a node that a message names


@rule("TRT004", per="network", severity=Severity.ERROR)
def network_differs(reading: Reading) -> Iterator[Match]:
    """TensorRT accepts the model and reads it differently: what it imported computes something else.

    ## Why it matters
    The parser takes models that mean something else to it, without a warning: a `Trilu` without `upper` becomes a lower
    triangle, `layout=1` of an `LSTM` is ignored, a `ConvTranspose` is shifted by a pixel, a `QuantizeLinear` without
    zero point gives int8, an operator of a foreign domain becomes the standard one of that name. The engine builds and
    runs, and its results are wrong.

    `check --trt` and the rung `trt-network` of `apply` and `verify` read the imported network back, layer by layer,
    as an ONNX model, execute both with ONNX Runtime on the same inputs, and compare. Where outputs differ by more than
    rounding, tensors that carry the same name in both are compared in the order of computation: the finding names the
    first node at which the two part, both values at the first element that differs, and TensorRT's layers.

    - **error**: a value or a weight differs; an input or output has another name or type, or an input another shape;
      ONNX Runtime refuses a model that TensorRT imports all the same; the imported network fails on inputs that the
      model takes.
    - **warning**: infinity or NaN where ONNX has a number, for values at the edge of their type alone (0, 1e4); float32
      in place of float64 at an input or output; a declared type or shape that is wrong, where no value was seen to
      hang on it; a model that ONNX Runtime refuses for its declared types, while ONNX's reference evaluator computes
      what TensorRT imported.

    Where ONNX Runtime refuses a model and `onnx.checker` does too, with `full_check`, nothing is found: ONNX does not
    say what such a model means, so that nobody can read it differently. A wrong type in `value_info` alone makes no
    model mean something else.

    What this proves is the import, for the inputs that were tried. It proves nothing about kernels and fusions: no
    engine is executed, which the rung `trt-gpu` does. What no input exposes is not seen, and a network with a layer
    that cannot be read back is not judged at all.

    ## Fix
    The finding names the rule that found something at the same node, and that rule's page says what repairs it; its
    finding is marked as confirmed. Where there is none, write the node in another way: with its defaults spelled out,
    or as the operators that ONNX defines it by. `onnxfix lift` writes what TensorRT understood as a model to look at.

    ## References
    - The API that the network is read by:
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
    """TensorRT's layers of the node, in brackets: the first few; all of them are in the JSON."""
    more = ", ..." if len(one.layers) > _SHOWN else ""
    return f" [layers: {', '.join(one.layers[:_SHOWN])}{more}]" if one.layers else ""
