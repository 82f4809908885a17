"""In a sandbox: what TensorRT's parser makes of one variant, and what ONNX Runtime and ONNX's evaluator make of it."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from misimports.judge import Difference, Judgment, Ran, difference, ignored, judge
from onnxfix.files import walk
from onnxfix.model import Model
from onnxfix.rewrite import engine
from onnxfix.rewrite.registry import registry
from onnxfix.runtime import backends
from onnxfix.runtime.causes import Problem
from onnxfix.runtime.replies import accept
from onnxfix.runtime.sandbox import note, one_line
from onnxfix.targets import target_named
from onnxfix.tensorrt import lift
from onnxfix.tensorrt.lift.network import Layer, Network
from onnxfix.tensorrt.lift.records import Lifted
from onnxfix.tensorrt.log import logger_of
from onnxfix.tensorrt.package import load

#: Of more layers than this only the kinds are told.
_MOST = 160


def described(path: str, package: str) -> str:
    """Every layer of what TensorRT's parser makes of the model file; call it where it may crash."""
    trt = load(package)
    log, _ = logger_of(trt)
    builder = trt.Builder(log)
    raw = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(raw, log)
    if not parser.parse_from_file(path):
        return ""
    network = Network(trt, raw)
    if len(network.layers) > _MOST:
        return ", ".join(f"{count} {kind}" for kind, count in network.kinds)
    return "\n".join(_line(trt, layer) for layer in network.layers)


def _line(trt: Any, layer: Layer) -> str:
    inputs = ", ".join("–" if one is None else one.name for one in layer.inputs)
    outputs = ", ".join(f"{one.name} {one.dtype}{list(one.shape or ())}" for one in layer.outputs)
    said = " ".join(f"{key}={value}" for key, value in _parameters(trt, layer))
    return f"{layer.kind}({inputs}) -> {outputs}" + (f"  {said}" if said else "")


def _parameters(trt: Any, layer: Layer) -> list[tuple[str, str]]:
    common = set(dir(trt.ILayer)) - ({"type"} if layer.kind in ("ACTIVATION", "POOLING") else set())
    found = []
    for name in sorted(set(dir(type(layer.native))) - common):
        if name.startswith("_"):
            continue
        try:
            text = _text(getattr(layer.native, name))
        except (
            AttributeError,
            RuntimeError,
            TypeError,
            ValueError,
        ):  # this form of the layer has no such property
            text = ""
        if text:
            found.append((name, text))
    return found


def _text(value: Any) -> str:
    if value is None or callable(value):
        return ""
    if isinstance(value, (bool, int, float, str)):
        return str(value)
    if isinstance(value, np.ndarray):
        flat = value.reshape(-1)
        return (
            ""
            if not flat.size
            else "[" + ",".join(f"{one:.4g}" for one in flat[:8].tolist()) + (",…]" if flat.size > 8 else "]")
        )
    if hasattr(value, "name") and hasattr(type(value), "__members__"):
        return str(value.name)
    try:
        return "[" + ",".join(str(int(one)) for one in value) + "]"
    except (TypeError, ValueError):
        return ""


PACKAGE = "tensorrt-rtx"


@accept
@dataclass(frozen=True)
class Said:
    """A finding of onnxfix's rules: code, severity, operator of the node it names ("" for none)."""

    code: str
    severity: str
    operator: str


@accept
@dataclass(frozen=True)
class Found:
    """What became of one variant.

    ``checked`` is what ONNX's checker and strict inference say against it ("" for nothing), ``status`` that of
    ``Lifted``. ``layers`` and ``said`` are there where anybody disagrees, ``text`` is the model then, and
    ``operator`` that of the first node whose output differs, "" where nobody can say.
    """

    status: str
    checked: str = ""
    judgment: Judgment = field(default_factory=lambda: Judgment("invalid"))
    reason: str = ""
    gaps: tuple[str, ...] = ()
    layers: str = ""
    said: tuple[Said, ...] = ()
    text: str = ""
    operator: str = ""
    version: str = ""

    @property
    def parsed(self) -> bool:
        """Whether TensorRT's parser takes it."""
        return self.status in ("lifted", "unlifted")


