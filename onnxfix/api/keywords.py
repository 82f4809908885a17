"""What callers pass, made what the pipeline expects. Each function raises UsageError for what is of another type, in
one line that names the keyword; names that do not exist and values that do not fit the model are refused where they are
looked up."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

from onnxfix.config.table import OPTIONS, Kind
from onnxfix.errors import UsageError
from onnxfix.names import PYTORCH, RUNGS
from onnxfix.options import RunOptions
from onnxfix.runtime.allowance import Effort, effort_of

if TYPE_CHECKING:
    from onnxfix.tensorrt.records import TrtOptions
    from onnxfix.verbs.opening import Source

PathLike = str | os.PathLike[str]
Names = str | Sequence[str]
"""One name, several with commas between them, or a sequence of names."""
Shapes = str | Sequence[str] | Mapping[str, int | Sequence[int]]
"""``{"image": (1, 3, 16, 16)}``, or as the command line has them: ``"image:1x3x16x16"``, or a sequence of those."""
Inputs = PathLike | Mapping[str, Any] | Sequence[Mapping[str, Any] | PathLike]
"""Arrays by the names of inputs (``{"image": array}``), several of those, or files: an .npz, a folder of .npy files, or
Polygraphy's JSON."""
Progress = Callable[[str], None]

_T = TypeVar("_T")
_OPTIONS = {option.keyword or name: option for name, option in OPTIONS.items() if option.field}
"""The options of the table that are keywords."""
_NEVER_NONE = (Kind.FLAG, Kind.WHOLE, Kind.EFFORT)
"""Kinds of keywords that are not None where they are not given."""


def run_options(given: Mapping[str, Any], *, exported: bool = False) -> RunOptions:
    """The record of a run. ``given`` are keywords, such as the ``locals()`` of a function; those that are no options of
    the table are left out, ``trt`` excepted: without it TensorRT is not asked. ``exported``: the model comes from
    PyTorch in the same run.

    Raises:
        UsageError: a value is of another type, or names something that does not exist.
    """
    fields = {}
    for keyword, value in given.items():
        option = _OPTIONS.get(keyword)
        if option is None or (value is None and option.kind not in _NEVER_NONE):
            continue
        if exported and keyword == "require":
            value = checks(keyword, value, (*RUNGS, PYTORCH))
        else:
            value = _READERS[option.kind](keyword, value, *filter(None, [option.example]))
        if value is not False:  # TrtOptions may say True of what a keyword leaves alone
            fields[option.field] = value
    options = RunOptions(trt=trt(given["trt"])) if "trt" in given else RunOptions()
    return options.with_fields(fields)


def refused(keyword: str, wanted: str, given: object) -> UsageError:
    """The complaint about a value of another type."""
    return UsageError(f"{keyword} is {wanted}, not {_spoken(given)}")


def _spoken(given: object) -> str:
    if given is None or isinstance(given, (bool, int, float)):
        return repr(given)
    if isinstance(given, str):
        return repr(given if len(given) <= 40 else f"{given[:40]}…")
    name = type(given).__name__
    return f"{'an' if name[0] in 'aeiouAEIO' or name == 'ndarray' else 'a'} {name}"


def source(keyword: str, given: Any) -> Source:
    """A model."""
    if isinstance(given, (bytearray, memoryview)):
        return bytes(given)
    if isinstance(given, (str, os.PathLike, bytes)):
        return given
    from onnx import ModelProto  # lazy: start-up

    proto = given.model_proto if is_program(given) else given
    if isinstance(proto, ModelProto):
        return proto
    raise refused(keyword, "a path, bytes, an onnx.ModelProto, or a torch.onnx.ONNXProgram", given)


def is_program(given: Any) -> bool:
    """Whether it is what torch.onnx.export returns; torch is not imported to find that out."""
    kind = type(given)
    return kind.__name__ == "ONNXProgram" and kind.__module__.partition(".")[0] == "torch"


def path(keyword: str, given: Any) -> PathLike | None:
    """A path, or none."""
    if given is None or (isinstance(given, (str, os.PathLike)) and isinstance(os.fspath(given), str)):
        return given
    raise refused(keyword, "a path", given)


def paths(keyword: str, given: Any) -> tuple[PathLike, ...]:
    """One path, or several."""
    some = [given] if isinstance(given, (str, os.PathLike)) else _items(keyword, "a path, or several", given)
    return tuple(found for one in some if (found := path(f"an item of {keyword}", one)) is not None)


def names(keyword: str, given: Names | None) -> tuple[str, ...] | None:
    """Names of one kind."""
    if given is None:
        return None
    some = given.split(",") if isinstance(given, str) else _items(keyword, "a name, or several", given)
    for one in some:
        if not isinstance(one, str):
            raise refused(f"an item of {keyword}", "a name", one)
    return tuple(text for one in some if (text := one.strip()))


def checks(keyword: str, given: Names | None, known: Sequence[str] = RUNGS) -> tuple[str, ...] | None:
    """Checks by their names."""
    found = names(keyword, given)
    for name in found or ():
        if name not in known:
            raise UsageError(f"unknown check {name!r}; choose from {', '.join(known)}")
    return found


def text(keyword: str, given: Any, example: str) -> str:
    """A text. A number is its own text: 10.3 is a version."""
    if isinstance(given, str):
        return given
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return str(given)
    raise refused(keyword, f"a text such as {example!r}", given)


def flag(keyword: str, given: Any) -> bool:
    """True or False."""
    if isinstance(given, bool) or type(given).__name__ in ("bool", "bool_"):  # numpy's own
        return bool(given)
    raise refused(keyword, "True or False", given)


def whole(keyword: str, given: Any, least: int | None = None) -> int:
    """A whole number."""
    number = _whole(given)
    if number is None or (least is not None and number < least):
        raise refused(keyword, f"a whole number{f' from {least}' if least is not None else ''}", given)
    return number


