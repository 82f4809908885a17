"""The restrictions of NVIDIA's lists, changelog and parser, as predicates that say how a node violates them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from onnx import TensorProto

from onnxfix.rule import Model, Node, Severity, Value, name_of, target_of
from onnxfix_rules.ops.limits import _axes

Predicate = Callable[[Node, Model], str | None]
"""How the node violates the restriction, "" if it satisfies it, None if that is not known."""


def is_weights(**inputs: int) -> Predicate:
    """The named inputs are initializers or Constants, or omitted."""

    def judge(node: Node, model: Model) -> str | None:
        present = {name: node.input(index) for name, index in inputs.items()}
        computed = {
            name: value for name, value in present.items() if value is not None and not _is_weight(value)
        }
        for name in computed:
            if _axes.non_constant(node, model, inputs[name]) is not None:
                return f"{name} is not constant"
        return None if computed else ""

    return judge


def _is_weight(value: Value) -> bool:
    """Whether the parser reads it as weights. An initializer that the caller may override counts as such."""
    return value.initializer is not None or value.is_constant


def is_tensor(node: Node, model: Model) -> str | None:
    """The first input is not weights."""
    data = node.require(0)
    return f"{data.name} is constant" if _is_weight(data) else ""


def has_rank(*ranks: int) -> Predicate:
    """The first input has one of the ranks."""

    def judge(node: Node, model: Model) -> str | None:
        rank = model.shapes.rank(node.require(0))
        return None if rank is None else "" if rank in ranks else f"it has {rank} dimensions"

    return judge


def has_attribute(name: str, allowed: Collection[Any]) -> Predicate:
    """The attribute is absent or has one of the values."""

    def judge(node: Node, _: Model) -> str | None:
        value = node.attr(name, None)
        return "" if value is None or value in allowed else f"{name} is {value}"

    return judge


def has_static_batch(node: Node, model: Model) -> str | None:
    """A ReverseSequence of a known number of sequences: the importer unrolls them, by the lengths or the data."""
    data, lengths = model.shapes.shape(node.require(0)), model.shapes.shape(node.require(1))
    axis = node.attr("batch_axis", 1)
    if data is None or lengths is None or axis >= len(data) or len(lengths) != 1:
        return None
    static = any(dim.value is not None for dim in (lengths[0], data[axis]))
    return "" if static else "the number of sequences is dynamic"


def has_static_axis(node: Node, model: Model) -> str | None:
    """A Hardmax along an axis of known size; before opset 13 along all axes from there on."""
    shape = model.shapes.shape(node.require(0))
    axis = node.attr("axis", -1 if node.opset >= 13 else 1)
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    axis %= len(shape)
    sizes = shape[axis:] if node.opset < 13 else shape[axis : axis + 1]
    return "" if all(dim.value is not None for dim in sizes) else "the size along the axis is dynamic"


def is_second_to_last(node: Node, model: Model) -> str | None:
    """The axis of a TensorScatter is -2, counted from the end."""
    axis, rank = node.attr("axis", -2), model.shapes.rank(node.require(0))
    if axis == -2 or rank == axis + 2:
        return ""
    return None if rank is None and axis >= 0 else f"the axis is {axis}"


def has_equal_pads(node: Node, _: Model) -> str | None:
    """Padding is the same at the beginning and the end of each axis."""
    pads = list(node.attr("pads", ()))
    half = len(pads) // 2
    return "" if pads[:half] == pads[half:] else f"pads are {pads}"


def has_real_signal(node: Node, model: Model) -> str | None:
    """The signal of an STFT is not complex."""
    shape = model.shapes.shape(node.require(0))
    if shape is None or (len(shape) == 3 and shape[-1].value is None):
        return None
    return "the signal is complex" if len(shape) == 3 and shape[-1].value == 2 else ""


_GATES = {"GRU": 2, "LSTM": 3, "RNN": 1}


def has_same_activations(node: Node, _: Model) -> str | None:
    """Both directions of a recurrence have the same activations, with the same parameters."""
    if node.attr("direction", "forward") != "bidirectional":
        return ""
    count = _GATES[node.op_type]
    named = [text.lower() if isinstance(text, str) else text for text in node.attr("activations", ())]
    if named and len(named) != 2 * count:
        return None
    if named[:count] != named[count:]:
        return f"activations are {', '.join(map(str, node.attr('activations')))}"
    for name in ("activation_alpha", "activation_beta"):
        values = list(node.attr(name, ()))
        if values and (node.op_type == "LSTM" or len(values) != 2 * count):
            return None  # which activation each value belongs to depends on the activations
        if values[:count] != values[count:]:
            return f"{name} is {', '.join(f'{value:g}' for value in values)}"
    return ""


def has_no_ellipsis(node: Node, _: Model) -> str | None:
    """The equation of an Einsum has no ellipsis."""
    return "the equation has an ellipsis" if "..." in str(node.attr("equation")) else ""


def has_no_diagonal(node: Node, _: Model) -> str | None:
    """No operand of an Einsum has a label twice."""
    repeated = [
        operand for operand in _operands(node) if len(set(operand) - {"."}) < len(operand.replace(".", ""))
    ]
    return f"{repeated[0]} takes a diagonal" if repeated else ""


def _operands(node: Node) -> list[str]:
    return str(node.attr("equation")).replace(" ", "").partition("->")[0].split(",")


def has_floats(node: Node, model: Model) -> str | None:
    """ArgMax and ArgMin of floats: before 8.6 their importer refuses INT32, and INT64 is read as INT32."""
    elem = model.shapes.elem_type(node.require(0))
    if elem is None:
        return None
    whole = elem in (TensorProto.INT32, TensorProto.INT64)
    if not whole or target_of(model).oldest >= (8, 6):
        return ""
    return f"the data is of {name_of(elem)}"


def is_exact_in_float(node: Node, model: Model) -> str | None:
    """ArgMax and ArgMin of floats: since 8.6 integers are compared as float32."""
    elem = model.shapes.elem_type(node.require(0))
    whole = elem in (TensorProto.INT32, TensorProto.INT64)
    return "integers are compared as float32, so those above 2^24 may be confused" if whole else ""


def has_one_type(node: Node, model: Model) -> str | None:
    """Data and scale have the same type. TensorRT 8 has no networks that are strongly typed."""
    data, scale = (model.shapes.elem_type(node.require(index)) for index in (0, 1))
    if data == scale or target_of(model).oldest < (9,):
        return ""
    if data is None or scale is None:
        return None
    return f"data of {name_of(data)} with a scale of {name_of(scale)} is refused if strongly typed"


def has_known_kernel(node: Node, model: Model) -> str | None:
    """The kernel is weights, or its shape is an attribute."""
    kernel = node.require(1)
    known = _is_weight(kernel) or node.attr("kernel_shape", None) is not None
    return "" if known else "the kernel is computed, and kernel_shape is absent"


def has_packed_layout(node: Node, model: Model) -> str | None:
    """The last dimension of a DFT is 1 or 2."""
    shape = model.shapes.shape(node.require(0))
    if not shape:
        return None
    last = shape[-1].value
    return "" if last in (1, 2) else f"the last dimension is {'dynamic' if last is None else last}"


def has_length_of_inverse(node: Node, _: Model) -> str | None:
    """dft_length is given for the one-sided inverse alone."""
    inverse = bool(node.attr("inverse", 0) and node.attr("onesided", 0))
    if inverse == (node.input(1) is not None):
        return ""
    return "dft_length is missing in a one-sided inverse" if inverse else "dft_length is given"


def has_power_of_two(node: Node, model: Model) -> str | None:
    """A DFT of half precision has a length that is a power of two."""
    data = node.require(0)
    elem, shape = model.shapes.elem_type(data), model.shapes.shape(data)
    if elem is not None and elem not in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        return ""
    length = None if shape is None or len(shape) < 2 else shape[-2].value
    if elem is None or length is None:
        return None
    return "" if length & (length - 1) == 0 else f"{length} is not a power of two"


_Rows = tuple[tuple[str, str, Predicate], ...]
_ERRORS: _Rows = (
    ("InstanceNormalization", "Scales `scale` and biases `B` must be initializers", is_weights(scale=1, B=2)),
    ("InstanceNormalization", "Input rank must be >=3 & <=5", has_rank(3, 4, 5)),
    ("NonMaxSuppression",
     "Inputs `max_output_boxes_per_class`, `iou_threshold`, and `score_threshold` must be initializers",
     is_weights(max_output_boxes_per_class=2, iou_threshold=3, score_threshold=4)),
    ("TopK", "`K` input must be an initializer", is_weights(K=1)),
    ("ReverseSequence", "Dynamic input shapes are unsupported", has_static_batch),
    ("Pad", "`axes` must be an initializer", is_weights(axes=3)),
    ("Pad", "`axes` is taken since 10.0", lambda node, _: "axes is given" if node.input(3) is not None else ""),
    ("Pad", "mode wrap is taken since 10.0", has_attribute("mode", ("constant", "edge", "reflect"))),
    ("Einsum", "Ellipsis and diagonal operations are not supported", has_no_ellipsis),
    ("Einsum", "ellipses and diagonals are taken since 10.12", has_no_diagonal),
    ("Trilu", "N-D input is taken since 8.6", has_rank(2, 3)),
    ("RandomNormalLike RandomUniformLike", "the input must be a tensor (not weights) before 10.11", is_tensor),
    ("Hardmax", "`axis` dimension of input must be a build-time constant", has_static_axis),
    ("GRU LSTM RNN", "activation functions must be the same for both the forward and reverse pass",
     has_same_activations),
    ("GRU LSTM RNN", "in both directions the activation functions must be the same", has_same_activations),
    ("DeformConv", "`input` must have 1D or 2D spatial dimensions", has_rank(3, 4)),
    ("DeformConv", "`pads` for the beginning and end along each spatial axis must be the same", has_equal_pads),
    ("GridSample", "Input must be 4D or 5D", has_rank(4, 5)),
    ("STFT", "Input must be real-valued", has_real_signal),
    ("TensorScatter", "`axis` must be -2", is_second_to_last),
    ("DFT", "the innermost dimension must be a static 1 (real) or 2 (complex)", has_packed_layout),
    ("DFT", "`dft_length` is required for the onesided inverse (C2R) and unsupported otherwise",
     has_length_of_inverse),
    ("DFT", "FP16 and BF16 require power-of-two signal lengths", has_power_of_two),
    ("ArgMax ArgMin", "native INT32 and INT64 since 9.3 (INT32 since 8.6)", has_floats),
)  # fmt: skip
"""Operators, words of the restriction, and the predicate. What another rule reports has no row."""
_WARNINGS: _Rows = (
    (
        "NonMaxSuppression",
        "Output has fixed shape and is padded",
        lambda *_: "it has a row for each box that could be selected",
    ),
)
_NOTES: _Rows = (
    ("ArgMax ArgMin", "native INT32 and INT64 since 9.3", is_exact_in_float),
    ("BatchNormalization", "mixed precision in strongly typed mode since 10.7", has_one_type),
    ("Conv", "kernel shape inference in multi-input convolutions fixed in 10.4", has_known_kernel),
)
"""The same for what does not stop the import in every case."""
RESTRICTIONS: dict[str, list[tuple[Severity, str, Predicate]]] = {}
"""The rows of each operator, the most severe first."""
for _severity, _rows in ((Severity.ERROR, _ERRORS), (Severity.WARNING, _WARNINGS), (Severity.INFO, _NOTES)):
    for _names, _words, _predicate in _rows:
        for _name in _names.split():
            RESTRICTIONS.setdefault(_name, []).append((_severity, _words, _predicate))
