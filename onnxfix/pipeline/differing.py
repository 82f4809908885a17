"""``diff``: what differs between two files, and between a model and the result of ``apply``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onnx import ModelProto

from onnxfix.difference.compare import difference
from onnxfix.difference.records import ModelDifference
from onnxfix.files import loading
from onnxfix.model import Model
from onnxfix.report.report import Report


def diff(first: Path, second: Path) -> ModelDifference:
    """What differs between two models; both are only read.

    Raises:
        ModelError: a model cannot be read, or defines names twice.
    """
    loaded = loading.load(first), loading.load(second)
    models = [Model(one.proto, one.base_dir) for one in loaded]
    found = difference(models[0], models[1], (str(first), str(second)))
    for one in loaded:
        one.check()
    return found


def with_difference(
    report: Report, original: ModelProto, result: ModelProto, base_dir: Path | None
) -> Report:
    """The report of an ``apply`` with what it changes. ``base_dir`` is the folder of the original's external data.

    Raises:
        ModelError: a file of weights was changed.
    """
    applied = [(one.code, one.place) for one in report.applied]
    models = Model(original, base_dir), Model(result, base_dir)
    return replace(report, difference=difference(*models, (report.path, "the result"), applied))
