"""Record what the builder logs about an engine's layers: ``python record.py``, with one TensorRT-RTX installed.

Writes ``<version>.json`` beside this file: the verbose messages that list layers with all details, and regions, each as
TensorRT said it. No GPU is needed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import tensorrt_rtx as trt

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4,8,8] x, bool c) => (float[1,8,64] y, float[1,4,8,8] z)
  <float[4,4,3,3] w = {WEIGHTS}, float[8,4] m = {PRODUCT}, int64[3] s = {1, 4, 64}> {
  [conv] a = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w)
  [relu] r = Relu(a)
  [branch] z = If(c) <
    then_branch = t () => (float[1,4,8,8] t1) { [sigmoid] t1 = Sigmoid(r) },
    else_branch = e () => (float[1,4,8,8] e1) { [sine] q = Sin(r)  [minus] e1 = Neg(q) }>
  [flat] f = Reshape(r, s)
  [half] h = Cast<to = 10>(f)
  [half_m] n = Cast<to = 10>(m)
  [product] p = MatMul(n, h)
  [softmax] o = Softmax<axis = -1>(p)
  [back] y = Cast<to = 1>(o)
}"""
KEPT = ("Layers:\n", "ForeignNode {")


def text() -> str:
    """The model, with its weights written out."""
    weights = ", ".join(f"0.{number % 7 + 1}" for number in range(144))
    product = ", ".join(f"0.{number % 5 + 1}" for number in range(32))
    return MODEL.replace("WEIGHTS", weights).replace("PRODUCT", product)


class Log(trt.ILogger):  # type: ignore[misc]
    """Keeps what is about layers."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.kept: list[str] = []

    def log(self, severity: Any, msg: str) -> None:
        """TensorRT's callback."""
        if msg.startswith(KEPT):
            self.kept.append(msg)


def record() -> dict[str, Any]:
    """Build with all details."""
    log = Log()
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    assert parser.parse(onnx.parser.parse_model(text()).SerializeToString()), parser.get_error(0).desc()
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    assert builder.build_serialized_network(network, config) is not None
    return {"version": trt.__version__, "messages": log.kept}


if __name__ == "__main__":
    found = record()
    target = Path(__file__).with_name(f"{found['version']}.json")
    target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
