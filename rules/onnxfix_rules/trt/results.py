"""What TensorRT itself says of a model: of its parse, its build, its network and its engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from onnxfix.rule import Match, Place, Severity, rule
from onnxfix.tensorrt.reading import Misread, Reading
from onnxfix.tensorrt.records import Issue, TargetOnly, TrtBuild

#: Rules about operators without an importer. The first covers every operator; the others take precedence.
_OPERATORS = (
    "OPS001 OPS026 OPS050 OPS051 OPS052 OPS053 OPS056 OPS057 OPS061 OPS063 OPS068 OPS070 OPS088 OPS089 OPS090 "
    "OPS091 OPS092 OPS101 OPS102 OPS118 OPS120 OPS121 OPS122 QDQ007 QDQ008 QDQ009 QDQ020 QDQ021 QDQ023 CTL020"
)
_BYTES = "OPS032 OPS107 OPS054 OPS062 QDQ002 QDQ005 QDQ011 QDQ014 QDQ016"
#: TensorRT's error messages and the rules that cover them, the most specific first. Measured with TensorRT-RTX 1.7.1,
#: except for the messages about allowzero and Squeeze, which come from TensorRT 8 and 10.
_REASONS = (
    (r"\A\s*(?:false)?\s*\Z", _OPERATORS),  # the parser's message for an unknown operator
    (
        r"Plugin not found|plugin was not found|failed to load \w+ plugin|not found in plugin registry",
        f"{_OPERATORS} QDQ014",
    ),
    (r"Found unsupported input type of INT(?:32|64)|operator SQRT with .*INT(?:32|64)", "INT006"),
    (
        r"Found unsupported input type of|input has type \w+ but must have type|Only FLOAT, HALF or INT8",
        f"OPS002 INT006 OPS025 OPS050 {_BYTES}",
    ),
    (
        r"does not support UINT8 types for intermediate tensors",
        f"CST003 INT001 OPS002 CST001 OPS027 {_BYTES}",
    ),
    (r"Unsupported data type for the Cast operator", "CST003 CST004 INT001 CST001 CST005 IFC005"),
    (r"Failed to convert ONNX date type", "IFC008 IFC005 CST004 CST005"),
    (r"must resolve to a build-time constant|axis is not a constant", "INT001 OPS040 OPS041 OPS042 GRA010"),
    (r"must be an initializer|which is not an initializer", "INT001 QDQ011"),
    (r"Axis input must be an initializer", "OPS040 OPS041"),  # TensorRT-RTX 1.4 and 1.5
    (r"at least 2 dimensions are required for input", "OPS023"),
    (r"at least 1 dimensions are required for input", "OPS024"),
    (r"input starts misaligns with the shape of input axes", "OPS020 OPS116"),
    (r"squeeze axes have duplicate index", "OPS117"),
    (r"Unknown activation type", "OPS115"),
    (r"doesn't support mode than 1 outputs for", "OPS021 OPS119 OPS037 OPS043 OPS050"),
    (r"only supports Attention nodes with one output", "OPS021 OPS050"),
    (r"Node has more output tensors than TRT expected", "OPS022 OPS060 OPS091"),
    (r"does not support dilations other than 1", "OPS037 OPS066 OPS067"),
    (r"ScatterND with reduction is not supported|Unsupported reduction type", "OPS039"),
    (r"training mode|training_mode", "OPS043"),
    (r"Non-zero zero point is not supported", "QDQ001 QDQ002 QDQ003 QDQ005 QDQ011 QDQ012"),
    (r"Scale coefficients must all be positive", "QDQ010"),
    (r"tensor A must be FP16|MatMulNBits are supported|block_size must be one of", "QDQ023"),
    (r"Block quantization is supported only for", "QDQ024"),
    (r"vector::_M_range_check|requires 3 inputs for the (DequantizeLinear|INT8)", "QDQ025"),
    (r"Block quantization is supported only for", "QDQ024"),
    (r"Quantized constant .* is only allowed before DQ", "QDQ012 QDQ002 OPS032 QDQ019"),
    (r"has datatype FP8 but is not", "QDQ013 CST005"),
    (r"K exceeds the maximum value allowed", "OPS044"),
    (r"Number of dimensions \(\d+\) is not in the valid range|Failed to convert ONNX dimensions", "OPS045"),
    (r"Eyelike does not work for dynamically shaped tensors", "OPS046"),
    (r"Invalid character\(s\) in Einsum equation", "OPS028"),
    (r"must have same input types|must all be of the same type|must be of same type", "PRC004 OPS054"),
    (r"reshape wildcard -1 has infinite number of solutions", "RSH002 RSH006"),
    (r"reshape of non-empty tensor to empty tensor", "RSH003 RSH006"),
    (r"would change volume", "RSH008"),
    (r"not compatible for elementwise|broadcast dimensions must be conformable", "RSH010 BRC004"),
    (r"slope tensor must be unidirectional broadcastable", "BRC007"),
    (r"size elements must be non-negative", "BRC008"),
    (
        r"activations for the reverse pass|Sequence dimension must be -2|STFT on real-valued|dynamic axes for pad|"
        r"input K as an initializer|dynamic ReverseSequence lengths|Unsupported pad mode",
        "OPS124",
    ),
    (r"Depth input of IOneHotLayer", "OPS040 OPS124"),
    (r"IRecurrenceLayer must have inputs with same shape|inputs to IRecurrenceLayer", "CTL015 OPS011"),
    (r"No nesting relationship", "CTL016"),
    (r"CHECK\(static_cast<size_t>\(i\) < op->input_size\(\)\) failed", "CTL011"),
    (r"dimensions not compatible for if-conditional outputs|inputs must have the same shape", "CTL011"),
    (r"makeScopeNodesContiguous", "CTL021"),
    (r"reduction over statically empty tensor", "OPS125"),
    (r"has empty producer but nonempty consumers", "OPS110"),
    (r"mChunkTypeOfVertex\[head\] == ChunkType::kMYELIN", "OPS112"),
    (r"padding size is larger than or equal to the filter size", "OPS075"),
    (r"`axes` attribute is supported with `scales` tensor only", "OPS081"),
    (r"quantization axis must divide into whole blocks", "QDQ017"),
    (r"Must have inputs with equal ranks when condition is not", "CTL011 IFC001 QDQ019"),
    (r"does not support the sparse_value", "GRA006 GRA008"),
    (r"Failed to import initializer", "GRA002 CST005 GRA008 IFC005 OPS032 QDQ002 QDQ006 QDQ015 QDQ022"),
    (r"Node input was not registered", "GRA004 CTL012 GRA007"),
    (r"Pre-opset 7 broadcasting is unsupported|Attribute scales is missing", "GRA020"),
    (r"is a shape tensor and must have type Int32 or Int64", "OPS071"),
    (r"Attribute not found: allowzero", "RSH005"),
    (r"Cannot infer squeeze dimensions from a dynamic shape", "RSH009"),
)
#: TensorRT also imports dead nodes, so this rule can explain any error.
_DEAD = "GRA001"


def known(text: str) -> tuple[str, ...] | None:
    """The rules that cover the error message ``text``; None for an unknown message."""
    found = [code for pattern, codes in _REASONS for code in codes.split() if re.search(pattern, text)]
    return (*dict.fromkeys(found), _DEAD) if found else None


#: Build statuses other than an error message, and how a message names them.
_ENDS = {"crash": "crash", "timeout": "timeout"}


def refusal(build: TrtBuild, issue: Issue) -> Match:
    """An error as a match. For a crash or a timeout, the message starts with that status."""
    found = match_of(issue, known(issue.text))
    end = _ENDS.get(build.status, "")
    is_named = end in found.message[:60].lower()
    return found if is_named else replace(found, message=f"{end}: {found.message}")


def match_of(issue: Issue, about: tuple[str, ...] | None = None, severity: Severity | None = None) -> Match:
    """TensorRT's message as a match at the node that it names."""
    caller = f" (called from {issue.place.around})" if issue.stack and issue.place.around else ""
    times = f" ({issue.count} times)" if issue.count > 1 else ""
    return Match(f"{issue.words}{caller}{times}", severity=severity, at=issue.at, about=about, said=issue)


