"""ONNX's standard backend interface on TensorRT, with and without repair::

    import onnxfix.backend as backend

    prepared = backend.prepare(model, "CUDA")      # repaired (exact fixes, proven), then an engine
    (y,) = prepared.run([x])
    AsIs.prepare(model, "CUDA")                    # the same without a repair

The functions of this module are those of ``Repaired``. ONNX's conformance tests run against any of the classes:
``onnx.backend.test.BackendTest(AsIs)``. docs/conformance.md has the results.

Two devices: on ``CUDA`` an engine is built and executed on the first GPU. ``CPU`` needs no GPU and executes no engine:
TensorRT's parser imports the model, the network that it made is read back as ONNX, and ONNX Runtime executes that. So
``CPU`` shows what TensorRT understood, and nothing about its kernels.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, defs, helper, shape_inference
from onnx.backend.base import Backend, BackendRep, namedtupledict

from onnxfix.api.repair import apply
from onnxfix.backend.devices import CPU, CUDA, BackendError, Engines, Network, Options, Repair, opened, split
from onnxfix.errors import ModelError, UsageError
from onnxfix.files import loading, saving
from onnxfix.proof.readback.values import inputs_of
from onnxfix.proof.validity import MEMORY_MB, TIMEOUT_S
from onnxfix.runtime.sandbox import forked
from onnxfix.targets import DEFAULT, target_judging
from onnxfix.tensorrt.package import Choice
from onnxfix.tensorrt.records import TrtOptions

if TYPE_CHECKING:
    from onnxfix.report.report import Report
    from onnxfix.verbs.opening import Source

__all__ = [
    "AsIs", "BackendError", "NumericallyRepaired", "Prepared", "Repaired", "TensorrtBackend", "is_compatible",
    "prepare", "run_model", "run_node", "supports_device",
]  # fmt: skip

PROOF = ("reference", "ort-cpu")
"""The checks that prove a repair here."""
_FOR_TESTS = ("rtol", "atol")
"""Keywords of ``prepare`` that onnx's BackendTest means for itself."""


