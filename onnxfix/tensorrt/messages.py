"""What TensorRT's own messages mean. Every expression that is applied to a text of TensorRT's stands here.

TensorRT reports much only as text: that memory ran out, that a profile does not fit, which node or tensor a message is
about. Its texts are input from outside: they become data here, and nothing else reads them. Texts that onnxfix makes
are never matched.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from onnxfix.errors import OnnxfixError
from onnxfix.tensorrt.reading import Candidate, EngineLayer, LayerTensor

#: "memory": it ran out. "profile": sizes of an optimization profile do not fit the model, and other sizes may.
#: "inconsistent-profile": an engine was built although the sizes of its profile do not fit the model.
#: "lacking": there is no importer for the operator and no plugin of its name, or no kernel.
Meaning = Literal["memory", "profile", "inconsistent-profile", "lacking"]
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
    "lacking": re.compile(
        r"\A\s*(?:false)?\s*\Z|[Pp]lugin (?:was )?not found|failed to load \w+ plugin|not found in plugin registry"
        r"|has no runners that implement it"
    ),
}
#: The parser prefixes what it logs with its own source line.
_ORIGIN = re.compile(r"\A(\w+\.[ch]pp:\d+): ")
_PARSING = re.compile(r"(?:Parsing node|Static check for parsing node): (.*) \[(\w+)\]\Z", re.S)
#: Stamps follow each other with nothing, a unit separator or a record separator between them. A name may contain
#: brackets.
_STAMP = re.compile(
    r"\[ONNX Layer: (.*?)\](?=[\x1e\x1f]|\[[A-Z]\w*(?: \w+)*: |\s*\Z)|\[ONNX Layer: (.*?)\]", re.S
)
_AROUND = " | "
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
#: What a stamp has after the label: a node and its operator, or a graph and the attribute that holds it.
_OWNER = re.compile(r"(.*) \((\w+)\)\Z", re.S)
_BODIES = ("then_branch", "else_branch", "body")

#: The engine's layers in the verbose log of a build with detailed profiling verbosity.
_LAYERS = "Layers:\n"
_LISTED = re.compile(
    r"Name: (?P<name>.*?), LayerType: (?P<kind>\w+), Inputs: \[(?P<inputs>| \{.*?\})\], "
    r"(?:Constants: \[(?P<constants>| \{.*?\})\], )?Outputs: \[(?P<outputs>| \{.*?\})\], (?P<rest>.*)\Z"
)
_TENSOR = re.compile(
    r"\{ Name: (.*?), (?:Location: \w+, )?Dimensions: \[([-\d,]*)\], "
    r"(?:Strides: \[[-\d,]*\], StrideOrder: \[[-\d,]*\], )?(?:Datatype: (\w+), Format: (.*?)|Format/Datatype: (.*?))"
    r" \}(?=, \{ Name: |\Z)"
)
_TACTIC = re.compile(r"\bTacticName: (.*?)(?:, (?:TacticValue|StreamId|JumpTarget\w*|Metadata): |\Z)")
_TACTIC_ID = re.compile(r"\bTacticValue: (0x[0-9a-fA-F]+)")
_METADATA = re.compile(r"(?:\A|, )Metadata: (.*)\Z", re.S)
_PROFILE = re.compile(r" \[profile (\d+)\]")
_GRAPH = re.compile(r"_myl(\d+)_\d+\Z")
_REGION = re.compile(r"ForeignNode (\{ForeignNode\[.*?\]\}) metadata: (.*)\Z", re.S)
_JOINED = re.compile(r" \+ |PWN\(|\)|, ")
#: Stands for a kernel that is chosen when the engine is loaded.
_LATER = "__myelin_CASK_STUB"
#: TensorRT's words for element types, in small letters.
_TYPES = {
    "float": "float32", "fp32": "float32", "half": "float16", "fp16": "float16", "bf16": "bfloat16",
    "bfloat16": "bfloat16", "fp8": "float8_e4m3fn", "e8m0": "float8_e8m0fnu", "fp4": "float4_e2m1fn",
}  # fmt: skip
_WORD = re.compile(r"\b(?:float|fp32|half|fp16|bf16|bfloat16|fp8|fp4|u?int\d+|bool)\b", re.I)
#: What the builder logs where an editable timing cache is in use ("sampleEditableTimingCache" of TensorRT 10.8).
_OPERATION_KEY = re.compile(r"Autotuning op (.*)\(key: (0x[0-9a-fA-F]+)\)")
_CANDIDATE = re.compile(r"\s*\d+, ([\d.e+-]+), [^,]*, [^,]*, (.*?), (0x[0-9a-fA-F]+),")
_CHOSEN = re.compile(r"selected tactic is \(tactic hash, cost\(in ms\)\):\s*(0x[0-9a-fA-F]+)")


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


def stamps_in(metadata: str) -> tuple[str, ...]:
    """The parser's stamps in the metadata of a layer, each once: the label of an ONNX node, and after ``" | "`` the
    subgraphs and functions around it, innermost first."""
    return tuple(dict.fromkeys(match[1] or match[2] or "" for match in _STAMP.finditer(metadata)))


def split_stamp(stamp: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """A stamp as the label of a node, and what is around it, innermost first: the attribute that holds the subgraph (""
    in a local function), and the label of the node with that attribute, or of the call."""
    label, *around = stamp.split(_AROUND)
    found, attribute = [], ""
    for match in filter(None, map(_OWNER.match, around)):
        if match[2] in _BODIES:
            attribute = match[2]
        else:
            found.append((attribute, match[1]))
            attribute = ""
    return label, tuple(found)


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


# ------------------------------------------------------------------------ the engine's layers, and how they were chosen


def dtype_of(word: str) -> str:
    """The element type that TensorRT calls ``word``, as numpy names it; in small letters where that has no name."""
    return _TYPES.get(word.lower(), word.lower())


def listed_layers(text: str) -> tuple[EngineLayer, ...] | None:
    """The engine's layers, where the text is the list that the builder logs at its end; else None."""
    if not text.startswith(_LAYERS):
        return None
    found = map(_listed, text[len(_LAYERS) :].split("\n"))
    return of_profiles([layer for layer in found if layer is not None])


