"""Models that cases begin with: rules' examples, ONNX's node models, folders, and some made by hand."""

from __future__ import annotations

import bisect
import hashlib
import os
import pickle
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper, parser
from onnx_cases import onnx_cases

TEXTS = {
    path.stem: path.read_text("utf-8") for path in sorted(Path(__file__).parent.glob("models/*.onnxtxt"))
}
"""Models made by hand, in ONNX's text format."""


def _external() -> ModelProto:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 16] x) => (float[N, 16] y) { a = Add(x, b)  m = MatMul(a, w)  c = Cast<to = 1>(m)  y = Mul(c, h) }""")
    offset = 0
    for name, dims in (("w", [16, 16]), ("b", [16]), ("h", [1])):
        tensor = model.graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        length = 4 * int(np.prod(dims))
        for key, value in (("location", "weights.bin"), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        offset += length
    return model


WEIGHTS = np.linspace(-1, 1, 273, dtype=np.float32).tobytes()
"""What belongs beside a model that names ``weights.bin``."""


def _tensors() -> ModelProto:
    """Tensors of every type, as initializers and in attributes, dense, sparse and of strings."""
    kinds = [kind for kind in TensorProto.DataType.values() if kind not in (0, TensorProto.STRING)]
    nodes, initializers = [], []
    for kind in kinds:
        raw = bytes(range(16)) * (2 if kind in (TensorProto.COMPLEX64, TensorProto.COMPLEX128) else 1)
        size = helper.tensor_dtype_to_np_dtype(kind).itemsize
        tensor = TensorProto(name=f"w{kind}", data_type=kind, dims=[max(1, len(raw) // size)], raw_data=raw)
        initializers.append(tensor)
        nodes.append(helper.make_node("Cast", [tensor.name], [f"c{kind}"], to=TensorProto.FLOAT))
    initializers.append(helper.make_tensor("text", TensorProto.STRING, [2], [b"a", b"\xff"]))
    values = numpy_helper.from_array(np.array([1.5, 2.5], np.float32), "sparse")
    indices = numpy_helper.from_array(np.array([0, 3], np.int64), "at")
    sparse = helper.make_sparse_tensor(values, indices, [6])
    nodes += [
        helper.make_node("Constant", [], ["k"], sparse_value=sparse),
        helper.make_node("Constant", [], ["strings"], value_strings=["a", "b"]),
        helper.make_node("Add", ["k", "x"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tensors",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["M"])],
        initializers,
        sparse_initializer=[sparse],
    )
    imports = [helper.make_opsetid("", 24), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=imports, ir_version=12)


def _annotated() -> ModelProto:
    """Quantization annotations, metadata at each place, training information, a map, a device configuration."""
    model = parser.parse_model(TEXTS["quantized"])
    graph = model.graph
    annotation = graph.quantization_annotation.add(tensor_name="x")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    annotation.quant_parameter_tensor_names.add(key="ZERO_POINT_TENSOR", value="z")
    for place in (model, graph, graph.node[0], graph.input[0], graph.initializer[0]):
        place.metadata_props.add(key="author", value="somebody")
    graph.input[0].type.denotation = "TENSOR"
    graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    classes = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, []))
    graph.output.append(helper.make_value_info("probabilities", helper.make_sequence_type_proto(classes)))
    graph.node.append(
        helper.make_node(
            "ZipMap", ["y"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2, 3]
        )
    )
    model.opset_import.extend([helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("own", 1)])
    training = model.training_info.add()
    training.algorithm.CopyFrom(parser.parse_graph("t (float[4] i) => (float[4] o) { o = Neg(i) }"))
    training.update_binding.add(key="w", value="o")
    model.configuration.add(name="mesh", num_devices=2)
    graph.node[3].device_configurations.add(configuration_id="mesh", pipeline_stage=1)
    odd = graph.node.add(
        op_type="Own", domain="own", name="all attributes", input=["x", ""], output=["", "p"]
    )
    odd.attribute.append(helper.make_attribute("types", [helper.make_tensor_type_proto(1, ["N"])]))
    odd.attribute.append(helper.make_attribute("text", "\u00e9"))
    odd.attribute.append(
        AttributeProto(name="graphs", type=AttributeProto.GRAPHS, graphs=[training.algorithm])
    )
    return model


def handmade() -> Iterator[tuple[str, bytes]]:
    """The models by name."""
    for name, text in TEXTS.items():
        yield name, parser.parse_model(text).SerializeToString(deterministic=True)
    for name, make in (("external", _external), ("tensors", _tensors), ("annotated", _annotated)):
        yield name, make().SerializeToString(deterministic=True)


ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 500_000
"""Larger models are left out: a mutant of one costs as much as a hundred of others."""

Named = Iterator[tuple[str, bytes]]


def _rules() -> Named:
    from onnxfix.rewrite.registry import registry
    from onnxfix.testing import model_of

    for rule in sorted(registry().choose(), key=lambda one: one.code):
        for place, example in enumerate(rule.examples):
            yield f"{rule.code}-{place}", model_of(example).SerializeToString(deterministic=True)


def _apart(make: Callable[[], Named]) -> Named:
    """What ``make`` gives, made in a fork: a process with much memory takes longer to fork, once for each file."""
    with tempfile.TemporaryFile() as stream:
        pid = os.fork()
        if pid == 0:
            try:
                stream.write(pickle.dumps(list(make())))
                stream.flush()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        stream.seek(0)
        yield from pickle.load(stream)


def _nodes() -> Named:
    for name, case in onnx_cases().items():
        yield name, case.model.SerializeToString(deterministic=True)


def _folder(folder: Path) -> Named:
    for path in sorted(folder.rglob("*.onnx")):
        if path.stat().st_size <= MOST_BYTES:
            yield path.relative_to(folder).with_suffix("").as_posix(), path.read_bytes()


GROUPS: dict[str, tuple[float, Callable[[], Named]]] = {
    "rules": (0.42, _rules),
    "node": (0.28, lambda: _apart(_nodes)),
    "handmade": (0.16, handmade),
    "backend": (0.07, lambda: _folder(Path(onnx.__file__).parent / "backend" / "test" / "data")),
    "fixtures": (0.07, lambda: _folder(ROOT / "fixtures")),
}
"""The share of the models that a group gives, and the group's models by name."""
ALL = tuple(GROUPS)
QUICK = ("rules", "handmade")
"""Groups that take half a second to make."""


class Ring:
    """The models of a group. ``models`` are by name."""

    def __init__(self, models: Named) -> None:
        self.models = dict(models)
        self._points = sorted((hashlib.sha256(name.encode()).hexdigest(), name) for name in self.models)

    def draw(self, generator: random.Random) -> tuple[str, bytes]:
        """A model, and its name."""
        point = f"{generator.getrandbits(256):064x}"
        _, name = self._points[bisect.bisect(self._points, (point, "")) % len(self._points)]
        return name, self.models[name]


@cache
def ring(group: str) -> Ring:
    """The models of a group, made once."""
    return Ring(GROUPS[group][1]())


def draw(generator: random.Random, groups: Sequence[str] = ALL) -> tuple[str, bytes]:
    """A model of one of the groups, and its name: "group/model"."""
    group = generator.choices(groups, [GROUPS[one][0] for one in groups])[0]
    name, data = ring(group).draw(generator)
    return f"{group}/{name}", data