@rule("TRT001", per="build", severity=Severity.ERROR)
def refused_by_parser(build: TrtBuild) -> Iterator[Match]:
    """TensorRT's parser refuses the model; the finding quotes its message at the node that it names.

    ## Why it matters
    Without a successful parse there is no engine. The parser usually stops at the first node that it refuses, so more
    errors may appear once that one is fixed. A crash, a timeout or running out of memory during or before parsing
    counts as well: TensorRT runs in a child process, and the message says how that process ended.

    If TensorRT and the rules name no node, parts of the model are cut out and built, for at most 20 seconds or a tenth
    of the rest of `--timeout`. The finding names the nodes of the smallest part that still fails in the same way; one
    node alone is the finding's place. `onnxfix reduce` searches without that limit.

    `check --trt` and the check `trt-build` of `apply` and `verify` use the installed TensorRT. TensorRT-RTX needs no
    GPU for this. Other versions and products may accept other models. An operator that the installed TensorRT does not
    have and the target has is a note: nobody asked the target. The rest of the model is judged without it: what the
    operator computes becomes an input, with the values that ONNX Runtime computes.

    ## Fix
    The finding names the rule that repairs the node, if there is one; the page of that rule explains the fix. A finding
    of that rule at the same node is marked as confirmed. If no rule covers the message, change the operator, type or
    shape that it names.

    ## References
    - Operators and types of the parser: https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    - Small models that TensorRT-RTX 1.7.1 refuses, with its messages: `fixtures/trt/README.md` in onnxfix's sources
    """
    lacking = build.part.lacking if build.part is not None else ()
    for issue in (*lacking, *build.errors) if build.judged or build.target_only else ():
        if isinstance(issue, TargetOnly):
            yield match_of(issue, (), Severity.INFO)
        elif issue.stage in ("", "parse"):
            yield refusal(build, issue)


