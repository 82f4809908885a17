"""The user's request for a specialization, not yet checked against a model. A run without one loads only this."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onnxfix.errors import UsageError

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxfix.trt.records import TrtOptions
    from onnxfix.verification.specialize.specialization import Specialization

Feeds = list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class SpecializationRequest:
    """What the user wrote. A value of ``inputs`` may be text (a number, ``true``, ``[1,2]``, ``@file.npy``), a number,
    a list or an array."""

    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    static: bool = False
    keep: bool = False


def files_of(values: Iterable[Any]) -> tuple[str, ...]:
    """The files that values name as ``@file.npy``."""
    return tuple(one[1:] for one in values if isinstance(one, str) and one.startswith("@"))


def pairs_of(option: str, texts: Iterable[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts of the command line, the name up to the first equals sign.

    Raises:
        UsageError: one is none, or a name is given two values.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            what = "SIZE" if option == "--fix-dim" else "VALUE"
            raise UsageError(f"{option} {text}: write {option} NAME={what}")
        if found.setdefault(name, value) != value:
            raise UsageError(f"{option}: {name} is given two values: {found[name]} and {value}")
    return found


def sizes_of(texts: Iterable[str]) -> dict[str, int]:
    """``NAME=SIZE`` texts of the command line.

    Raises:
        UsageError: as for ``pairs_of``, or a size is not a whole number.
    """
    found = {}
    for name, text in pairs_of("--fix-dim", texts).items():
        try:
            found[name] = int(text)
        except ValueError:
            raise UsageError(f"--fix-dim {name}={text}: {text!r} is not a whole number") from None
    return found


def resolved(
    proto: ModelProto,
    request: SpecializationRequest,
    trt: TrtOptions,
    inputs: str | os.PathLike[str] | None,
    input_shapes: Sequence[str],
) -> tuple[Specialization | None, Feeds | None, tuple[str, ...]]:
    """``specialize.resolve`` for a model, or nothing where nothing is requested.

    Raises:
        UsageError: as there.
    """
    if request.keep and not request.inputs:
        raise UsageError("--keep-inputs has no effect without --fix-input")
    if not request.dims and not request.inputs and not request.static:
        return None, None, ()
    from onnxfix.verification.feeds.signature import signature  # lazy: start-up
    from onnxfix.verification.specialize.resolve import fit_profile, resolve  # lazy: start-up

    known = signature(proto)
    special, feeds, notes = resolve(known, request, inputs, input_shapes)
    fit_profile(known, special, trt)
    if not special.words:
        return None, feeds, (*notes, "nothing was specialized: the model has these sizes already")
    return special, feeds, notes