class Prepared(BackendRep):
    """A model that is ready to run. Not for use by two threads at once.

    ``device`` is what it runs on, ``repair`` what was asked for, ``report`` that of the repair (None: none was asked
    for), ``changed`` whether TensorRT got another model than the one given.
    """

    def __init__(
        self,
        device: str,
        options: Options,
        path: Path,
        side: Engines | Network,
        report: Report | None,
        folder: object,
    ) -> None:
        self.device, self.repair, self.report = device, options.repair, report
        self.changed = report is not None and bool(report.output) and report.changed
        graph = loading.open_model(path).proto.graph
        self._inputs = [info.name for info in inputs_of(graph)]
        self._outputs = {info.name: info.type.tensor_type.elem_type for info in graph.output}
        self._side, self._folder = side, folder  # which is removed when nothing refers to it any more

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs in the order of the graph; ``found["name"]`` works as well.

        Args:
            inputs: arrays in the order of the graph's inputs, a dict by name, or the array of a single input.
            **kwargs: none.

        Raises:
            BackendError: the inputs are not those of the model, or it fails on them.
            UsageError: there are keywords.
        """
        if kwargs:
            raise UsageError(f"run takes no {', '.join(sorted(kwargs))}")
        found = self._side.run(self._feed(inputs))
        lacking = [name for name in self._outputs if name not in found]
        if lacking:
            raise BackendError(f"{self.device} gives no output {', '.join(lacking)}", "run")
        doubles = {name for name, elem in self._outputs.items() if elem == TensorProto.DOUBLE}
        values = [
            # TensorRT computes float64 in float32.
            found[name].astype(np.float64)
            if name in doubles and found[name].dtype == np.float32
            else found[name]
            for name in self._outputs
        ]
        outputs: tuple[Any, ...] = namedtupledict("Outputs", list(self._outputs))(*values)
        return outputs

    def _feed(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            values = dict(inputs)
        else:
            given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            if len(given) != len(self._inputs):
                wanted = (
                    f"{len(self._inputs)} inputs ({', '.join(self._inputs)})" if self._inputs else "no input"
                )
                raise BackendError(f"the model has {wanted}, and {len(given)} were given", "inputs")
            values = dict(zip(self._inputs, given, strict=True))
        odd = sorted(set(values) ^ set(self._inputs))
        if odd:
            raise BackendError(
                f"inputs that were given and those of the model differ: {', '.join(odd)}", "inputs"
            )
        strange = [name for name, value in values.items() if not isinstance(value, (np.ndarray, np.generic))]
        if strange:
            raise BackendError(
                f"input {strange[0]} is no array: TensorRT takes tensors only", "inputs", "refused"
            )
        return {name: np.asarray(value) for name, value in values.items()}


class TensorrtBackend(Backend):
    """What the backends share. ``default`` is what ``prepare`` repairs unless told otherwise."""

    default: ClassVar[Repair] = "exact"

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models run on ``CUDA`` (or ``CUDA:0``) or on ``CPU`` here."""
        return not _lacking(device, os.getpid())

    @classmethod
    def is_compatible(cls, model: Source, device: str = CPU, **kwargs: Any) -> bool:
        """Whether ``prepare`` takes the model on that device. False also where the device is not there."""
        try:
            cls.prepare(model, device, **kwargs)
        except (BackendError, ModelError):
            return False
        return True

    @classmethod
    def prepare(cls, model: Source, device: str = CUDA, **kwargs: Any) -> Prepared:
        """Repair a model, and have TensorRT take it.

        On ``CUDA`` a model whose inputs leave no size open is built here; any other is built when it is run, once for
        each set of sizes, or here where ``trt`` has a profile for it.

        Args:
            model: ``ModelProto`` (never changed), bytes, or a path.
            device: ``CUDA`` or ``CPU``; the module's docstring says what they mean.
            **kwargs: ``repair`` ("none", "exact" or "numeric"; by default that of the class), ``target`` (default: that
                of the TensorRT installed), ``verify`` (False: no proof of the repair), ``trt`` (``TrtOptions``), and
                ``timeout`` (seconds of a run). A repair that is not proven is not used.

        Raises:
            BackendError: the device is not there, or TensorRT does not take the model; with the reason.
            ModelError: the model cannot be read.
            UsageError: an option does not exist, or does not fit the model.
        """
        options = options_of(cls.default, kwargs)
        found = opened(device, options.trt)
        folder = TemporaryDirectory(prefix="onnxfix-", ignore_cleanup_errors=True)
        path, report = cls.repaired(
            model, Path(folder.name), options, options.target or target_of(found.choice)
        )
        kind = Engines if split(device)[0] == CUDA else Network
        side = kind(found, path, Path(folder.name), options)
        return Prepared(device, options, path, side, report, folder)

    @classmethod
    def repaired(
        cls, model: Source, folder: Path, options: Options, target: str
    ) -> tuple[Path, Report | None]:
        """The file that TensorRT gets, and the report of the repair; ``folder`` is a place to write to.

        Raises:
            ModelError: the model cannot be read.
        """
        path = folder / "model.onnx"
        if isinstance(model, (str, os.PathLike)):
            path = Path(model).absolute()  # a sandbox stays in the folder that it was started in
        else:
            path.write_bytes(model if isinstance(model, bytes) else saving.serialize(model))
        if options.repair == "none":
            loading.open_model(path)  # that it is a model
            return path, None
        result = folder / "repaired.onnx"
        report = apply(
            model,
            result,
            target=target,
            numeric_fixes=options.repair == "numeric",
            verify=options.verify,
            rungs=PROOF if options.verify else None,
            memory_mb=options.trt.memory_mb,
        )
        return (result if report.output else path), report

    @classmethod
    def run_model(cls, model: Source, inputs: Any, device: str = CUDA, **kwargs: Any) -> tuple[Any, ...]:
        """``prepare`` and run once; raises what both raise."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = CUDA,
        outputs_info: OutputsInfo | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run a single node: a model of it is made and run.

        Args:
            node: the node.
            inputs: arrays for its inputs, without the omitted ones.
            device: as for ``prepare``.
            outputs_info: types and shapes of the outputs; inferred by default.
            **kwargs: ``opset_version`` (default: the first with the newest form of the operator), and the keywords of
                ``prepare``.

        Raises:
            BackendError, ModelError, UsageError: as for ``prepare``; also, the inputs are not those of the node.
        """
        arrays = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        opset = kwargs.pop("opset_version", None)
        return cls.run_model(model_of(node, arrays, outputs_info, opset), arrays, device, **kwargs)