@rule("TRT002", per="build", severity=Severity.ERROR)
def refused_by_builder(build: TrtBuild) -> Iterator[Match]:
    """TensorRT parses the model but cannot build an engine; the finding quotes the builder at the node of the layer.

    ## Why it matters
    There is no engine. The builder refuses what only the whole network shows: branches of unequal rank, limits of a
    layer, sizes that no profile allows. An invalid optimization profile is reported here too, and so is a build that
    crashes, times out or runs out of memory: TensorRT runs in a child process, and the message says how that process
    ended. Where no kernel computes a layer the builder says `Could not find any implementation for node`, and where a
    program of one's own sets no profile `Network has dynamic or shape inputs, but no optimization profile has been
    defined.`

    If TensorRT and the rules name no node, the smallest part of the model that still fails is searched and named, as
    for TRT001.

    Without explicit profiles, onnxfix derives them from the model's symbols; the report and the output of `--verbose`
    list the profiles of the build. If they do not fit the model, set `--trt-min-shapes`, `--trt-opt-shapes` and
    `--trt-max-shapes`.

    ## Fix
    The finding names the rule that repairs the node, if there is one; the page of that rule explains the fix. A finding
    of that rule at the same node is marked as confirmed.

    ## References
    - https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-dynamic-shapes.html
    - Small models that TensorRT-RTX 1.7.1 refuses, with its messages: `fixtures/trt/README.md` in onnxfix's sources
    """
    for issue in build.errors if build.judged else ():
        if issue.stage in ("profile", "build") and not isinstance(issue, TargetOnly):
            yield refusal(build, issue)


#: Known warnings, their severity, and the rules that cover them. The first match counts.
_KNOWN = (
    (r"has Int64 binding", Severity.INFO, "INT005"),
    (r"^Unused Input: ", Severity.INFO, ""),
    (r"is unused or used only at compile-time", Severity.INFO, ""),
    (r"^Detected layernorm nodes in FP16", Severity.INFO, ""),
    (r"^Was not able to infer kOPT value", Severity.INFO, ""),
    (r"Empty initializer .* Overriding data to nullptr", Severity.INFO, ""),
    (r"^UINT8 data .* is being converted to INT32", Severity.INFO, ""),
    (r"will be converted to ScatterElements", Severity.INFO, ""),
    # The parser's own name for an unnamed node:
    (r"A node named node_of_.* already exists", Severity.INFO, ""),
    (r"A node named .* already exists", Severity.WARNING, "GRA005"),
    (r"allowzero with opset < 14", Severity.WARNING, "RSH007"),
    (r"that might or might not be zero", Severity.WARNING, "RSH004"),
    (r"ISqueezeLayer without an axes input requires", Severity.WARNING, "RSH009"),
    (r"not compatible for elementwise", Severity.WARNING, "BRC004"),
    (r"UINT8 zero_point only on DLA", Severity.WARNING, "QDQ004"),
    (r"with FP16 Reduce or Pow may cause overflow", Severity.WARNING, "PRC001"),
    (r"ignores the \"seed\" field", Severity.WARNING, ""),
    (r"at least opset 7", Severity.WARNING, "GRA020"),
    (r"both a trip limit and a loop termination condition", Severity.WARNING, "CTL001 CTL013"),
    (r"out of range\. Clamping|outside the range of FLOAT was clamped", Severity.WARNING, ""),
    (r"first input has type \w+ but second input has type", Severity.WARNING, ""),
)
_PROFILE = re.compile(r"k(?:MIN|OPT|MAX) value")
#: A requirement of the layer, whatever the profile.
_REQUIRED = re.compile(r"ISqueezeLayer without an axes input requires")
_MACHINE = re.compile(
    r"cudaError (?:35|100)\b|CUDA (?:driver|initialization|lazy loading)|determine GPU memory usage", re.I
)


