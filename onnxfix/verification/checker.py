"""onnx's checker, asked about a model without its weights. Called in a fork: it is foreign native code."""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, TensorProto

from onnxfix.errors import ModelError
from onnxfix.graph import lazy, tensors, wire
from onnxfix.sandbox import one_line


def check(path: str, folder: str) -> str:
    """onnx's checker on a model file; returns its complaint on one line, or an empty text.

    The checker would read the weights for nothing but their number of bytes. It is given a copy of the model in
    ``folder`` that names an empty file for each of them that has the size it should have.
    """
    import onnx

    try:
        loaded = wire.open_model(Path(path))
        if loaded.source is not None:
            _without_weights(loaded.proto, Path(path).parent)
            (Path(folder) / _NOTHING).touch()
            path = str(Path(folder) / "model.onnx")
            Path(path).write_bytes(loaded.proto.SerializeToString())
        onnx.checker.check_model(path)
    except (onnx.checker.ValidationError, ModelError) as error:
        return one_line(error)
    return ""


_NOTHING = "weights"


def _without_weights(proto: ModelProto, base_dir: Path) -> None:
    """Let the tensors whose bytes lie in files name an empty file instead.

    Raises:
        ModelError: external data are not where they should be, or too short.
    """
    for tensor in wire.all_tensors(proto):
        where, external = lazy.range_of(tensor), tensors.is_external(tensor)
        if where is not None and (
            external
            or where.field != lazy.RAW
            or where.length != tensors.nbytes(tensor)
            or tensor.data_type == TensorProto.INT64
        ):
            # The checker looks at the fields that hold numbers, at indices of sparse tensors, and at what is odd.
            lazy.fill(tensor, where)
            continue
        if where is not None:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
        elif external:
            tensors.external_range(tensor, base_dir)
        else:
            continue
        del tensor.external_data[:]
        tensor.external_data.add(key="location", value=_NOTHING)