class AsIs(TensorrtBackend):
    """TensorRT on the model as it is."""

    default = "none"


class Repaired(TensorrtBackend):
    """TensorRT on the model after ``onnxfix apply``: exact fixes, proven."""

    default = "exact"


class NumericallyRepaired(TensorrtBackend):
    """TensorRT on the model after ``onnxfix apply --numeric-fixes``, proven within tolerance."""

    default = "numeric"


def options_of(repair: Repair, keywords: Mapping[str, Any]) -> Options:
    """The keywords of ``prepare`` as a record.

    Raises:
        UsageError: there is no such keyword.
    """
    known = {one.name for one in fields(Options)}
    odd = sorted(set(keywords) - known - set(_FOR_TESTS))
    if odd:
        raise UsageError(f"prepare has no {', '.join(odd)}; it has {', '.join(sorted(known))}")
    return Options(**{"repair": repair, **{name: keywords[name] for name in keywords if name in known}})


@functools.cache
def _lacking(device: str, process: int) -> str:
    """Why a device is not there; asked once per process, since BackendTest asks for each of its tests."""
    try:
        opened(device, TrtOptions()).close()
    except BackendError as error:
        return str(error)
    return ""


def target_of(choice: Choice) -> str:
    """The release of the TensorRT that is used; the default target if it is unknown."""
    return (target_judging(choice.package, choice.version) or DEFAULT).name


OutputsInfo = Sequence[tuple[Any, tuple[int, ...]]]


def model_of(
    node: NodeProto, arrays: Sequence[Any], outputs: OutputsInfo | None, opset: int | None
) -> ModelProto:
    """A model that holds the node alone.

    Args:
        node: of ONNX's own domain.
        arrays: for its inputs, in order, without the omitted ones; one of the same name is given once.
        outputs: type and shape of each output; None to infer them.
        opset: version of ONNX's operator set; None for the first with the newest form of the operator.

    Raises:
        BackendError: there are more arrays than inputs, or fewer.
        ModelError: there is no such operator, or its outputs cannot be inferred.
    """
    names = list(dict.fromkeys(name for name in node.input if name))
    if len(names) != len(arrays):
        raise BackendError(f"{node.op_type} has {len(names)} inputs, and {len(arrays)} were given", "inputs")
    values = dict(zip(names, map(np.asarray, arrays), strict=True))
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in values.items()
    ]
    found = [name for name in node.output if name]
    if outputs is None:
        declared = [helper.make_empty_tensor_value_info(name) for name in found]
    else:
        pairs = zip(found, outputs, strict=False)
        declared = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)
            for name, (kind, shape) in pairs
        ]
    try:
        version = opset or int(defs.get_schema(node.op_type, node.domain).since_version)
    except defs.SchemaError:
        where = f"the domain {node.domain}" if node.domain else "ONNX"
        raise ModelError(f"there is no operator {node.op_type} in {where}; give opset_version") from None
    graph = helper.make_graph([node], "node", inputs, declared)
    model = helper.make_model_gen_version(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
    return model if outputs is not None else _inferred(model)


def _inferred(model: ModelProto) -> ModelProto:
    """The model with the types of its outputs; ONNX's C++ code that finds them may crash."""
    done = forked(_infer, model.SerializeToString(), timeout=TIMEOUT_S, memory_mb=MEMORY_MB)
    if not done.ok:
        op_type = model.graph.node[0].op_type
        raise ModelError(f"the outputs of {op_type} cannot be inferred; give outputs_info: {done.message}")
    return onnx.load_model_from_string(done.value)


def _infer(model: bytes) -> bytes:
    found = shape_inference.infer_shapes(
        onnx.load_model_from_string(model), check_type=True, strict_mode=True
    )
    return bytes(found.SerializeToString())


supports_device = Repaired.supports_device
is_compatible = Repaired.is_compatible
prepare = Repaired.prepare
run_model = Repaired.run_model
run_node = Repaired.run_node
