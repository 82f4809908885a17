"""What TensorRT's own messages mean. Every expression that is applied to a text of TensorRT's stands here.

TensorRT reports much only as text: that memory ran out, that a profile does not fit, which node or tensor a message is
about. Its texts are input from outside: they become data here, and nothing else reads them. Texts that onnxfix makes
are never matched.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

from onnxfix.errors import OnnxfixError

#: "memory": it ran out. "profile": sizes of an optimization profile do not fit the model, and other sizes may.
#: "inconsistent-profile": an engine was built although the sizes of its profile do not fit the model.
Meaning = Literal["memory", "profile", "inconsistent-profile"]
_MEANINGS: dict[Meaning, re.Pattern[str]] = {
    # "Resource temporarily unavailable" is how starting a thread ends where its stack does not fit any more. The last
    # two are how loading libraries ends.
    "memory": re.compile(
        r"bad_alloc|out of memory|failed to allocate|cannot allocate|OutOfMemory|Resource temporarily unavail"
        r"|memory allocation|failed to map segment",
        re.I,
    ),
    "profile": re.compile(r"profile|kOPT|kMIN|shape constraints|incompatible dim|would change volume", re.I),
    "inconsistent-profile": re.compile(r"Profile k(?:MIN|OPT|MAX) values are not self-consistent"),
}
#: The parser prefixes what it logs with its own source line.
_ORIGIN = re.compile(r"\A(\w+\.[ch]pp:\d+): ")
_PARSING = re.compile(r"(?:Parsing node|Static check for parsing node): (.*) \[(\w+)\]\Z", re.S)
_STAMP = re.compile(r"\[ONNX Layer: (.*?)(?: \| .*)?\]", re.S)
_BOUND = re.compile(
    r"\b[Mm]ake sure (?:input|output) (.+?) has Int64 binding|\bUnused Input: (\S+)|\bInput Tensor (\S+) is unused"
)
_SUBJECT = re.compile(r"\bTensor (\S+) has datatype|\bshape tensor (\S+) to be")
_WEIGHTS = re.compile(r"[Ff]ailed to import initializer: (?!In node)(\S+)")
_OPERATION = re.compile(r"\b(\w+) operation was not supported")
#: Where there is no GPU, TensorRT adds that to every failure. It describes the machine and is no reason. Before
#: TensorRT-RTX 1.6 it does not give CUDA's number.
_NO_GPU = re.compile(
    r"\s*\[checkMacros\.cpp::catchCudaError::\d+\] Error Code \d+: Cuda Runtime "
    r"\(In catchCudaError at [^\s()]+(?: \(cudaError (?:35|100): [^()]*\))?\)"
)
#: How a message names a layer, from the surest form to the loosest.
_LOOSE = r"(?<![\w/.]){}(?![\w/])"
_LAYER_FORMS = (r"Layer {}(?![\w/.])", r"(?:\A|\. ){}: ", r"(?:ForeignNode\[|\.\.\.){}(?![\w/])", _LOOSE)
_NUMBERS = re.compile(r"-?\d+(?:\.\d+)?(?:[\s,x]+-?\d+(?:\.\d+)?)*")
_SHORT = 3  # characters of a layer's name that may be any word


def means(meaning: Meaning, texts: Iterable[str]) -> bool:
    """Whether one of the texts means this. A text may mean several things."""
    return any(_MEANINGS[meaning].search(text) for text in texts)


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn exceptions by which TensorRT, or the loader of its libraries, reports a lack of memory into MemoryError.

    Raises:
        MemoryError: with the text of that exception.
    """
    try:
        yield
    except (OnnxfixError, MemoryError):
        raise
    except Exception as error:
        if means("memory", [str(error)]):
            raise MemoryError(str(error)) from error
        raise


def without_missing_gpu(text: str) -> str:
    """The text without what TensorRT adds about a missing GPU; "" where it says nothing else."""
    return _NO_GPU.sub("", text).strip()


def split_source(text: str) -> tuple[str, str]:
    """The parser's source line ("ModelImporter.cpp:123", "" for none), and the text after it."""
    origin = _ORIGIN.match(text)
    return (origin[1], text[origin.end() :]) if origin is not None else ("", text)


def parsed_node(text: str) -> tuple[str, str] | None:
    """Label and operator of the node that the parser comes to; None where the text says something else."""
    match = _PARSING.match(text)
    return (match[1], match[2]) if match is not None else None


def stamp_in(metadata: str) -> str | None:
    """The label of an ONNX node in the metadata of a network's layer; None where there is none."""
    match = _STAMP.search(metadata)
    return match[1] if match is not None else None


def binding_in(text: str) -> str:
    """The network's input or output that a message is about, whatever node it was logged at; "" for none."""
    return _first_group(_BOUND.search(text))


def tensor_in(text: str) -> str:
    """The input, output or initializer that a message without a node names; "" for none."""
    return _first_group(_BOUND.search(text) or _SUBJECT.search(text) or _WEIGHTS.search(text))


def _first_group(match: re.Match[str] | None) -> str:
    return next((group for group in match.groups() if group), "") if match is not None else ""


def operation_in(text: str) -> str:
    """The operator that a message without a layer says is not supported; "" for none."""
    match = _OPERATION.search(text)
    return match[1] if match is not None else ""


def form_of(text: str, names: Iterable[str] = ()) -> str:
    """The message without ``names`` (of nodes and tensors), without numbers and shapes: equal for two messages that say
    the same of different models. What follows the first sentence about numbers is part of it."""
    for name in sorted((one for one in names if one), key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z]){re.escape(name)}(?![A-Za-z])", "*", text)
    text = re.sub(r"\[[^\]]*\]", "[]", " ".join(without_missing_gpu(text).split()))
    return _NUMBERS.sub("#", text)


def layer_in(text: str, names: Collection[str]) -> str:
    """Of the ``names`` of layers, the one that the builder's message is about; "" where it names none."""
    mentioned = [name for name in names if name and name in text]
    for form in _LAYER_FORMS:
        found = [name for name in mentioned if re.search(form.format(re.escape(name)), text)]
        found = [name for name in found if len(name) > _SHORT or form != _LOOSE]
        if found:
            return max(found, key=len)
    return ""
