"""ONNX Runtime on the CPU, with every optimization off.

ORT's optimizer changes results (Pad before MaxPool, double Q/DQ pairs, ``allowzero``), so it cannot be the reference.
Its Python API neither takes nor returns what numpy has no type for (bfloat16, float8, int4, ...): those cross by
address, as OrtValue.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfix.runtime.backends import NoKernel, Unsupported, ort_weights
from onnxfix.runtime.sandbox import allow_maps

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx

#: ORT's name of a tensor's element type -> (TensorProto enum name, bits per element).
_EXOTIC = {
    "bfloat16": ("BFLOAT16", 16),
    "float8e4m3fn": ("FLOAT8E4M3FN", 8),
    "float8e4m3fnuz": ("FLOAT8E4M3FNUZ", 8),
    "float8e5m2": ("FLOAT8E5M2", 8),
    "float8e5m2fnuz": ("FLOAT8E5M2FNUZ", 8),
    "float8e8m0": ("FLOAT8E8M0", 8),
    "float4e2m1": ("FLOAT4E2M1", 4),
    "int4": ("INT4", 4),
    "uint4": ("UINT4", 4),
    "int2": ("INT2", 2),
    "uint2": ("UINT2", 2),
}


def missing() -> str | None:
    """Why ONNX Runtime cannot be used here; None when it can."""
    if importlib.util.find_spec("onnxruntime") is None:
        return 'onnxruntime is not installed: pip install "onnxfix[cpu]"'
    return None


#: ONNX Runtime's own word for the folder of external data, for a model that is given as bytes.
FOLDER = "session.model_external_initializers_file_folder_path"


def warm() -> None:
    """Import ONNX Runtime."""
    importlib.import_module("onnxruntime")


def load(
    path: str,
    threads: int = 1,
    *,
    lean: bool | None = None,
    mapped: bool = True,
    fused: bool = False,
    like: str = "",
) -> OrtSession:
    """Load a model file.

    Args:
        path: the model; external data lies beside it.
        threads: one makes sums come out the same each time.
        lean: save memory rather than time, which may change the last bits; by default that of large models.
        mapped: large weights are mapped from the model's file where that can be done, which the session then says in
            ``mapped``. False: they are loaded as ONNX Runtime loads them.
        like: a model whose external data is mapped instead of equal data of a large model.
        fused: with ONNX Runtime's optimizations, which add in another order.

    Raises ORT's exceptions, and NoKernel.
    """
    where = ort_weights.stored(path)
    if like and where.large and where.outside:
        where = ort_weights.borrow(path, like) or where
    options = session_options(threads, lean=where.large if lean is None else lean)
    if fused:
        import onnxruntime  # lazy: optional package

        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    if mapped and where.skeleton is not None:
        with contextlib.suppress(Exception):  # an error of the model shows below
            return load_mapped(where.skeleton, where, options)
    with _mapping(where.outside):
        return _session(path, options)


def load_mapped(model: onnx.ModelProto, where: ort_weights.Stored, options: Any) -> OrtSession:
    """Load ``where.skeleton``, or what was made of it. Raises ORT's exceptions, and NoKernel."""
    options.add_session_config_entry(FOLDER, where.folder)
    with _mapping(where.outside + where.inside):
        session = _session(model.SerializeToString(), options)
    session.mapped = where.inside > 0
    return session


def _session(model: str | bytes, options: Any) -> OrtSession:
    import onnxruntime as ort  # lazy: optional package

    # The order in which a node comes when all that it needs is there, by number. The default puts the Casts that ONNX
    # Runtime makes of half-precision weights first, all of them, so that all weights are held in float32 at once.
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    return OrtSession(model, options, ["CPUExecutionProvider"])


