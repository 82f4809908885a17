"""The parts of a check that are not onnxfix's own, measured within a process; run by onnxfix's Python.

    python parts.py FILE [--repeat 5]

Prints JSON: seconds, the least of several, of the wire scan (``onnxfix.files.loading.load``) and of ONNX's shape
inference in C++ with data propagation, on the model without its weights; and the number of nodes, those of bodies
included.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onnx import GraphProto, shape_inference

from onnxfix.files import loading
from onnxfix.shapes.inference import skeleton


def least(call: Callable[[], Any], repeat: int) -> float:
    """Seconds of the fastest of several calls."""
    spent = []
    for _ in range(repeat):
        gc.collect()
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return min(spent)


def nodes(graph: GraphProto) -> int:
    """How many nodes, those of bodies included."""
    found = 0
    stack = [graph]
    while stack:
        one = stack.pop()
        found += len(one.node)
        stack += [a.g for node in one.node for a in node.attribute if a.HasField("g")]
        stack += [g for node in one.node for a in node.attribute for g in a.graphs]
    return found


def main() -> None:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    scan = least(lambda: loading.load(arguments.model), arguments.repeat)
    loaded = loading.load(arguments.model)
    bare = skeleton(loaded.proto)
    shapes = least(lambda: shape_inference.infer_shapes(bare, data_prop=True), arguments.repeat)
    print(json.dumps({"scan": scan, "shapes": shapes, "nodes": nodes(loaded.proto.graph)}))


if __name__ == "__main__":
    main()