def look(data: bytes, feed: Mapping[str, Any], skip: Sequence[str], half: str, random: bool) -> Found:
    """Judge one variant on its inputs. ``skip`` are steps that killed the process before (lift, onnxruntime,
    evaluator)."""
    warnings.simplefilter("ignore")
    os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"
    model = onnx.load_model_from_string(data)
    note("check")
    checked = _checked(model)
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "model.onnx", Path(folder) / "lifted.onnx"
        path.write_bytes(model.SerializeToString())
        note("lift")
        known = (
            Lifted("crash", "it killed the process")
            if "lift" in skip
            else lift.lift(str(path), str(out), package=PACKAGE)
        )
        ort, evaluator = (_run(name, str(path), feed, skip) for name in ("ort-cpu", "reference"))
        unheard = next(filter(None, map(ignored, walk.nodes(model.graph.node))), "")
        evaluator = Ran(words=unheard) if unheard else evaluator
        if checked and known.status != "lifted":
            return Found(known.status, checked, Judgment("invalid", words=checked), known.reason)
        if not known.lifted:
            ran = ort.ok or evaluator.ok
            verdict = Judgment("not run" if ran else "invalid", words=known.reason)
            gaps = tuple(f"{one.kind}: {one.reason}" for one in known.gaps)
            return Found(known.status, checked, verdict, known.reason, gaps, version=known.version)
        if checked or not (ort.ok or evaluator.ok):
            words = checked or f"onnxruntime: {ort.words}; evaluator: {evaluator.words}"
            return Found("lifted", checked, Judgment("invalid", words=words), version=known.version)
        found = _reading(known, out, model, feed, ort, evaluator, skip, half, random)
        if found.verdict == "equal":
            return Found("lifted", "", found, version=known.version)
        note("layers")
        return Found(
            "lifted",
            "",
            found,
            layers=described(str(path), PACKAGE),
            said=_said(model),
            text=onnx.printer.to_text(model),
            operator=_first_node(known, out, model, path, feed, half),
            version=known.version,
        )


def _checked(model: ModelProto) -> str:
    """What is wrong with the model by ONNX's own checker; outputs get the types that ONNX infers (in place)."""
    cleared = ModelProto()
    cleared.CopyFrom(model)
    unknown = [info for info in cleared.graph.output if not _is_known(info)]
    for info in unknown:
        info.ClearField("type")
    try:
        inferred = onnx.shape_inference.infer_shapes(cleared, strict_mode=True, data_prop=True)
    except Exception as error:
        return f"inference: {one_line(error)}"
    names = {info.name for info in unknown}
    for info, new in zip(model.graph.output, inferred.graph.output, strict=True):
        if info.name in names and new.type.tensor_type.HasField("shape"):
            info.CopyFrom(new)
    try:
        onnx.checker.check_model(model)
    except Exception as error:
        return f"checker: {one_line(error)}"
    return ""


def _is_known(info: onnx.ValueInfoProto) -> bool:
    """Whether an output says anything of its sizes."""
    if not info.type.HasField("tensor_type"):
        return True
    return any(dim.WhichOneof("value") for dim in info.type.tensor_type.shape.dim)


def _run(
    backend: str, path: str, feed: Mapping[str, Any], skip: Sequence[str] = (), names: Sequence[str] = ()
) -> Ran:
    step = "onnxruntime" if backend == "ort-cpu" else "evaluator"
    if step in skip:
        return Ran(words="it killed the process")
    note(step)
    try:
        session = backends.load(backend, path)
        values = session.run(dict(feed))
    except Exception as error:
        return Ran(words=one_line(error))
    if any(
        isinstance(one, np.ndarray) and one.dtype == object and one.size and one.flat[0] is None
        for one in values
    ):
        return Ran(words="an output without a value")
    return Ran(dict(zip(names or session.outputs, values, strict=True)))