def _listed(line: str) -> EngineLayer | None:
    match = _LISTED.match(line)
    if match is None:
        return None
    patterns = (_TACTIC, _TACTIC_ID, _METADATA)
    tactic, identity, metadata = (_first_group(one.search(match["rest"])) for one in patterns)
    tensors = _tensors(match["inputs"]), _tensors(match["constants"] or ""), _tensors(match["outputs"])
    return EngineLayer(
        match["name"], match["kind"], kernel_in(tactic), identity, *tensors, stamps_in(metadata)
    )


def _tensors(text: str) -> tuple[LayerTensor, ...]:
    return tuple(
        LayerTensor(name, dtype_of(kind) if kind else type_in(both), dims_in(dims), layout or both)
        for name, dims, kind, layout, both in _TENSOR.findall(text.strip())
    )


def dims_in(text: str) -> tuple[int, ...]:
    """``1,-1,3`` as numbers."""
    return tuple(int(size) for size in text.split(",") if size)


def type_in(layout: str) -> str:
    """The element type that a description of a layout names ("Row major linear FP16 format"); "" for none."""
    match = _WORD.search(layout)
    return dtype_of(match[0]) if match is not None else ""


def kernel_in(tactic: str) -> str:
    """The kernel's name, without the word that stands for one that is chosen when the engine is loaded."""
    return "" if tactic == _LATER else tactic


def of_profiles(layers: Iterable[EngineLayer]) -> tuple[EngineLayer, ...]:
    """The layers with the optimization profile of each. Names of some layers have it, and those of the others say to
    which compiled graph they belong, as those do."""
    known: dict[str, int] = {}
    found: list[tuple[EngineLayer, str, int]] = []
    for layer in layers:
        graph = _first_group(_GRAPH.search(layer.name))
        names = [layer.name, *(one.name for one in (*layer.inputs, *layer.outputs))]
        profile = max((int(number) for name in names for number in _PROFILE.findall(name)), default=0)
        known[graph] = max(known.get(graph, 0), profile) if graph else 0
        found.append((layer, graph, profile))
    return tuple(replace(layer, profile=known[graph] if graph else own) for layer, graph, own in found)


def region_in(text: str) -> tuple[str, tuple[str, ...]] | None:
    """A layer that TensorRT's compiler made of many nodes, with the stamps of all of them, where the text is about one;
    else None."""
    match = _REGION.match(text)
    return (match[1], stamps_in(match[2])) if match is not None else None


def joined_in(name: str, known: Collection[str]) -> tuple[str, ...]:
    """The names of network layers of which the name of an engine's layer is made: ``conv1 + relu1``."""
    return tuple(dict.fromkeys(part for part in _JOINED.split(name) if part in known))


def autotuned_in(line: str) -> tuple[str, str] | None:
    """The operation whose tactic is chosen next, and its key in the timing cache; None for another line."""
    match = _OPERATION_KEY.search(line)
    return (match[1], match[2]) if match is not None else None


def candidate_in(line: str) -> Candidate | None:
    """A row of the table of tactics that were timed for an operation; None for another line."""
    match = _CANDIDATE.match(line)
    return Candidate(match[2], match[3], float(match[1])) if match is not None else None


def chosen_in(line: str) -> str:
    """The hash of the tactic that was chosen; "" for another line."""
    return _first_group(_CHOSEN.search(line))
