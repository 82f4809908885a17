"""The TensorRT that a model is made for, and what it accepts. Rules, severities and messages depend on it.

Operators and types come from NVIDIA's lists (``documented``) and from the real parser and builder of TensorRT-RTX
(``measured``). A list is not the parser: if the two disagree about a type, or only a list excludes it, the answer is
"not known". ``Target.source`` names the source of a target's facts.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from onnxfix.errors import UsageError
from onnxfix.files import dtypes
from onnxfix.names import DEFAULT_TARGET, target_of
from onnxfix.names import TARGETS as NAMES
from onnxfix.targets import documented, measured, plugins
from onnxfix.targets.documented import Types, names, table

_NONE: frozenset[str] = frozenset()


class Support(NamedTuple):
    """How a target supports an operator that its parser imports.

    ``types`` are the element types (ONNX's names: FLOAT, BFLOAT16, FLOAT8E4M3FN ...) of its data that are known to be
    accepted, ``refused`` those known to be refused; all others are unknown. The data is the first input, but the second
    of Where, the values of OneHot, and the output of operators without an input. ``notes`` are restrictions, as text.
    """

    types: frozenset[str]
    refused: frozenset[str] = _NONE
    notes: str = ""


@dataclass(frozen=True)
class Target:
    """A product line of TensorRT.

    ``oldest`` and ``newest`` bound its releases by the parts of a version that they have: (10,) is every 10.x.
    ``types`` are the element types that tensors may have, ``inner`` those allowed between two nodes that are no Q or
    DQ, and ``reads_as`` maps types to the type that they are read as: float64 to float32, and int64 to int32 before 9.0
    (TensorRT 9.0's changelog: "The ONNX parser no longer automatically casts INT64 to INT32").
    ``requires_allowzero``: its parser throws on a Reshape of opset 14 without the attribute (TensorRT 8.0 to 8.4.1; the
    default was added in 8.4.2). ``dynamic_squeeze``: it accepts a Squeeze without axes on dynamic dimensions (10.x and
    11.2 do not: "Cannot infer squeeze dimensions from a dynamic shape."). ``types_measured``: the types of operators
    were measured, with this product line or one of the same generation. ``ignores_axes``: reductions of opset 18 whose
    axes it does not read, so that it reduces all. ``missing`` are standard operators that it does not import, each with
    the reason, "" if there is no importer. ``plugins`` are those that it ships, and those that the user loads.
    ``refused`` are the names of operators that it refuses whatever their domain, and even if a local function or a
    plugin has the name. ``calls_functions``: it imports local functions (TensorRT 9.0's changelog).
    """

    name: str
    title: str
    oldest: tuple[int, ...]
    newest: tuple[int, ...]
    source: str
    types: frozenset[str]
    inner: frozenset[str]
    reads_as: Mapping[str, str] = field(compare=False, repr=False)
    operators: Mapping[str, Support] = field(compare=False, repr=False)
    missing: Mapping[str, str] = field(compare=False, repr=False)
    plugins: frozenset[str] = field(compare=False, repr=False)
    refused: frozenset[str] = _NONE
    calls_functions: bool = True
    ignores_axes: frozenset[str] = _NONE
    package: str = "tensorrt"
    requires_allowzero: bool = False
    dynamic_squeeze: bool = False
    strongly_typed_only: bool = False
    types_measured: bool = False
    max_rank: int = 8

    @property
    def int64(self) -> bool:
        """Whether it computes int64 natively; before 9.0, int64 weights were clamped to int32."""
        return "INT64" not in self.reads_as

    def operator(self, op_type: str) -> Support | None:
        """The support of a standard operator; None if it is not imported or unknown."""
        return self.operators.get(op_type)

    def has_plugin(self, op_type: str) -> bool:
        """Whether a plugin of that name serves it, in whatever domain."""
        return op_type in self.plugins and op_type not in self.refused

    def imports(self, op_type: str) -> bool | None:
        """Whether the parser imports a standard operator; None if unknown, as for one that a plugin stands for."""
        if op_type in self.missing:
            return None if self.has_plugin(op_type) else False
        return True if op_type in self.operators else None

    def accepts(self, op_type: str, elem_type: int) -> bool | None:
        """Whether it accepts a standard operator on data of this type (TensorProto number); None if unknown."""
        support = self.operator(op_type)
        kind = _name(elem_type)
        if support is None or not kind:
            return False if self.imports(op_type) is False else None
        if not self.has_type(elem_type):
            return False
        for name in (kind, self.reads_as.get(kind)):
            if name in support.types:
                return True
            if name in support.refused:
                return False
        return None

    def has_type(self, elem_type: int) -> bool:
        """Whether tensors may have this element type, or are read as if they had another."""
        kind = _name(elem_type)
        return kind in self.types or kind in self.reads_as

    def between(self, elem_type: int) -> bool:
        """Whether a tensor between two nodes may have this type, outside of quantization."""
        kind = _name(elem_type)
        return kind in self.inner or kind in self.reads_as

    def read_as(self, elem_type: int) -> int:
        """The type (TensorProto number) that tensors of this one are read as; mostly itself."""
        return _NUMBERS.get(self.reads_as.get(_name(elem_type), ""), elem_type)


@cache
def _name(elem_type: int) -> str:
    """ONNX's name of a type, "" for an unknown number."""
    name = dtypes.name_of(elem_type).upper()
    return "" if " " in name else name


_NUMBERS = {_name(number): number for number in range(1, 64) if _name(number)}


# A graph input of int8, float8 or int4 counts as quantized, whatever the node, and uint8 is only allowed for inputs and
# outputs of the graph. That such a model of one node builds says nothing about the node between others.
_QUANTIZED = names("INT8 INT4 FLOAT8E4M3FN FLOAT4E2M1")
_ACCEPTED_AS_SUCH = table({"UINT8": "Cast CastLike", "INT8 FLOAT8E4M3FN": "DequantizeLinear"})


def _measured_types(op_type: str) -> frozenset[str]:
    """Types that were measured to be accepted as such."""
    types = measured.ACCEPTED.get(op_type, _NONE)
    return types - _QUANTIZED - {"UINT8"} | types & _ACCEPTED_AS_SUCH.get(op_type, _NONE)


def _rtx() -> dict[str, Support]:
    """The support of TensorRT-RTX, as measured. A type that the builder refused in one model it may accept in another,
    so that it is unknown, except for operators without any kernel."""
    found = {}
    for name in sorted(
        (measured.ACCEPTED.keys() | measured.REFUSED.keys() | measured.OLD) - measured.NO_PLUGIN
    ):
        found[name] = Support(
            _measured_types(name), measured.REFUSED.get(name, _NONE), measured.NOTES.get(name, "")
        )
    for name in measured.NO_KERNEL:
        found[name] = Support(_NONE, measured.UNBUILT[name], "the builder has no kernel for it")
    return found


def _listed(
    lists: Types, notes: Mapping[str, str], *, same_parser: bool = False, refused: Types | None = None
) -> dict[str, Support]:
    """The support of a target with a list, corrected by the measurements of TensorRT-RTX.

    ``same_parser``: its parser is of the generation that was measured, so that it refuses and accepts the same types.
    ``refused`` are types that the list names, but the parser's source refuses.
    """
    found = {}
    for name, listed in lists.items():
        comparable = name not in measured.NO_PLUGIN | measured.NO_KERNEL  # those are about RTX alone
        parser = measured.REFUSED.get(name, _NONE) if comparable else _NONE
        builder = measured.UNBUILT.get(name, _NONE) if comparable else _NONE
        never = parser if same_parser else parser - listed
        never |= (refused or {}).get(name, _NONE)
        accepted = listed | _measured_types(name) if same_parser else listed
        found[name] = Support(accepted - parser - builder - never, never, notes.get(name, ""))
    return found


#: unaryHelper and activationHelper of onnx-tensorrt's importerUtils.cpp (10.15); the list names these types.
_REFUSED_BY_SOURCE = table({"INT32 INT64": "ReduceL2 ReduceLogSum ReduceLogSumExp", "INT32": "Relu"})


def _missing(unknown: frozenset[str], also: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**dict.fromkeys(sorted(unknown), ""), **(also or {})}


_DOUBLE = {"DOUBLE": "FLOAT"}
_BEFORE_9 = {**_DOUBLE, "INT64": "INT32"}
_TYPES_8_4 = names("FLOAT FLOAT16 INT32 BOOL INT8")
_INNER = names("FLOAT FLOAT16 BFLOAT16 INT32 INT64 BOOL INT8")
_TYPES = _INNER | _QUANTIZED | {"UINT8"}
_LIST = "onnx-tensorrt's docs/operators.md"
# Operators that TensorRT-RTX's newer parser does not know are unknown to older parsers too.
# LinearAttention and CausalConvWithState: "Plugin not found" from 8.6.1, 10.6.0 and 11.2.1.
_LATER = measured.UNKNOWN - names("DFT DeformConv") | names("CausalConvWithState LinearAttention")
# Measured with 10.6.0: "cannot be quantized by x", "same rank adding", "only supports int32, int64, and float".
_REFUSED_10_6 = {
    **_REFUSED_BY_SOURCE,
    **table(
        {
            "INT8": "Add Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mul Sub Where",
            "FLOAT16 BFLOAT16": "Celu Range",
        }
    ),
}
_REDUCTIONS = frozenset(name for name in documented.TRT_10 if name.startswith("Reduce"))

TARGETS = {
    target.name: target
    for target in (
        Target(
            "trt8.4", *NAMES["trt8.4"][:3], f"{_LIST} of 8.4 (009d6541)",
            _TYPES_8_4, _TYPES_8_4, _BEFORE_9,
            _listed(documented.TRT_8_4, documented.NOTES_8_4),
            _missing(documented.NOT_IN_8_4 | _LATER),
            plugins.TRT_8_6, calls_functions=False,
            requires_allowzero=True, ignores_axes=_REDUCTIONS - {"ReduceSum", "ReduceLogSum"},
        ),
        Target(
            "trt8.6", *NAMES["trt8.6"][:3], f"{_LIST} of 8.5 (6d0ab7be), and the changelog of 8.6",
            _TYPES_8_4 | {"UINT8"}, _TYPES_8_4, _BEFORE_9,
            _listed(documented.TRT_8_6, documented.NOTES_8_6),
            _missing(documented.NOT_IN_8_6 | _LATER),
            plugins.TRT_8_6, calls_functions=False,
            ignores_axes=_REDUCTIONS - {"ReduceSum", "ReduceLogSum"},
        ),
        Target(
            "trt10.6", *NAMES["trt10.6"][:3], f"{_LIST} of 10.15, and TensorRT 10.6.0, measured",
            _TYPES - {"FLOAT4E2M1"}, _INNER, _DOUBLE,
            _listed(documented.TRT_10_6, documented.NOTES_10, refused=_REFUSED_10_6),
            _missing(documented.NOT_IN_10_6 | _LATER),
            plugins.TRT_10_6, documented.NOT_IN_11,
            types_measured=True, ignores_axes=frozenset({"ReduceLogSumExp"}),
        ),
        Target(
            "trt10", *NAMES["trt10"][:3], f"{_LIST} of 10.15 (fa5aa9f6)",
            _TYPES, _INNER, _DOUBLE,
            _listed(documented.TRT_10, documented.NOTES_10, refused=_REFUSED_BY_SOURCE),
            _missing(documented.NOT_IN_10 | _LATER),
            plugins.TRT_10_15, documented.NOT_IN_11,
        ),
        Target(
            "trt11", *NAMES["trt11"][:3],
            f"{_LIST} of 11.2 as quoted by others, and TensorRT-RTX {measured.VERSION}, measured",
            _TYPES, _INNER, _DOUBLE,
            _listed(documented.TRT_11, documented.NOTES_11, same_parser=True),
            _missing(documented.NOT_IN_11 | _LATER),
            plugins.TRT_11_2, documented.NOT_IN_11,
            strongly_typed_only=True, types_measured=True,
        ),
        Target(
            "rtx", *NAMES["rtx"][:3], f"measured with {measured.VERSION}",
            _TYPES, _INNER, _DOUBLE,
            _rtx(),
            _missing(measured.UNKNOWN, dict.fromkeys(measured.NO_PLUGIN, "its plugin is not in the package")),
            plugins.RTX, measured.REFUSED_BY_NAME,
            package=NAMES["rtx"].package,
            dynamic_squeeze=True, strongly_typed_only=True, types_measured=True,
        ),
    )
}  # fmt: skip
DEFAULT = TARGETS[DEFAULT_TARGET]


def target_named(name: str | None) -> Target:
    """The target that a name or a version means (``trt10``, ``TRT10``, ``10.3``); the default without one.

    Raises:
        UsageError: there is no such target.
    """
    if name is None:
        return DEFAULT
    known = target_of(name)
    if known is None:
        choices = ", ".join(f"{one.name} ({one.title})" for one in TARGETS.values())
        raise UsageError(f"unknown target {name!r}; choose from {choices}")
    return TARGETS[known]


#: Distributions with the version of the module ``tensorrt``: NVIDIA's names on PyPI and in its Debian packages.
_DISTRIBUTIONS = ("tensorrt", *(f"tensorrt-cu{n}{part}" for n in (13, 12, 11) for part in ("", "-bindings")))


def choose_target(name: str | None) -> tuple[Target, str]:
    """The target of a run. Without a name it is that of the full TensorRT that is installed, with its version (10.6.0),
    else the default; the version is "" in all other cases. Loads no library.

    Raises:
        UsageError: there is no such target.
    """
    if name is None and importlib.util.find_spec("tensorrt") is not None:
        for distribution in _DISTRIBUTIONS:
            with suppress(importlib.metadata.PackageNotFoundError):
                version = ".".join(importlib.metadata.version(distribution).split(".")[:3])
                known = target_of(version)
                return (TARGETS[known], version) if known is not None else (DEFAULT, "")
    return target_named(name), ""


def target_judging(package: str, version: str) -> Target | None:
    """The product line of an installed package; None for an unknown one."""
    lines = (one for one in TARGETS.values() if not mismatch(one, package, version))
    return next(lines, None)


def serves(target: Target, name: str) -> bool | None:
    """Whether the target imports an operator and has kernels, or ships a plugin of its name; None if unknown."""
    if target.has_plugin(name):
        return True
    if target.package == "tensorrt-rtx" and name in measured.NO_KERNEL:
        return False
    imported = target.imports(name)
    return False if imported is None and name in plugins.SHIPPED else imported


def mismatch(target: Target, package: str, version: str) -> str:
    """A note if the installed package is not of the target's product line; "" if it is.

    ``package`` is tensorrt or tensorrt-rtx, ``version`` its version, such as 10.14.1.48 or 1.7.1.116.
    """
    parts = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    low, high = parts[: len(target.oldest)], parts[: len(target.newest)]
    if package == target.package and low >= target.oldest and high <= target.newest:
        return ""
    name = "TensorRT-RTX" if package == "tensorrt-rtx" else "TensorRT"
    shown = ".".join(str(part) for part in parts) or version
    return f"{name} {shown} judged the model, not the target {target.title}: what it accepts may differ"
