"""``onnxfix check``."""

from __future__ import annotations

from onnxfix.cli.given import Given
from onnxfix.cli.runs import configure, run_models
from onnxfix.errors import UsageError
from onnxfix.options import RunOptions

_OF_TRT = (
    "trt_package", "compute_capability", "trt_min_shapes", "trt_opt_shapes", "trt_max_shapes", "timing_cache",
    "plugins", "memory_limit", "inputs", "input_shapes",
)  # fmt: skip
"""Options that have an effect with ``--trt`` alone."""


def check(given: Given) -> None:
    """Check models."""
    holding = configure(given)
    options, fields = RunOptions(), given.fields()
    if given.trt:
        from onnxfix.tensorrt.records import TrtOptions  # lazy: start-up

        options = RunOptions(trt=TrtOptions())
    else:
        alone = given.inputs_help or given.partition
        needless = [name for name in _OF_TRT if name != "memory_limit" or not alone]
        unused = given.flags(needless)
        if unused:
            raise UsageError(f"{', '.join(unused)}: has no effect without --trt")
        del fields["trt.package"]
    run_models(given, holding, "check", options.with_fields(fields))
