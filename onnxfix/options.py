"""The options of a run: one frozen record, built once from keywords or the command line and passed on whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from onnxfix.errors import UsageError
from onnxfix.runtime.allowance import DEFAULT, Effort

if TYPE_CHECKING:
    from onnxfix.tensorrt.records import TrtOptions


@dataclass(frozen=True)
class Rules:
    """Which rules run (``select``, ``ignore``: codes, code prefixes, names, or ``ALL``; None: the defaults), and the
    name of the target that they judge for (None: the default)."""

    select: Sequence[str] | None = None
    ignore: Sequence[str] | None = None
    target: str | None = None


@dataclass(frozen=True)
class Fixes:
    """What may be changed besides exact fixes, and which whole-model steps run first. ``unsafe`` implies ``numeric``;
    ``graphsurgeon`` are paths of scripts."""

    numeric: bool = False
    unsafe: bool = False
    simplify: bool = False
    graphsurgeon: Sequence[str | os.PathLike[str]] = ()


@dataclass(frozen=True)
class Specialization:
    """What becomes constant: ``dims`` by symbol (or ``INPUT.AXIS``), ``inputs`` by name.

    A value of ``inputs`` is a number, a list, an array, or text (a number, ``true``, ``[1,2]``, ``@file.npy``).
    ``static``: all symbols, with the sizes of the first of the inputs given. ``keep``: the inputs stay, unread.

    Raises:
        UsageError: ``keep`` without an input.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    static: bool = False
    keep: bool = False

    def __post_init__(self) -> None:
        if self.keep and not self.inputs:
            raise UsageError("--keep-inputs has no effect without --fix-input")

    def __bool__(self) -> bool:
        return bool(self.dims or self.inputs or self.static)


@dataclass(frozen=True)
class Verification:
    """How two models are compared. ``enabled`` False: by the interface contract only.

    ``exact`` requires bit-identical outputs of ``verify``; for ``apply`` the fixes decide. ``rungs`` are the rungs to
    run (None: all available), ``require`` those that must pass. ``inputs`` is a path, or the feeds themselves;
    ``input_shapes`` are texts such as ``x:1x3``, or shapes by the names of inputs.
    ``rtol`` (without a unit) and ``atol`` (in the outputs' unit) are the tolerance where bits need not be identical;
    None: by element type. ``effort`` bounds what checks that run models spend. ``rung_timeout`` is the time limit of
    each rung in seconds (None: those of ``verify.Limits``).

    Raises:
        UsageError: a tolerance is not a finite number of 0 or more, or ``exact`` leaves nothing to tolerate.
    """

    enabled: bool = True
    exact: bool = False
    require: Sequence[str] = ()
    inputs: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | None = None
    input_shapes: Sequence[str] | Mapping[str, Sequence[int]] = ()
    seed: int = 0
    rungs: Sequence[str] | None = None
    rtol: float | None = None
    atol: float | None = None
    rung_timeout: float | None = None
    effort: Effort = DEFAULT

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if value is None:
                continue
            if not 0 <= value < float("inf"):
                raise UsageError(f"{name} is {value!r}, not a finite number of 0 or more")
            if self.exact:
                raise UsageError(f"{name} contradicts exact: identical bits have no tolerance")


@dataclass(frozen=True)
class Output:
    """Where the result goes: to ``path``, over the source (``in_place``), or nowhere.

    ``diff``: nowhere, and the report has the ``difference``.
    ``share_data``: a result beside the source reads its external data from the source's files, instead of a copy.

    Raises:
        UsageError: ``share_data`` with ``in_place``: the source's data files are the result's own then.
    """

    path: str | os.PathLike[str] | None = None
    in_place: bool = False
    diff: bool = False
    share_data: bool = False

    def __post_init__(self) -> None:
        if self.share_data and self.in_place:
            raise UsageError("--share-data has no effect with --in-place: the model keeps its data files")


@dataclass(frozen=True)
class RunOptions:
    """Everything that ``check``, ``apply`` and ``verify`` need to know besides the models.

    ``trt`` None: TensorRT is not used (``check``), or with its defaults (``apply``, ``verify``).
    ``memory_mb`` limits ONNX Runtime and TensorRT, each in a process of its own, in MiB (None: three quarters of what
    is available). ``timeout`` is the time limit of the run in seconds (None: none). ``inputs_help`` is for ``check``:
    also work out which inputs the model accepts. ``partition``: also foretell how ONNX Runtime's TensorRT provider
    would cut the model. ``pictures``: also record the nodes around each finding and fix, which reports draw.
    """

    rules: Rules = Rules()
    fixes: Fixes = Fixes()
    specialization: Specialization = field(default_factory=Specialization)
    verification: Verification = Verification()
    trt: TrtOptions | None = None
    output: Output = Output()
    memory_mb: int | None = None
    timeout: float | None = None
    inputs_help: bool = False
    partition: bool = False
    pictures: bool = False

    @property
    def files(self) -> list[tuple[str, str | os.PathLike[str]]]:
        """The files that a run reads besides models and inputs, each with what it is."""
        values = (one for one in self.specialization.inputs.values() if isinstance(one, str))
        found: dict[str, Iterable[str | os.PathLike[str]]] = {
            "a script of this run": self.fixes.graphsurgeon,
            "a value of --fix-input": (one[1:] for one in values if one.startswith("@")),
            "a library of --plugins": self.trt.plugins if self.trt is not None else (),
        }
        return [(what, path) for what, paths in found.items() for path in paths]

    def with_fields(self, fields: Mapping[str, Any]) -> RunOptions:
        """The record with these fields, named as ``seed`` or, in one of its records, ``verification.seed``."""
        own: dict[str, Any] = {}
        inner: dict[str, dict[str, Any]] = {}
        for path, value in fields.items():
            record, _, name = path.rpartition(".")
            (inner.setdefault(record, {}) if record else own)[name] = value
        for record, values in inner.items():
            own[record] = replace(getattr(self, record), **values)
        return replace(self, **own)
