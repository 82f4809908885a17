"""What other tools make of a model in half precision. Runs in an environment that has them, without onnxfix:

    pip install "nvidia-modelopt[onnx]" onnxconverter-common
    python precision_peers.py KIND MODEL OUTPUT CALIBRATION.npz

KIND is autocast or autocast-bf16 (NVIDIA's Model Optimizer), float16 (onnxconverter-common, every node) or float16-auto
(the same tool's search, within the tolerance in the environment variable RTOL).
"""

from __future__ import annotations

import os
import sys

import numpy as np
import onnx


def autocast(path: str, feed: str, kind: str) -> onnx.ModelProto:
    """Float16 or bfloat16 by NVIDIA's AutoCast, with its defaults and the sample."""
    from modelopt.onnx.autocast import convert_to_mixed_precision

    return convert_to_mixed_precision(
        onnx_path=path, low_precision_type=kind, keep_io_types=True, calibration_data=feed
    )


def plain(path: str) -> onnx.ModelProto:
    """Float16 by onnxconverter-common, but for its list of operators to leave alone."""
    from onnxconverter_common import float16

    return float16.convert_float_to_float16(onnx.load(path), keep_io_types=True)


def searched(path: str, feed: str) -> onnx.ModelProto:
    """Float16 by onnxconverter-common's search: nodes that keep the outputs within a tolerance."""
    from onnxconverter_common import auto_mixed_precision

    with np.load(feed) as archive:
        sample = {name: archive[name] for name in archive.files}
    rtol = float(os.environ.get("RTOL", "0.01"))
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    return auto_mixed_precision.auto_convert_mixed_precision(
        model, sample, rtol=rtol, atol=rtol / 10, keep_io_types=True
    )


def main() -> int:
    """Run as the module's docstring says."""
    kind, path, output, feed = sys.argv[1:]
    if kind.startswith("autocast"):
        made = autocast(path, feed, "bf16" if kind.endswith("bf16") else "fp16")
    elif kind == "float16":
        made = plain(path)
    else:
        made = searched(path, feed)
    onnx.save(made, output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