def seconds(keyword: str, given: Any, *, positive: bool = False) -> float:
    """A time, or a time limit, which is ``positive``."""
    wanted = f"a number of seconds{' above 0' if positive else ''}"
    found = number(keyword, given, wanted)
    if not found >= 0 or (positive and not found):
        raise refused(keyword, wanted, given)
    return found


def number(keyword: str, given: Any, wanted: str = "a number") -> float:
    """A number."""
    if isinstance(given, bool) or not isinstance(given, Real):
        raise refused(keyword, wanted, given)
    return float(given)


def mapping(keyword: str, given: Any, example: str) -> dict[str, Any]:
    """Something by name."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise refused(keyword, f"a dict such as {example}", given)
    return dict(given)


def one_of(keyword: str, given: _T, known: Sequence[_T]) -> _T:
    """One of a few values."""
    if not isinstance(given, str) or given not in known:
        raise UsageError(f"unknown {keyword}={_spoken(given)}; choose from {', '.join(map(str, known))}")
    return given


def progress(given: Any) -> Progress | None:
    """What is called with a text before each step."""
    if given is None or callable(given):
        found: Progress | None = given
        return found
    raise refused("progress", "a function of a text", given)


def shapes(keyword: str, given: Shapes) -> tuple[str, ...] | dict[str, tuple[int, ...]]:
    """Shapes of inputs, by their names or as texts."""
    wanted = "a dict such as {'image': (1, 3, 224, 224)}, or texts such as 'image:1x3x224x224'"
    if isinstance(given, str):
        return (given,)
    if isinstance(given, Mapping):
        return {_name(keyword, name): _shape(f"{keyword}[{name!r}]", shape) for name, shape in given.items()}
    some = _items(keyword, wanted, given)
    if not all(isinstance(one, str) for one in some):
        raise refused(keyword, wanted, given)
    return tuple(some)


def _shape(keyword: str, given: Any) -> tuple[int, ...]:
    some = [given] if _whole(given) is not None else given.tolist() if hasattr(given, "tolist") else given
    wanted = "a shape such as (1, 3, 224, 224)"
    sizes = [_whole(one) for one in _items(keyword, wanted, some)]
    if any(one is None or one < 0 for one in sizes):
        raise UsageError(f"{keyword} is {wanted}, not {tuple(some)}")
    return tuple(one for one in sizes if one is not None)


def inputs(keyword: str, given: Inputs) -> PathLike | list[dict[str, Any]]:
    """A path, or what is fed, one dict after the other. Files among several are read."""
    if isinstance(given, (str, os.PathLike)):
        return given
    wanted = "a dict of arrays such as {'image': array}, several of those, or a path"
    found = []
    for one in [given] if isinstance(given, Mapping) else _items(keyword, wanted, given):
        if isinstance(one, (str, os.PathLike)):
            from onnxfix.inputs.feeds.files import load_inputs  # lazy: start-up

            found += load_inputs(os.fspath(one))
        elif isinstance(one, Mapping):
            found.append(
                {_name(keyword, name): _value(f"{keyword}[{name!r}]", value) for name, value in one.items()}
            )
        else:
            raise refused(f"an item of {keyword}", wanted, one)
    return found


def _value(keyword: str, given: Any) -> Any:
    """An array of another library, such as PyTorch, as one of numpy; whatever else as it is."""
    import numpy as np  # lazy: start-up

    if isinstance(given, (np.ndarray, np.generic)) or not hasattr(given, "__array__"):
        return given
    try:
        return np.asarray(given)
    except Exception as error:  # whatever another library raises: on a GPU, with a gradient
        raise UsageError(f"{keyword} cannot be read as an array: {error}") from None


def effort(keyword: str, given: Any) -> Effort:
    """What checks may cost."""
    if isinstance(given, bool) or not isinstance(given, (str, Real)):
        raise refused(keyword, "a name or a number of seconds", given)
    return effort_of(given if isinstance(given, str) else float(given))


def trt(given: Any) -> TrtOptions:
    """TensorRT's options."""
    from onnxfix.tensorrt.records import TrtOptions  # lazy: start-up

    if given is None or given is True:
        given = TrtOptions()
    if not isinstance(given, TrtOptions):
        raise refused("trt", "onnxfix.TrtOptions(...)", given)
    return given


def _items(keyword: str, wanted: str, given: Any) -> Sequence[Any]:
    # An array has items, too, and is none of what is wanted in rows.
    if isinstance(given, (list, tuple)):
        return given
    if isinstance(given, (str, bytes, Mapping)) or hasattr(given, "dtype") or not hasattr(given, "__iter__"):
        raise refused(keyword, wanted, given)
    return list(given)


def _name(keyword: str, given: Any) -> str:
    if isinstance(given, str):
        return given
    raise refused(f"a key of {keyword}", "the name of an input", given)


def _whole(given: Any) -> int | None:
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        return None
    try:
        return operator.index(given)
    except TypeError:  # an array of several
        return None


_READERS: dict[Kind, Callable[..., Any]] = {
    Kind.FLAG: flag,
    Kind.TEXT: text,
    Kind.NAMES: names,
    Kind.CHECKS: checks,
    Kind.WHOLE: whole,
    Kind.NUMBER: number,
    Kind.SECONDS: partial(seconds, positive=True),
    Kind.MEGABYTES: partial(whole, least=1),
    Kind.EFFORT: effort,
    Kind.FILES: paths,
    Kind.INPUTS: inputs,
    Kind.SHAPES: shapes,
    Kind.SIZES: mapping,
    Kind.VALUES: mapping,
}
"""What reads a keyword, by the kind of its option."""