def _reading(
    known: Lifted, out: Path, model: ModelProto, feed: Mapping[str, Any], ort: Ran, evaluator: Ran,
    skip: Sequence[str], half: str, random: bool,
) -> Judgment:  # fmt: skip
    """The lifted model's own outputs against those of the original."""
    wanted = [info.name for info in model.graph.output]
    given, renamed = _given(known, model, feed)
    if given is None:
        return Judgment("different", "interface", renamed)
    drawn = wanted if random else known.drawn
    names = [tensor.name for tensor in known.outputs]
    names = wanted if len(names) == len(wanted) and set(names) != set(wanted) else names
    first = _ordered(_run("ort-cpu", str(out), given, (), names), wanted)
    found = judge(ort, evaluator, [first], half, drawn)
    if found.verdict in ("equal", "evaluator", "onnxruntime"):
        return found if renamed is None else Judgment("different", "interface", renamed)
    second = _ordered(_run("reference", str(out), given, (), names), wanted)
    return judge(ort, evaluator, [first, second], half, drawn)


def _first_node(
    known: Lifted, out: Path, model: ModelProto, path: Path, feed: Mapping[str, Any], half: str
) -> str:
    """The operator of the first node whose outputs differ."""
    if len(model.graph.node) < 2:
        return ""
    given, _ = _given(known, model, feed)
    made = [name for node in model.graph.node for name in node.output if name in known.names]
    if given is None or not made:
        return ""
    original = _with_outputs(path, made)
    lifted = _with_outputs(out, [known.names[name] for name in made])
    for backend in ("ort-cpu", "reference"):
        a, b = _run(backend, original, feed), _run(backend, lifted, given)
        if a.values is None or b.values is None:
            continue
        for node in model.graph.node:
            for name in node.output:
                pair = ({name: a.values.get(name)}, {name: b.values.get(known.names.get(name, ""))})
                if name in made and difference(*pair, half) is not None:
                    return str(node.op_type)
    return ""


def _with_outputs(path: Path, names: Sequence[str]) -> str:
    """A copy of a model that gives these values too, without declaring what they are like."""
    model = onnx.load(path, load_external_data=False)
    there = {info.name for info in model.graph.output}
    model.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in there
    )
    copy = path.with_name(f"all-{path.name}")
    copy.write_bytes(model.SerializeToString())
    return str(copy)


def _ordered(ran: Ran, wanted: Sequence[str]) -> Ran:
    if ran.values is None or set(ran.values) != set(wanted):
        return ran
    return Ran({name: ran.values[name] for name in wanted})


def _given(
    known: Lifted, model: ModelProto, feed: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, Difference | None]:
    """The inputs by the names and types that TensorRT has, by place where the names differ; None where it cannot be."""
    types = {tensor.name: tensor.dtype for tensor in known.inputs}
    names = [info.name for info in model.graph.input if info.name in feed]
    if set(types) <= set(names):
        return {name: _as(feed[name], types[name]) for name in names if name in types}, None
    renamed = Difference("interface", "inputs", str(names), str(list(types)))
    if len(types) != len(names):
        return None, renamed
    return {name: _as(feed[old], types[name]) for name, old in zip(types, names, strict=True)}, renamed


def _as(value: Any, dtype: str) -> Any:
    from onnxfix.tensorrt.lift.records import numpy_type

    array = np.asarray(value)
    with np.errstate(all="ignore"):
        return array if array.dtype == numpy_type(dtype) else array.astype(numpy_type(dtype))


def _said(model: ModelProto) -> tuple[Said, ...]:
    """What onnxfix's rules say of the model for TensorRT-RTX and for TensorRT."""
    rules, problems = registry().choose(["ALL"], None), list[Problem]()
    found: dict[Said, None] = {}
    for target in ("rtx", None):
        whole = Model(model, None)
        whole.target = target_named(target)
        for one in engine.check(whole, rules, problems):
            node = one.match.node
            operator = node.op_type if node is not None else ""
            found[Said(one.rule.code, one.severity.name.lower(), operator)] = None
    return tuple(found)
