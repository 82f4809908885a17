"""Execute an engine on a GPU, through Polygraphy's ``TrtRunner`` (NVIDIA's own; it serves both packages).

Call it in a sandbox. Whoever develops this without a GPU that TensorRT serves has executed no engine with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnxfix.backends import Unsupported
from onnxfix.backends.trt_package import select_for_polygraphy

Arrays = dict[str, Any]


def run(engine: str, feeds: Sequence[Mapping[str, Any]], *, package: str) -> list[Arrays]:
    """Outputs of the engine file for each feed (input name -> array), as arrays of their own.

    Raises:
        Unsupported: an output has a type that numpy has not.
        Exception: Polygraphy's, with TensorRT's reason in its log: there is no GPU, or not one that it serves.
    """
    select_for_polygraphy(package)
    from polygraphy.backend.trt import EngineFromBytes, TrtRunner

    with TrtRunner(EngineFromBytes(Path(engine).read_bytes())) as runner:
        return [infer(runner, feed) for feed in feeds]


def infer(runner: Any, feed: Mapping[str, Any]) -> Arrays:
    """One inference. The results are read after the stream has come to rest, and copied.

    Polygraphy returns views of buffers that the next inference overwrites; a copy made before the stream is idle
    may hold what was there before.

    Raises:
        Unsupported: an output is no numpy array, or its type or shape is not what the engine says.
    """
    given = {name: np.ascontiguousarray(value).reshape(np.shape(value)) for name, value in feed.items()}
    found = runner.infer(given, check_inputs=True, copy_outputs_to_host=True)
    runner.stream.synchronize()
    return {name: _own(runner, name, value) for name, value in found.items()}


def _own(runner: Any, name: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        raise Unsupported(f"output {name} comes back as {type(value).__name__}: numpy has no such type")
    kind = runner.engine.get_tensor_dtype(name)
    size = kind.itemsize * value.size
    if value.nbytes != size:
        raise Unsupported(
            f"output {name} is {kind.name} in the engine ({size} bytes) and {value.dtype} in numpy"
        )
    shape = tuple(runner.context.get_tensor_shape(name))
    if -1 not in shape and shape != value.shape:  # -1: the data decide, and only the runner knows
        raise Unsupported(f"output {name} has shape {shape} in the engine and {value.shape} in numpy")
    return value.copy()