@functools.cache
def cuts_off() -> bool:
    """Whether kernels for products of uint8 and int8 cut off sums at 16 bits on this processor, as they do with AVX2
    and without VNNI ("U8S8" in ONNX Runtime's page on quantization). Tried, not looked up."""
    from onnx import numpy_helper, parser  # lazy: start-up

    a, b = np.full((4, 64), 255, np.uint8), np.full((64, 4), 127, np.int8)
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> products (uint8[4,64] x) => (int32[4,4] y) {y = MatMulInteger(x, w)}'
    )
    model.graph.initializer.append(numpy_helper.from_array(b, "w"))
    found = OrtSession(model.SerializeToString(), session_options(), ["CPUExecutionProvider"]).run({"x": a})
    return bool((found[0] != a.astype(np.int32) @ b.astype(np.int32)).any())


@contextlib.contextmanager
def _mapping(size: int) -> Iterator[None]:
    """Within, ``size`` bytes of files may be mapped; afterwards, what is mapped counts for nothing."""
    allow_maps(size)
    try:
        yield
    finally:
        allow_maps()


def session_options(threads: int = 1, *, lean: bool = False) -> Any:
    """``onnxruntime.SessionOptions`` for comparing models: no optimization, and no word on stderr.

    ``lean``: nothing is held to save time. Without its arena ONNX Runtime gives back what a run took, without patterns
    it reserves no room for weights that are mapped, and without packed copies of these it holds none at all.
    """
    import onnxruntime as ort  # lazy: optional package

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    if lean:
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        options.add_session_config_entry("session.disable_prepacking", "1")
    # threads that spin while they wait for each other cost half as much again, and slow the others
    if threads != 1:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    ort.set_default_logger_severity(4)
    return options


@contextlib.contextmanager
def _kernels() -> Iterator[None]:
    """Tell a missing kernel from what is wrong with a model: ONNX Runtime has a status of its own for it.

    Raises:
        NoKernel: ONNX Runtime ended with the status NOT_IMPLEMENTED.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as native  # lazy: optional package

    try:
        yield
    except native.NotImplemented as error:
        raise NoKernel(str(error)) from error


class OrtSession:
    """An ``onnxruntime.InferenceSession`` that takes and returns every element type.

    ``providers`` are names, or names with options, in ONNX Runtime's form. It may silently skip one, but does not try
    again on the CPU when a provider raises.
    """

    def __init__(
        self, path: str | bytes, options: Any, providers: Sequence[str | tuple[str, dict[str, str]]]
    ) -> None:
        import onnxruntime as ort  # lazy: optional package

        self._ort = ort
        with _kernels():
            self._session = ort.InferenceSession(path, options, providers=list(providers), enable_fallback=0)
        self._inputs = {meta.name: _element(meta.type) for meta in self._session.get_inputs()}
        # Overridable initializers are fed like inputs, but are listed apart.
        more = self._session.get_overridable_initializers()
        self._inputs.update({meta.name: _element(meta.type) for meta in more})
        self._types = {meta.name: meta.type for meta in self._session.get_outputs()}
        self.outputs = list(self._types)
        self._odd = [name for name, kind in self._types.items() if _element(kind) in _EXOTIC]
        self._plain = [name for name in self.outputs if name not in self._odd]
        self.mapped = False  # whether weights that the model's file embeds are mapped from it
        for kind in self._types.values():
            if _element(kind) is None and any(
                f"({name})" in kind for name in _EXOTIC
            ):  # in a sequence or map
                raise Unsupported(f"onnxruntime's Python API cannot return {kind}")

    def run(self, feed: dict[str, Any]) -> list[Any]:
        """Execute. Raises ORT's exceptions, NoKernel, and Unsupported for values that cannot cross the Python API."""
        found: dict[str, Any] = {}
        with _kernels():
            given = {name: self._to_ort(name, value) for name, value in feed.items()}
            if self._plain:
                found.update(zip(self._plain, self._session.run(self._plain, given), strict=True))
            if self._odd:
                values = self._session.run_with_ort_values(self._odd, self._all_ort(given))
                found.update(zip(self._odd, map(_from_ort, values), strict=True))
        return [found[name] for name in self.outputs]

    def _to_ort(self, name: str, value: Any) -> Any:
        kind = self._inputs.get(name)
        if kind not in _EXOTIC or value is None:
            return value
        import onnx  # lazy: start-up

        array: npt.NDArray[Any] = np.ascontiguousarray(value).reshape(np.shape(value))
        enum, bits = _EXOTIC[kind]
        onnx_type = onnx.TensorProto.DataType.Value(enum)
        if bits >= 8:
            raw = array.view(np.uint16 if bits == 16 else np.uint8)
            return self._ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, onnx_type)
        native = self._ort.capi._pybind_state
        device = native.OrtDevice(native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 0)
        packed = pack(array, bits)
        tensor = native.OrtValue.ortvalue_from_shape_and_onnx_type(list(array.shape), onnx_type, device)
        if tensor.tensor_size_in_bytes() != packed.nbytes:
            raise Unsupported(f"onnxruntime packs {enum} in a way that onnxfix does not know")
        ctypes.memmove(tensor.data_ptr(), packed.ctypes.data, packed.nbytes)
        return self._ort.OrtValue(tensor)

    def _all_ort(self, given: dict[str, Any]) -> dict[str, Any]:
        """run_with_ort_values takes OrtValues only, which hold neither strings nor sequences here."""
        values = {}
        for name, value in given.items():
            if isinstance(value, np.ndarray) and value.dtype.kind not in "OUS":
                value = self._ort.OrtValue.ortvalue_from_numpy(value)
            if not isinstance(value, self._ort.OrtValue):
                odd = self._types[self._odd[0]]
                raise Unsupported(
                    f"onnxruntime's Python API cannot return {odd} when input {name} is not a number tensor"
                )
            values[name] = value
        return values