@rule("TRT003", per="build")
def warned_about(build: TrtBuild) -> Iterator[Match]:
    """TensorRT's parser or builder issues a warning.

    ## Why it matters
    A warning may be the only sign that the engine computes something else, or refuses an input at run time: a `Loop`
    whose outputs may have another shape, half precision that may overflow, a uint8 zero point that becomes int8, a
    `Squeeze` that forbids batch 1. Those are warnings here as well, and so is every unknown message.

    Harmless messages are information only: `Make sure input x has Int64 binding`, an input that the network does not
    read (its shape or type may still have been used), unnamed nodes to which the parser gives the same name.

    If another rule reports the same problem at the same node, that finding is listed, confirmed with TensorRT's
    message, and this one is not.

    Not reported: messages about the sizes of derived optimization profiles, and about the machine that builds the
    engine.

    ## Fix
    The finding names the rule that repairs the node, if there is one. What an accepted model computes despite the
    warning is not known before it runs.

    ## References
    The messages are those of TensorRT-RTX 1.7.1 over ONNX's node models, fourteen exports of PyTorch and the models of
    `fixtures/trt`.
    """
    derived = all(profile.derived for profile in build.profiles)
    for issue in build.warnings:
        if _of_machine(issue) or (derived and _of_profile(issue)):
            continue
        severity, about = _classified(issue.text)
        yield match_of(issue, about, severity)


def _classified(text: str) -> tuple[Severity, tuple[str, ...] | None]:
    for pattern, severity, codes in _KNOWN:
        if re.search(pattern, text):
            return severity, tuple(codes.split())
    return Severity.WARNING, None


def _of_profile(issue: Issue) -> bool:
    return bool(_PROFILE.search(issue.text)) and not _REQUIRED.search(issue.text)


def _of_machine(issue: Issue) -> bool:
    return issue.at is None and bool(_MACHINE.search(issue.text))


_SHOWN = 3  # layers of a node that a message names


@rule("TRT004", per="network", severity=Severity.ERROR)
def network_differs(reading: Reading) -> Iterator[Match]:
    """TensorRT accepts the model, but the network that it imports computes something else.

    ## Why it matters
    The parser can accept a model and silently compute something else: a `Trilu` without `upper` becomes a lower
    triangle, `layout=1` of an `LSTM` is ignored, a `ConvTranspose` is shifted by a pixel, a `QuantizeLinear` without
    zero point gives int8, an operator of a foreign domain becomes the standard one of that name. The engine builds and
    runs, and its results are wrong.

    `check --trt` and the check `trt-network` of `apply` and `verify` convert the imported network back to an ONNX
    model, layer by layer, run both with ONNX Runtime on the same inputs, and compare. If outputs differ by more than
    rounding, tensors with the same name in both are compared in the order of computation. The finding names the first
    node whose results differ, both values at the first differing element, and TensorRT's layers.

    - **error**: a value or a weight differs; an input or output has another name or type, or an input another shape;
      ONNX Runtime refuses a model that TensorRT nevertheless imports; the imported network fails on inputs that the
      model accepts.
    - **warning**: infinity or NaN where ONNX has a number, only for values at the edge of their type (0, 1e4); float32
      in place of float64 at an input or output; a wrong declared type or shape on which no value was seen to depend; a
      model that ONNX Runtime refuses for its declared types, while ONNX's reference evaluator computes what TensorRT
      imported.

    If both ONNX Runtime and `onnx.checker` with `full_check` refuse a model, nothing is reported: ONNX does not define
    what such a model computes. A wrong type in `value_info` alone does not change what a model computes.

    This check proves the import, for the inputs that were tried. It proves nothing about kernels and fusions: no engine
    is executed (the check `trt-gpu` does that). Differences that no tested input exposes are not seen, and a network
    with a layer that cannot be converted back is not judged.

    ## Fix
    The finding names the rule that reports the same node; the page of that rule explains the fix, and its finding is
    marked as confirmed. Without such a rule, rewrite the node: with explicit defaults, or decomposed into the operators
    that define it in ONNX. `onnxfix lift` writes the imported network as an ONNX model for inspection.

    ## References
    - The API for reading the network:
      https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/python-api/infer/Graph/Network.html
    - What each operator computes: https://onnx.ai/onnx/operators/
    """
    for one in reading.misreads:
        message = f"{one.words}{_layers(one)}"
        yield Match(message, severity=Severity.WARNING if one.harmless else Severity.ERROR, at=one.place)


