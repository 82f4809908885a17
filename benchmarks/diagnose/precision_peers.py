"""What other tools make of a model in half precision. Runs in an environment that has them, without onnxfix:

    pip install "nvidia-modelopt[onnx]" onnxconverter-common
    python precision_peers.py KIND MODEL OUTPUT SAMPLE.npz

KIND is autocast (NVIDIA's Model Optimizer, with its defaults and the sample) or float16 (onnxconverter-common, every
node but those of its list of operators to leave alone).
"""

from __future__ import annotations

import sys

import onnx


def main() -> int:
    """Run as the module's docstring says."""
    kind, path, output, sample = sys.argv[1:]
    if kind == "autocast":
        from modelopt.onnx.autocast import convert_to_mixed_precision

        made = convert_to_mixed_precision(
            onnx_path=path, low_precision_type="fp16", keep_io_types=True, calibration_data=sample
        )
    else:
        from onnxconverter_common import float16

        made = float16.convert_float_to_float16(onnx.load(path), keep_io_types=True)
    onnx.save(made, output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