def _element(kind: str) -> str | None:
    """``tensor(int4)`` and ``optional(tensor(int4))`` -> ``int4``; None for another type."""
    kind = kind.removeprefix("optional(")
    return kind.removeprefix("tensor(").rstrip(")") if kind.startswith("tensor(") else None


def pack(array: npt.NDArray[Any], bits: int) -> npt.NDArray[np.uint8]:
    """Several elements a byte, the first in the lowest bits (the layout of TensorProto.raw_data)."""
    per = 8 // bits
    flat = array.reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    flat = np.concatenate([flat, np.zeros(-len(flat) % per, np.uint8)]).reshape(-1, per)
    packed = np.zeros(len(flat), np.uint8)
    for place in range(per):
        packed |= flat[:, place] << (bits * place)
    return packed


def _unpack(packed: npt.NDArray[np.uint8], count: int, bits: int, signed: bool) -> npt.NDArray[Any]:
    places = np.arange(0, 8, bits, dtype=np.uint8)
    flat = ((packed[:, None] >> places) & ((1 << bits) - 1)).reshape(-1)[:count]
    if not signed:
        return flat
    wide = flat.astype(np.int8)
    return np.where(wide >= 1 << (bits - 1), wide - (1 << bits), wide).astype(np.int8)


def _from_ort(value: Any) -> npt.NDArray[Any] | None:
    import onnx  # lazy: start-up

    if not value.has_value():
        return None
    name = _element(value.data_type()) or ""
    enum, bits = _EXOTIC[name]
    if value.device_name().lower() != "cpu":  # its address means nothing to ctypes
        raise Unsupported(f"onnxruntime left a {name} tensor on the device {value.device_name()}")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(enum))
    shape = tuple(value.shape())
    size = value.tensor_size_in_bytes()
    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), size) if size else b"", np.uint8)
    if bits >= 8:
        return raw.view(dtype).reshape(shape)
    flat = _unpack(raw, int(np.prod(shape)), bits, name.startswith("int"))
    # float4 is stored as its bits in the low half of a byte; the integers as their value.
    return flat.view(dtype).reshape(shape) if name.startswith("float") else flat.astype(dtype).reshape(shape)