def _layers(one: Misread) -> str:
    """The first few of the node's TensorRT layers, in brackets; the JSON report lists all of them."""
    more = ", ..." if len(one.layers) > _SHOWN else ""
    return f" [layers: {', '.join(one.layers[:_SHOWN])}{more}]" if one.layers else ""


if TYPE_CHECKING:
    from onnxfix.proof.verdict import Executed

_HALF_PRECISION = tuple(f"PRC00{number}" for number in (1, 2, 3, 5, 6, 7, 8, 9))


@rule("TRT005", per="execution", severity=Severity.ERROR)
def engine_differs(executed: Executed) -> Iterator[Match]:
    """The engine's outputs differ from the model's by more than rounding.

    ## Why it matters
    TensorRT builds the model, but the engine computes something else: a layer was imported with another meaning, half
    precision overflows, or a kernel is wrong. The check `trt-gpu` of `apply` and `verify` runs engines of the original
    and of the fixed model and compares both with the results of ONNX Runtime or the reference evaluator. A fix that
    makes an engine worse is withdrawn. This finding is about the rest: the engine of the written model is wrong, and
    the original's engine was no better.

    If the check `trt-network` has found the node that TensorRT imports differently, TRT004 reports it, confirmed on the
    engine, and this finding is omitted.

    ## Fix
    Repair what the finding points to: a model in half precision often needs `--numeric-fixes`. If it points to nothing,
    narrow the cause down: `onnxfix lift` writes what TensorRT imported, and the outputs of a truncated model show where
    the values start to differ. If rounding alone could explain the difference, test with real inputs: `--inputs`.

    ## References
    - Accuracy in the TensorRT documentation:
      https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/accuracy-considerations.html
    - Strong typing:
      https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/advanced.html#strongly-typed-networks
    """
    if executed.outcome in ("alike", "wrong"):
        message = f"on {executed.gpu or 'the GPU'}, {executed.reason}"
        yield Match(message, at=Place(output=executed.output), about=_HALF_PRECISION)


if TYPE_CHECKING:
    from onnxfix.proof.verdict import Executed


@rule("TRT006", per="execution", severity=Severity.ERROR)
def engine_not_reproducible(executed: Executed) -> Iterator[Match]:
    """The engine is right in some contexts and wrong in others, on the same inputs.

    ## Why it matters
    TensorRT chooses or compiles a kernel that is wrong now and then. A single run proves nothing then, and neither does
    an engine that was right in a test. Measured with TensorRT-RTX 1.6.1 on an H200 (compute capability 9.0, which
    NVIDIA does not list for it): of 20 contexts of FastViT's dynamo export 6 were wrong in every element, of the
    original as of the fixed model; within a context all runs agree. 24 contexts with TensorRT 10.6.0 were right.

    Where the new model's engine is wrong and a fix looks to blame, the check `trt-gpu` loads it twice more, builds it a
    second time and loads that three times, each in a process that has compiled no kernel. If one of these is right, no
    fix is withdrawn, and this is reported.

    ## Fix
    Use another release of TensorRT, or a GPU that it lists. `onnxfix diagnose --against trt-gpu` looks for the nodes;
    another export of the same model may avoid the kernel: FastViT's legacy export was always right.
    """
    if executed.outcome == "unsteady":
        yield Match(f"on {executed.gpu or 'the GPU'}, {executed.reason}", at=Place(output=executed.output))
