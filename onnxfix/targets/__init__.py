"""The TensorRT that a model is made for, and what it accepts. Rules, severities and messages depend on it.

Operators and types come from NVIDIA's lists by release (``documented``) and from the real parser and builder of
TensorRT-RTX (``measured``). A list is not the parser: if the two disagree about a type, or only a list excludes it, the
answer is "not known". ``Target.source`` names the source of a target's facts.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from onnxfix.errors import UsageError
from onnxfix.files import dtypes
from onnxfix.names import DEFAULT_TARGET, Releases
from onnxfix.names import TARGETS as NAMES
from onnxfix.targets import documented, measured
from onnxfix.targets.documented import RELEASES, Facts, Types, names, table, text_of
from onnxfix.targets.several import combine, for_all

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
    """A release of TensorRT, one that stands for several, or what all of several take (``members``).

    ``oldest`` and ``newest`` bound its releases by the parts of a version that they have: (10,) is every 10.x.
    ``types`` are the element types that tensors may have, ``inner`` those allowed between two nodes that are no Q or
    DQ, and ``reads_as`` maps types to the type that they are read as: float64 to float32, and int64 to int32 before 9.0
    (TensorRT 9.0's changelog: "The ONNX parser no longer automatically casts INT64 to INT32").
    ``requires_allowzero``: its parser throws on a Reshape of opset 14 without the attribute (TensorRT 8.0 to 8.4.1; the
    default was added in 8.4.2). ``dynamic_squeeze``: it accepts a Squeeze without axes on dynamic dimensions (10.x and
    11.2 do not: "Cannot infer squeeze dimensions from a dynamic shape."). ``types_measured``: the types of operators
    were measured, with this release or one of the same generation. ``ignores_axes``: reductions of opset 18 whose
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
    members: tuple[Target, ...] = field(default=(), compare=False, repr=False)

    @property
    def releases(self) -> tuple[Target, ...]:
        """What it consists of: its members, or itself."""
        return self.members or (self,)

    def includes(self, package: str, version: str) -> bool:
        """Whether the package of that name (tensorrt, tensorrt-rtx) and version (10.14.1.48) is one of its releases."""
        return any(
            package == one.package and Releases("", one.oldest, one.newest).contain(_number(version))
            for one in self.releases
        )

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
        if self.members:
            return for_all(member.accepts(op_type, elem_type) for member in self.members)
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
_EDGE = (_QUANTIZED | {"UINT8"}) - {"INT8"}
"""Types that no tensor between two nodes has, but for quantization."""
_DOUBLE = {"DOUBLE": "FLOAT"}
# The integers by unaryHelper and activationHelper of onnx-tensorrt's importerUtils.cpp (10.15); the list names these
# types. The rest as measured with 10.6.0: "cannot be quantized by x", "same rank adding", "only supports int32, int64,
# and float".
_REFUSED_10_6 = table(
    {
        "INT32 INT64": "ReduceL2 ReduceLogSum ReduceLogSumExp",
        "INT32": "Relu",
        "INT8": "Add Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mul Sub Where",
        "FLOAT16 BFLOAT16": "Celu Range",
    }
)


def _measured_types(op_type: str) -> frozenset[str]:
    """Types that were measured to be accepted as such."""
    types = measured.ACCEPTED.get(op_type, _NONE)
    return types - _QUANTIZED - {"UINT8"} | types & _ACCEPTED_AS_SUCH.get(op_type, _NONE)


def _listed(facts: Facts, *, same_parser: bool, refused: Types) -> dict[str, Support]:
    """The support of a release according to its list, corrected by the measurements of TensorRT-RTX.

    ``same_parser``: its parser is of the generation that was measured, so that it refuses and accepts the same types.
    ``refused`` are types that the list names, but the parser refuses.
    """
    found = {}
    for name, listed in facts.types.items():
        comparable = name not in measured.NO_PLUGIN | measured.NO_KERNEL  # those are about RTX alone
        parser = measured.REFUSED.get(name, _NONE) if comparable else _NONE
        builder = measured.UNBUILT.get(name, _NONE) if comparable else _NONE
        never = (parser if same_parser else parser - listed) | refused.get(name, _NONE)
        accepted = listed | _measured_types(name) if same_parser else listed
        found[name] = Support(accepted - parser - builder - never, never, facts.notes.get(name, ""))
    return found


def _make_release(name: str, line: Releases, version: tuple[int, ...]) -> Target:
    """The target of that name, with the facts of one release. What was measured is taken to hold for its generation:
    10.0 to 10.13 with 10.6.0, and later ones with TensorRT-RTX, whose parser differs from 11.2.1 in plugins alone.
    10.15.1 and 11.2.1 differ on 8 of ONNX's 1,884 node models: GridSample of five dimensions, and Swish."""
    facts, types = documented.facts_of(version), RELEASES[version].types
    new, executed = version >= (10, 14), (10,) <= version < (10, 14)
    source = f"onnx-tensorrt's docs/operators.md of {documented.describe_lists(version)}"
    source += ", and TensorRT 10.6.0, measured" if executed else ""
    source += f", and TensorRT-RTX {measured.VERSION}, measured" if new else ""
    # Reductions of opset 18 take their axes as an input. The parser's source (8.4 to 9.3) reads it for two of them, and
    # since 10.0 for all but one (10.0, 10.1, and 10.6.0, measured).
    ignoring = names("ReduceLogSumExp") if executed else _NONE
    if version < (10,):
        ignoring = frozenset(name for name in facts.types if name.startswith("Reduce"))
        ignoring -= names("ReduceSum ReduceLogSum")
    return Target(
        name, line.title, line.oldest, line.newest, source,
        types, types - _EDGE, _DOUBLE if "INT64" in types else {**_DOUBLE, "INT64": "INT32"},
        _listed(facts, same_parser=new, refused=_REFUSED_10_6 if executed else {}),
        dict.fromkeys(sorted(facts.missing), ""),
        documented.shipped(version),
        measured.REFUSED_BY_NAME if version >= (10,) else _NONE,
        calls_functions=version >= (9,),
        ignores_axes=ignoring,
        requires_allowzero=version <= (8, 4),
        strongly_typed_only=version >= (11,),
        types_measured=executed or new,
    )  # fmt: skip


def _make_rtx(line: Releases) -> Target:
    """TensorRT-RTX, as measured. A type that the builder refused in one model it may accept in another, so that it is
    unknown, except for operators without any kernel."""
    newest = max(RELEASES)
    notes = {**documented.facts_of(newest).notes, **measured.NOTES}
    found = {}
    for name in sorted(
        (measured.ACCEPTED.keys() | measured.REFUSED.keys() | measured.OLD) - measured.NO_PLUGIN
    ):
        found[name] = Support(_measured_types(name), measured.REFUSED.get(name, _NONE), notes.get(name, ""))
    for name in measured.NO_KERNEL:
        found[name] = Support(_NONE, measured.UNBUILT[name], "the builder has no kernel for it")
    absent = dict.fromkeys(measured.NO_PLUGIN, "its plugin is not in the package")
    types = RELEASES[newest].types
    return Target(
        "rtx", *line[:3], f"measured with {measured.VERSION}",
        types, types - _EDGE, _DOUBLE,
        found,
        {**dict.fromkeys(sorted(measured.UNKNOWN), ""), **absent},
        documented.RTX, measured.REFUSED_BY_NAME,
        package=line.package,
        dynamic_squeeze=True, strongly_typed_only=True, types_measured=True,
    )  # fmt: skip


@cache
def _make(name: str) -> Target:
    """The target of one of the six names, of a release (``trt10.3``), or of several with commas."""
    if "," in name:
        target = combine(map(_make, name.split(",")))
        return target if target.name == name else _make(target.name)
    line = NAMES.get(name)
    if line is not None and line.package != "tensorrt":
        return _make_rtx(line)
    if line is not None:  # stands for its newest release that is known
        return _make_release(name, line, max(version for version in RELEASES if line.contain(version)))
    version = _RELEASE_NAMES[name]
    return _make_release(name, Releases(f"TensorRT {name[3:]}", version, version), version)


class _Targets(Mapping[str, Target]):
    """The six targets that tables and completion name, each made when it is first asked for. A release (``trt10.3``)
    is found too, and several with commas."""

    def __getitem__(self, name: str) -> Target:
        return _make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


_RELEASE_NAMES = {f"trt{text_of(version)}": version for version in RELEASES}
_JETPACKS = {
    jetpack: name for name, version in _RELEASE_NAMES.items() for jetpack in RELEASES[version].jetpacks
}
TARGETS: Mapping[str, Target] = _Targets()
DEFAULT = TARGETS[DEFAULT_TARGET]

_SPELLING = r"(?P<product>(?:tensorrt|trt)?[-_ ]*(?P<rtx>rtx)?)[-_ ]*v?(?P<version>\d+(?:\.\d+)*)?(?:\.x)?"


def name_target(text: str) -> str | None:
    """The name of the target that somebody means by ``TRT10``, ``10.3``, ``10.3.0``, ``trt-10``, ``TensorRT 8.6.1``,
    ``rtx1.7`` or ``jetpack6.2``; None if it is none of them. A 10 without more is the newest."""
    word = text.strip().lower()
    if word in NAMES:
        return word
    if word.startswith("jetpack"):
        return _JETPACKS.get(word.removeprefix("jetpack").strip(" -_"))
    spelled = re.fullmatch(_SPELLING, word)
    if spelled is None:
        return None
    package = "tensorrt-rtx" if spelled["rtx"] else "tensorrt"
    lines = {name: line for name, line in NAMES.items() if line.package == package}
    if spelled["version"] is None:
        return next(iter(lines)) if spelled["rtx"] else None
    version = tuple(int(part) for part in spelled["version"].split("."))
    if package == "tensorrt" and version[:2] in RELEASES:
        return f"trt{version[0]}.{version[1]}"
    if package == "tensorrt" and f"trt{spelled['version']}" in NAMES:
        return f"trt{spelled['version']}"
    return next((name for name, line in lines.items() if line.contain(version)), None)


def target_named(name: str | None) -> Target:
    """The target that a name or a version means (``trt10``, ``10.3``, ``jetpack6.2``), or several with commas; the
    default without one.

    Raises:
        UsageError: there is no such target.
    """
    if name is None:
        return DEFAULT
    if "," in name:
        return together(map(target_named, name.split(",")))
    known = name_target(name)
    if known is None and name.strip().lower().startswith("jetpack"):
        choices = ", ".join(f"jetpack{version}" for version in _JETPACKS)
        raise UsageError(f"unknown JetPack {name!r}; choose from {choices}")
    if known is None:
        choices = ", ".join(f"{known} ({line.title})" for known, line in NAMES.items())
        oldest, *_, newest = _RELEASE_NAMES
        raise UsageError(
            f"unknown target {name!r}; choose from {choices}, or a release from {oldest} to {newest}"
        )
    return TARGETS[known]


def together(releases: Iterable[Target]) -> Target:
    """The target of these releases, made once."""
    return _make(",".join(release.name for release in releases))


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
                known = target_judging("tensorrt", version)
                return (known, version) if known is not None else (DEFAULT, "")
    return target_named(name), ""


def target_judging(package: str, version: str) -> Target | None:
    """The target that an installed package is of; None for an unknown one."""
    number = ".".join(map(str, _number(version)))
    known = name_target("rtx" * (package == "tensorrt-rtx") + number) if number else None
    return None if known is None else TARGETS[known]


def serves(target: Target, name: str) -> bool | None:
    """Whether the target imports an operator and has kernels, or ships a plugin of its name; None if unknown."""
    if target.members:
        return for_all(serves(member, name) for member in target.members)
    if target.has_plugin(name):
        return True
    if target.package == "tensorrt-rtx" and name in measured.NO_KERNEL:
        return False
    imported = target.imports(name)
    return False if imported is None and name in documented.SHIPPED else imported


def mismatch(target: Target, package: str, version: str) -> str:
    """A note that names the releases of the target that the installed package is not; "" for none."""
    others = [release for release in target.releases if not release.includes(package, version)]
    if not others:
        return ""
    name = "TensorRT-RTX" if package == "tensorrt-rtx" else "TensorRT"
    shown = ".".join(map(str, _number(version))) or version
    other = together(others).title
    return f"{name} {shown} judged the model, not the target {other}: what it accepts may differ"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
